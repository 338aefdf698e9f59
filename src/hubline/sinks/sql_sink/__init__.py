"""The SQL sink: rows, dead letters and the checkpoint in one transaction."""
