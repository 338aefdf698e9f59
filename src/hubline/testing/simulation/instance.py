"""What a simulation gives the functions of a test: an instance to build, and the world that its instances share."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

from hubline.ports import CheckpointStore, Hub
from hubline.testing.simulation.faults import RemoteHub, RemoteStore, Weather, call_over_network
from hubline.testing.simulation.recording_sink import SimulatedDatabase
from hubline.testing.simulation.virtual_loop import SimProcess, World

T = TypeVar("T")


class SimulatedWorld:
    """One seed's run: what all instances share, and what is left of it in the end.

    Attributes:
        seed: The seed.
        durable: What survives crashes, as a database does: anything that instances write by a name. Empty at first.
    """

    def __init__(self, seed: int, world: World) -> None:
        self.seed = seed
        self.durable: dict[str, Any] = {}
        self._world = world

    @property
    def now(self) -> float:
        """The virtual time, in seconds since the run began."""
        return self._world.now

    @property
    def database(self) -> sqlite3.Connection:
        """The SQLite database, in memory, of every `SqlSink` of the run: to create tables in, and to look into."""
        return self.simulated.connection.driver

    @cached_property
    def simulated(self) -> SimulatedDatabase:
        """The same, as hubline's own parts need it."""
        return SimulatedDatabase()

    def close(self) -> None:
        if "simulated" in vars(self):
            self.simulated.close()


class Instance:
    """One process of the program, about to start. What `build` keeps in variables dies with it.

    Attributes:
        name: Its name. A process that is started again after a crash has the name of the one before.
        hub: The hub as the process sees it: late, and at times unreachable.
        store: The checkpoint store as the process sees it: calls are late, fail before or after their effect.
        world: What it shares with the other instances, before and after it.
        rng: Randomness of its own, the same for the same seed.
    """

    def __init__(
        self,
        name: str,
        world: SimulatedWorld,
        process: SimProcess,
        weather: Weather,
        *,
        hub: Hub,
        store: CheckpointStore,
        rng: random.Random,
    ) -> None:
        self.name = name
        self.world = world
        self.rng = rng
        self.hub: Hub = RemoteHub(process, hub, weather)
        self.store: CheckpointStore = RemoteStore(process, store, weather)
        self._process = process
        self._weather = weather

    async def call(self, function: Callable[[], T]) -> T:
        """Calls a function as if over the network: what it does to `world` is what a server did.

        The call is late. It takes effect even if the process dies meanwhile.

        Raises:
            ConnectionError: The call failed before its effect, or after it: its answer was lost.
        """
        return await call_over_network(self._process, self._weather, function, failure=ConnectionError)
