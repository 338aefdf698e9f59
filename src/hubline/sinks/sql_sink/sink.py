"""Exactly once into a SQL database: rows, dead letters and the checkpoint in one transaction.

A partition is opened by taking its fence: the epoch in its checkpoint row, in the sink's own database. What then
happens for each batch, and what is left behind if the process dies there, is in `partition_transaction`.

Everything here is synchronous. A sink may be used from many threads, a partition from one at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import pyarrow as pa

from hubline.addresses.option_checks import checked
from hubline.addresses.option_kinds import Count, Meant, Named, PositiveSeconds, Range, Unit
from hubline.addresses.store_address import SqlAddress, SqliteAddress, parse_store
from hubline.errors import ConfigError
from hubline.model.duplicates import DropDuplicates
from hubline.model.keys import PartitionKey
from hubline.model.ownership import Checkpoint
from hubline.sinks.sql_sink.connection import SinkConnection
from hubline.sinks.sql_sink.database import SinkDatabase
from hubline.sinks.sql_sink.opened_partition import OpenedPartition
from hubline.sinks.sql_sink.partition_transaction import Move, PartitionTransaction
from hubline.sinks.sql_sink.settings import (
    DUPLICATE_WINDOW_SECONDS,
    MAX_CONNECTIONS,
    TRANSACTION_TIMEOUT_SECONDS,
    SinkSettings,
)
from hubline.sinks.sql_sink.table_schema import TableName, checked_name
from hubline.sinks.sql_sink.transaction import Transaction


def _meant_url(value: object) -> str | None:
    return f"{f'sqlite:///{value}'!a}" if isinstance(value, Path) else None


class SqlSink:
    """Write rows, dead letters and checkpoints to a SQL database, in one transaction: exactly once.

    It connects when it is first used. A sink can be pickled; its connections stay behind.

    Args:
        url: `sqlite:///PATH` or `postgresql://...`, or `env:NAME` or `file:PATH` with one of them.
        table: The table of the rows. Default: None; handlers write by their own SQL (`tx`).
        upsert_key: The columns of a unique index. A row with the same values takes the place of the one that is there.
            Default: none; rows are inserted.
        create_table: Create the table, with the columns of the first rows, if it is missing. Default: False.
        keep_dead_letter_bodies: Store the bodies of dead letters, since hubs expire events. Default: True.
        drop_duplicates: Leave out events that an earlier stage published twice: `"ordered"` if their ids arrive in
            order, or `"any_order"`. Default: `"off"`.
        duplicate_window_seconds: How long `"any_order"` remembers ids, in seconds. Default: 7 days.
        max_connections: The most connections, and transactions at a time. SQLite has one. Default: 4.
        transaction_timeout_seconds: A transaction without an answer for so long is ended by PostgreSQL. Default: 60.

    Attributes:
        database: For hubline's own parts: the connections, and a look at the table.

    Raises:
        ConfigError: An argument is not valid. The message says what to write instead.

    Example:
        sink = hubline.SqlSink("sqlite:///readings.db", table="readings", create_table=True)
        processor = hubline.Processor(
            "local:./data/telemetry",
            "sqlite:///state.db",
            consumer_group="store",
            starting_position="earliest",
            sink=sink,
        )
    """

    @checked
    def __init__(
        self,
        url: Annotated[str, Named("the address of a SQL database, such as 'sqlite:///results.db'"), Meant(_meant_url)],
        *,
        table: str | None = None,
        upsert_key: str | Sequence[str] = (),
        create_table: bool = False,
        keep_dead_letter_bodies: bool = True,
        drop_duplicates: DropDuplicates = "off",
        duplicate_window_seconds: PositiveSeconds = DUPLICATE_WINDOW_SECONDS,
        max_connections: Count = MAX_CONNECTIONS,
        transaction_timeout_seconds: Annotated[int, Unit("seconds"), Range(least=1)] = TRANSACTION_TIMEOUT_SECONDS,
    ) -> None:
        address = parse_store(url)
        if not isinstance(address, SqlAddress):
            raise ConfigError("the sink is not a SQL database. Give it as sqlite:///PATH or postgresql://...")
        keys = (upsert_key,) if isinstance(upsert_key, str) else tuple(upsert_key)
        if (keys or create_table) and table is None:
            raise ConfigError("upsert_key and create_table need a table. Name one, for example table='readings'.")
        settings = SinkSettings(
            address,
            None if table is None else TableName.parse(table),
            tuple(checked_name("column", name) for name in keys),
            create_table,
            keep_dead_letter_bodies,
            drop_duplicates,
            duplicate_window_seconds,
            1 if isinstance(address, SqliteAddress) else max_connections,
            transaction_timeout_seconds,
        )
        self.database = self._database_of(settings)

    def _database_of(self, settings: SinkSettings) -> SinkDatabase:
        return SinkDatabase(settings)

    def __getstate__(self) -> SinkSettings:
        return self.database.settings  # connections stay behind

    def __setstate__(self, settings: SinkSettings) -> None:
        self.database = self._database_of(settings)

    def __eq__(self, other: object) -> bool:
        """Whether both do the same."""
        return type(other) is type(self) and other.database.settings == self.database.settings

    def __hash__(self) -> int:
        return hash(self.database.settings)

    def __repr__(self) -> str:
        return str(self.database)

    @property
    def address(self) -> SqlAddress:
        """The database of the rows, and of all that is kept beside them."""
        return self.database.settings.address

    @property
    def upsert_key(self) -> tuple[str, ...]:
        """The columns by which a row takes the place of another one; empty where rows are inserted."""
        return self.database.settings.upsert_key

    @property
    def drop_duplicates(self) -> DropDuplicates:
        """How duplicates are known."""
        return self.database.settings.drop_duplicates

    @property
    def max_connections(self) -> int:
        """How many transactions there are at a time: one in SQLite."""
        return self.database.settings.max_connections

    def open(self, key: PartitionKey, epoch: int) -> OpenedPartition:
        """Take a partition for an epoch. Continue after the `checkpoint` of what is returned.

        Args:
            key: The partition, with its hub and consumer group.
            epoch: The number of this owner: higher than that of any owner before.

        Raises:
            Fenced: A higher epoch holds the partition.
        """
        with self.database.connection() as connection:
            connection.end_stalled(key, seconds_max=self.database.settings.transaction_timeout_seconds)
            return self._opened(connection, key, epoch, connection.take_fence(key, epoch))

    def join(self, key: PartitionKey, epoch: int) -> OpenedPartition:
        """Opens a partition under the epoch that holds it, or under this one if that is lower.

        Use it where several writers may work on a partition, and find out by the checkpoint what is left to do.

        Args:
            key: The partition, with its hub and consumer group.
            epoch: The epoch to take it under, if no higher one holds it.

        Raises:
            Fenced: A higher epoch took the partition in between.
        """
        with self.database.connection() as connection:
            connection.end_stalled(key, seconds_max=self.database.settings.transaction_timeout_seconds)
            held_epoch, checkpoint = connection.read_fence(key)
            if held_epoch >= epoch:
                # Read after the checkpoint: a writer that moves both in between is noticed when the row is locked.
                return self._opened(connection, key, held_epoch, checkpoint)
        return self.open(key, epoch)

    def check(self, schema: pa.Schema) -> str | None:
        """Compares rows of a schema with the table. Changes nothing.

        Args:
            schema: The columns of the rows.

        Returns:
            None if the rows fit, or the statement that will make the table.

        Raises:
            SinkError: The rows do not fit, which the error shows; the table is missing and not to be made; no unique
                index matches the key; or the user may not write to the table.
        """
        with self.database.connection() as connection:
            return self.database.plans.check(connection, schema)

    def transaction(self, moves: Iterable[Move]) -> Transaction:
        """Return a transaction that moves several partitions at once, which this sink opened.

        Args:
            moves: What each partition moves to.
        """
        return PartitionTransaction(self.database, moves)

    def close(self) -> None:
        """Ends the connections that are idle. The sink can be used again: it opens new ones."""
        self.database.pool.close()

    def _opened(
        self, connection: SinkConnection, key: PartitionKey, epoch: int, checkpoint: Checkpoint | None
    ) -> OpenedPartition:
        partition = OpenedPartition(self.database, key, epoch, checkpoint)
        if self.drop_duplicates == "ordered":
            partition.marks = connection.ids.read_marks(key)
        return partition
