"""The values that everything else works with."""
