"""The version of hubline, in one place: the package metadata is built from it."""

__version__ = "0.1.0"
