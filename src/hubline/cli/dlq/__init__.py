"""`hubline dlq ...`: list, export, discard and redrive dead letters."""
