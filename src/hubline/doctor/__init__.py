"""What is wrong with a hub, a store and how they are used, and what to do about it."""
