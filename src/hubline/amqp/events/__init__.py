"""Messages to Arrow columns and back."""
