"""What each database does in its own way. Everything else is written once.

To add a database, copy `sqlite.py` to a file of its own: a `Dialect`, a class with the methods of `SchemaConnection`,
and one with those of `Database`; and its tables to `migrations/NAME/`. It must have RETURNING, ON CONFLICT and
UPDATE ... FROM, with which `queries` is written. MySQL has none of them: a store there is a class of its own in
`checkpoint_stores`, with its own queries and connections, and its DDL is not undone with a transaction.

All of this is synchronous; a connection is used by one thread at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from hubline.errors import StoreError

Row = tuple[object, ...]
Params = Mapping[str, str | int | float | bool | None]


@dataclass(frozen=True, slots=True)
class Statement:
    """A query with its values, which are always bound and never part of the text."""

    query: str
    params: Params


_PARAMETER = re.compile(r"(?<!:):([a-z_][a-z0-9_]*)")


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a database spells in its own way: SQL text, never values."""

    parameter: str  # what :name becomes, as a replacement for re.sub
    now: str
    now_micros: str  # the same as microseconds since 1970, as a whole number
    epoch_seconds: str  # the same as seconds since 1970, as a float
    age: Callable[[str], str]  # seconds since the time in a column; 0 if that lies ahead, NULL if it is not a time
    micros: Callable[[str], str]  # the time in a column as microseconds since 1970
    failed_micros: str  # the same for failed_at, which SQLite keeps in milliseconds
    failed_time: Callable[[str], str]  # microseconds since 1970 as a time to compare failed_at with
    contains_text: Callable[[str, str], str]  # whether a column has a text in it, in upper or lower case
    largest: str  # the function that returns its largest argument
    texts: str  # :texts, a JSON array of texts, as a query with one column
    rows: str  # :rows as a subquery with columns new_partition, new_owner, new_epoch, known_version
    locked_rows: str  # the same, once the ownership record of each is locked, one after the other
    locked: str  # ends a query whose row is to be locked until the transaction ends
    locked_for_removal: str  # the same for rows that may be removed
    skip_locked: str  # ends a subquery whose rows are to be locked, except those that others have locked
    try_lock: str  # locks :partition_lock until the transaction ends; false if another transaction has it
    allow_long_pauses: str  # lets the transaction pause between two statements; empty where no bound forbids it

    def spelled(self, text: str) -> str:
        """A query with its parameters as the driver wants them."""
        return _PARAMETER.sub(self.parameter, text)

    def statement(self, text: str, params: Params) -> Statement:
        return Statement(self.spelled(text), params)


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
    def dialect(self) -> Dialect: ...

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
