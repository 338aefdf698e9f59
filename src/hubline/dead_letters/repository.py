"""Dead letters in a database: list, count, mark and delete them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from hubline.adapters import require_there
from hubline.addresses.store_address import PostgresAddress, SqlAddress, SqliteAddress, StoreAddress, parse_store
from hubline.errors import ConfigError, StoreError
from hubline.model.dead_letters import DeadLetter, DeadLetterId, DeadLetterSelection, DeadLetterState
from hubline.model.keys import PartitionKey
from hubline.sql.dead_letter_queries import DeadLetterQueries
from hubline.sql.dead_letter_table import read_dead_letter_row
from hubline.sql.dialect import Database
from hubline.sql.pool import AsyncSqlPool

PAGE_COUNT = 100
"""Dead letters read at once: of the largest events that hubs take, 100 MB."""

CHANGE_COUNT = 1_000
"""Dead letters marked or deleted in one transaction: short enough to be in nobody's way."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class DeadLetterCount:
    """How many dead letters of a partition are in a state, with one type of error.

    Attributes:
        key: The partition.
        state: Their state.
        error_type: The name of the exception's type.
        count: How many there are.
        last_sequence: The sequence number of the newest one's event.
    """

    key: PartitionKey
    state: str
    error_type: str
    count: int
    last_sequence: int


class DeadLetterRepository:
    """The dead letters of a SQL database. It is opened by the first call.

    Args:
        url: `sqlite:///PATH` or `postgresql://...`, as for `SqlSink`. A file must exist.

    Raises:
        ConfigError: The address is not that of a SQL database, or the file does not exist.

    Example:
        repository = DeadLetterRepository("sqlite:///state.db")
        for dead_letter in await repository.page(DeadLetterSelection(error_type="ValueError")):
            print(DeadLetterId.of(dead_letter), dead_letter.error_text)
        await repository.close()
    """

    def __init__(self, url: str) -> None:
        self.address = sql_address(url)
        database = _database(self.address)
        self._queries = DeadLetterQueries(database.dialect)
        self._pool = AsyncSqlPool(database)

    async def now(self) -> datetime:
        """Returns the database's time, which dates dead letters."""
        asking = self._queries.now()
        ((micros,),) = await self._pool.run(lambda connection: connection.read(asking))
        assert isinstance(micros, int)  # noqa: S101 (the query has no other answer)
        return _EPOCH + timedelta(microseconds=micros)

    async def count(self, selection: DeadLetterSelection) -> list[DeadLetterCount]:
        """Counts the selected dead letters by partition, state and type of error."""
        counting = self._queries.count(selection)
        rows = await self._pool.run(lambda connection: connection.read(counting))
        return [
            DeadLetterCount(PartitionKey(*map(str, key)), str(state), str(error_type), int(str(count)), int(str(last)))
            for *key, state, error_type, count, last in rows
        ]

    async def page(
        self,
        selection: DeadLetterSelection,
        *,
        after: DeadLetterId | None = None,
        max_count: int = PAGE_COUNT,
        bodies: bool = True,
    ) -> list[DeadLetter]:
        """Returns dead letters in the order of their keys.

        Args:
            selection: Which dead letters.
            after: The last one of the page before. By default, the first page is read.
            max_count: The most to return.
            bodies: Whether to read the events' bodies.
        """
        reading = self._queries.page(selection, after=after, max_count=max_count, bodies=bodies)
        rows = await self._pool.run(lambda connection: connection.read(reading))
        return [read_dead_letter_row(row) for row in rows]

    async def pages(self, selection: DeadLetterSelection, *, bodies: bool = True) -> AsyncIterator[list[DeadLetter]]:
        """Yields all that are selected, a page at a time. Changes made meanwhile may or may not show."""
        after = None
        while page := await self.page(selection, after=after, bodies=bodies):
            yield page
            after = DeadLetterId.of(page[-1])

    async def find(self, dead_letter_id: DeadLetterId, selection: DeadLetterSelection | None = None) -> DeadLetter:
        """Returns one dead letter, in any state.

        Raises:
            StoreError: There is no such dead letter.
            ConfigError: Several consumer groups have one with this id.
        """
        found = await self.page(
            replace(selection or DeadLetterSelection(), state=None, ids=(dead_letter_id,)), max_count=2
        )
        if not found:
            raise StoreError(
                f"there is no dead letter {dead_letter_id} in {self.address}. List them with `hubline dlq list`."
            )
        if len(found) > 1:
            first, second = (DeadLetterId.of(each) for each in found)
            raise ConfigError(
                f"several groups have a dead letter {dead_letter_id}. Give one full ID, {first} or {second}."
            )
        return found[0]

    async def mark_some(self, selection: DeadLetterSelection, state: DeadLetterState) -> int:
        """Marks up to 1,000 dead letters and returns how many; 0 if none is left. Those in a redrive are skipped."""
        marking = self._queries.mark_some(selection, state, max_count=CHANGE_COUNT)
        (rows,) = await self._pool.run(lambda connection: connection.write(marking))
        return len(rows)

    async def delete_some(self, selection: DeadLetterSelection) -> int:
        """Deletes up to 1,000 dead letters and returns how many; 0 if none is left. Those in a redrive are skipped."""
        deleting = self._queries.delete_some(selection, max_count=CHANGE_COUNT)
        (rows,) = await self._pool.run(lambda connection: connection.write(deleting))
        return len(rows)

    async def close(self) -> None:
        await self._pool.close()


def sql_address(url: str) -> SqlAddress:
    """The address of a database that may have dead letters. A file that is not there has none, and is not made."""
    address: StoreAddress = parse_store(url)
    if not isinstance(address, SqlAddress):
        raise ConfigError("dead letters are stored in a SQL database. Give it as sqlite:///PATH or postgresql://...")
    require_there(address)
    return address


def _database(address: SqlAddress) -> Database:
    """Drivers are loaded when they are needed: SQLite must not cost PostgreSQL's."""
    match address:
        case PostgresAddress(conninfo):
            from hubline.sql.postgres import PostgresDatabase

            return PostgresDatabase(conninfo)
        case SqliteAddress(path):
            from hubline.sql.sqlite import SqliteDatabase

            return SqliteDatabase(path)
