"""The seeded simulator: the production code in virtual time, with faults."""
