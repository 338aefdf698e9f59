"""Reading hubs from Spark."""
