"""What the two databases do each in its own way. Everything else is written once, in :mod:`.store`.

All of this is synchronous and runs in the threads of :mod:`.pool`; a connection is used by one thread at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from hubline.errors import StoreError

Row = tuple[object, ...]
Params = Mapping[str, str | int | float | None]


@dataclass(frozen=True, slots=True)
class Statement:
    """A query with its values, which are always bound and never part of the text."""

    query: str
    params: Params


class Connection(Protocol):
    """An open connection whose schema is current."""

    def read(self, statement: Statement) -> list[Row]:
        """Runs a query that changes nothing."""
        ...

    def write(self, *statements: Statement) -> list[list[Row]]:
        """Runs the statements as one transaction, in one round trip, and returns the rows of each."""
        ...

    def is_usable(self) -> bool:
        """Whether the connection, idle for any time, still leads to the database. Costs no round trip."""
        ...

    def cut(self) -> None:
        """Makes what another thread is waiting for on this connection fail soon. Safe from any thread."""
        ...

    def close(self) -> None: ...


class SchemaConnection(Connection, Protocol):
    """What migrations need besides."""

    def exclusive(self) -> AbstractContextManager[None]:
        """A transaction that no other process can be in at the same time."""
        ...

    def run_script(self, text: str) -> None:
        """Runs statements that take no values, within :meth:`exclusive`."""
        ...


class Database(Protocol):
    """Where connections come from."""

    @property
    def shown(self) -> str:
        """How to name the database to people: no secret in it."""
        ...

    def connect(self) -> Connection:
        """Opens a connection and brings the schema up to date. Raises a StoreError or a driver's error."""
        ...

    def explain(self, error: Exception) -> StoreError | None:
        """What a driver's error means for the caller, with the cause and what to do, and no secret; else None."""
        ...
