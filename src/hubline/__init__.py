"""hubline: partitioned event hubs, reliable to consume from Python."""
