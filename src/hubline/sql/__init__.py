"""What stores, sinks and dead letters share in SQL databases."""
