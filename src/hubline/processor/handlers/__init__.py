"""The user's functions: what they may take, and how they are called."""
