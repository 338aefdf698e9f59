"""A SQL sink as simulated processes see it: the production code on SQLite in memory, over a bad network.

A call takes effect at one moment of virtual time, whatever becomes of its process meanwhile. It may fail before its
effect, or after it, so that the answer to a commit is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from hubline.errors import StoreUnavailable
from hubline.model.keys import PartitionKey
from hubline.model.ownership import Checkpoint
from hubline.sinks import SqlSink
from hubline.sinks.sql_sink.connection import CommitPlan, FenceState
from hubline.sinks.sql_sink.database import SinkDatabase
from hubline.sinks.sql_sink.settings import SinkSettings
from hubline.sinks.sql_sink.sqlite import SqliteSinkConnection
from hubline.sql.sqlite import SqliteConnection, SqliteDatabase
from hubline.testing.simulation.faults import Weather
from hubline.testing.simulation.virtual_loop import SimProcess

_MEMORY = Path(":memory:")


class SimulatedDatabase:
    """The database that all simulated processes write to. Lives as long as the simulation.

    Attributes:
        committed: Called when a transaction takes effect, with how far a partition came, and the epoch that holds it.
    """

    def __init__(self) -> None:
        self.database = SqliteDatabase(_MEMORY)
        self.connection: SqliteConnection = self.database.connect()
        self.committed: Callable[[Checkpoint, int], None] = lambda *_: None

    def dead_letters(self, partition: str) -> list[int]:
        query = "SELECT sequence_number FROM hubline_dead_letter WHERE partition_id = ? ORDER BY sequence_number"
        return [sequence for (sequence,) in self.connection.driver.execute(query, [partition])]

    def close(self) -> None:
        self.connection.close()


class RemoteSink(SqlSink):
    """A process's sink: with the given options, but into the simulated database, and behind the weather."""

    def __init__(
        self, settings: SinkSettings, process: SimProcess, database: SimulatedDatabase, weather: Weather
    ) -> None:
        settings = replace(settings, transaction_timeout_seconds=1)
        self.database = _RemoteDatabase(settings, process, database, weather)


class _RemoteDatabase(SinkDatabase):
    def __init__(
        self, settings: SinkSettings, process: SimProcess, simulated: SimulatedDatabase, weather: Weather
    ) -> None:
        super().__init__(settings)
        self._process = process
        self._simulated = simulated
        self._weather = weather

    def pause(self, seconds: float) -> None:
        """A call is one moment of the simulation: what has not cleared by then does not within it."""

    def connect(self) -> SqliteSinkConnection:
        return _RemoteConnection(self._process, self._simulated, self._weather)


class _RemoteConnection(SqliteSinkConnection):
    """Calls do not overlap, so that all connections are the same one behind their own weather."""

    def __init__(self, process: SimProcess, database: SimulatedDatabase, weather: Weather) -> None:
        super().__init__(database.database, database.connection)
        self._process = process
        self._committed = database.committed
        self._weather = weather

    def take_fence(self, key: PartitionKey, epoch: int) -> Checkpoint | None:
        self._set_out()
        checkpoint = super().take_fence(key, epoch)
        self._come_back()
        return checkpoint

    def begin(self, keys: Sequence[PartitionKey]) -> list[FenceState]:
        self._set_out()
        return super().begin(keys)

    def commit(self, plan: CommitPlan) -> None:
        try:
            self._set_out()
        except StoreUnavailable:
            self.rollback()  # as the server does when it finds the line dead
            raise
        super().commit(plan)
        for checkpoint, epoch in plan.checkpoints:
            self._committed(checkpoint, epoch)
        self._come_back()

    def close(self) -> None:
        self.rollback()

    def _set_out(self) -> None:
        if self._weather.is_store_down:
            self._weather.count("sink_down")
            raise StoreUnavailable("the simulated sink is down. hubline tries again.")
        if self._weather.strikes(self._process.world, "sink_fail_before", self._weather.fail_before):
            raise StoreUnavailable("the simulated sink failed before the effect. hubline tries again.")

    def _come_back(self) -> None:
        if self._weather.strikes(self._process.world, "sink_fail_after", self._weather.fail_after):
            raise StoreUnavailable("the simulated sink failed after the effect. hubline tries again.")
