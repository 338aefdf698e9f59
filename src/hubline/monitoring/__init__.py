"""What an operator needs to know: lag of consumer groups."""
