"""Writing streams to SQL databases from Spark, exactly once."""
