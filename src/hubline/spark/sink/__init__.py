"""Writing to hubs from Spark."""
