"""The dead letters of a database, as people look at them and tidy them up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from hubline.adapters import require_there
from hubline.addresses.store_address import PostgresAddress, SqliteAddress, StoreAddress, parse_store
from hubline.errors import ConfigError, RecordDamaged, StoreError
from hubline.model.dead_letters import DeadLetter, DeadLetterId, DeadLetterSelection, DeadLetterState
from hubline.model.keys import GroupKey, PartitionKey
from hubline.sql.dead_letter_queries import DeadLetterQueries
from hubline.sql.dead_letter_table import read_letter
from hubline.sql.dialect import Database, Row
from hubline.sql.pool import AsyncSqlPool

PAGE_COUNT = 100
"""Letters read at once: of the largest events that hubs take, 100 MB."""

CHANGE_COUNT = 1_000
"""Letters marked or removed in one transaction: short enough to be in nobody's way."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class DeadLetterCount:
    """How many letters of a partition are in a state, with one type of error."""

    key: PartitionKey
    state: str
    error_type: str
    count: int
    last_sequence: int


class DeadLetterRepository:
    """Dead letters in a SQL database, which is named as sinks are. Nothing is opened before the first call."""

    def __init__(self, url: str) -> None:
        self.address = sql_address(url)
        database = _database(self.address)
        self._queries = DeadLetterQueries(database.dialect)
        self._pool = AsyncSqlPool(database)

    async def now(self) -> datetime:
        """The database's time, by which letters are dated."""
        asking = self._queries.now()
        ((micros,),) = await self._pool.run(lambda connection: connection.read(asking))
        assert isinstance(micros, int)  # noqa: S101 (the query has no other answer)
        return _EPOCH + timedelta(microseconds=micros)

    async def count(self, choice: DeadLetterSelection) -> list[DeadLetterCount]:
        """How many letters are chosen, by partition, state and type of error."""
        counting = self._queries.count(choice)
        rows = await self._pool.run(lambda connection: connection.read(counting))
        return [
            DeadLetterCount(PartitionKey(*map(str, key)), str(state), str(error_type), int(str(count)), int(str(last)))
            for *key, state, error_type, count, last in rows
        ]

    async def page(
        self,
        choice: DeadLetterSelection,
        *,
        after: DeadLetterId | None = None,
        max_count: int = PAGE_COUNT,
        bodies: bool = True,
    ) -> list[DeadLetter]:
        """Letters in the order of their keys. Without ``bodies`` only the rest of each is read."""
        reading = self._queries.page(choice, after=after, max_count=max_count, bodies=bodies)
        rows = await self._pool.run(lambda connection: connection.read(reading))
        return [letter_of(row) for row in rows]

    async def pages(self, choice: DeadLetterSelection, *, bodies: bool = True) -> AsyncIterator[list[DeadLetter]]:
        """All that are chosen, a page at a time. What is added or changed meanwhile may or may not be among them."""
        after = None
        while letters := await self.page(choice, after=after, bodies=bodies):
            yield letters
            after = DeadLetterId.of(letters[-1])

    async def find(self, letter: DeadLetterId, choice: DeadLetterSelection | None = None) -> DeadLetter:
        """One letter, in any state. Raises StoreError where there is none, ConfigError where there are several."""
        found = await self.page(replace(choice or DeadLetterSelection(), state=None, ids=(letter,)), max_count=2)
        if not found:
            raise StoreError(f"there is no dead letter {letter} in {self.address}")
        if len(found) > 1:
            first, second = (DeadLetterId.of(each) for each in found)
            raise ConfigError(f"several groups have a dead letter {letter}: give one id whole, {first} or {second}")
        return found[0]

    async def mark_some(self, choice: DeadLetterSelection, state: DeadLetterState) -> int:
        """Marks some of the letters and says how many; 0 where nothing is left. Those of a redrive are left to it."""
        marking = self._queries.mark_some(choice, state, max_count=CHANGE_COUNT)
        (rows,) = await self._pool.run(lambda connection: connection.write(marking))
        return len(rows)

    async def delete_some(self, choice: DeadLetterSelection) -> int:
        """Removes some of the letters and says how many; 0 where nothing is left. Those of a redrive are left to it."""
        deleting = self._queries.delete_some(choice, max_count=CHANGE_COUNT)
        (rows,) = await self._pool.run(lambda connection: connection.write(deleting))
        return len(rows)

    async def close(self) -> None:
        await self._pool.close()


def sql_address(url: str) -> PostgresAddress | SqliteAddress:
    """The address of a database that may have dead letters. A file that is not there has none, and is not made."""
    address: StoreAddress = parse_store(url)
    if not isinstance(address, (PostgresAddress, SqliteAddress)):
        raise ConfigError("dead letters are in a SQL database: give it as sqlite:///PATH or postgresql://...")
    require_there(address)
    return address


def letter_of(row: Row | Sequence[object]) -> DeadLetter:
    """The letter in a row of :meth:`~hubline.sql.dead_letter_queries.DeadLetterQueries.page`."""
    namespace, hub, group, *own = row
    try:
        return read_letter(GroupKey(str(namespace), str(hub), str(group)), own)
    except (ValueError, TypeError, AssertionError) as error:
        partition, sequence = own[:2]
        raise RecordDamaged(
            f"the dead letter {namespace}/{hub}/{group}/{partition}/{sequence} does not read back "
            f"({type(error).__name__}): fix its row in hubline_dead_letter, or delete it",
            partition=str(partition),
            record="dead letter",
        ) from None


def _database(address: PostgresAddress | SqliteAddress) -> Database:
    """Drivers are loaded when they are needed: SQLite must not cost PostgreSQL's."""
    match address:
        case PostgresAddress(conninfo):
            from hubline.sql.postgres import PostgresDatabase

            return PostgresDatabase(conninfo)
        case SqliteAddress(path):
            from hubline.sql.sqlite import SqliteDatabase

            return SqliteDatabase(path)
