"""Finds problems with a hub, a store and their consumers, and says how to fix them."""
