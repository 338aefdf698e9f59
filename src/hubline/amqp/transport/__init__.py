"""Connections, sessions and links."""
