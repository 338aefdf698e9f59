"""Settings of a session for a moment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession


@contextmanager
def temporary_settings(session: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Within it a session has these settings. That of a batch is its query's own: no other query sees them."""
    before = {name: str(session.conf.get(name)) for name in wanted}
    for name, value in wanted.items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            session.conf.set(name, value)
