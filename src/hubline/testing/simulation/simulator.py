"""The simulator: a group of production processors in virtual time, with faults drawn from a seed.

``simulate(seed)`` draws a scenario (partitions, members, options, a schedule of faults), runs it, lets the weather
clear, and then asks for liveness: every partition owned by a living member, shares even, every event handled and
checkpointed. The laws in :mod:`hubline.testing.simulation.ledger` hold at every step. The same seed gives the same run.

With ``into_sink``, the same processors write into a database (:mod:`.recording_sink`), where every event has to be at
the end: in the table or among the dead letters, once, and in order.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa

from hubline.errors import HublineError
from hubline.model.events import EventBatch
from hubline.model.keys import GroupKey
from hubline.model.ownership import Checkpoint
from hubline.model.positions import Position
from hubline.processor import PartitionContext, Processor, ReleaseReason
from hubline.testing.memory_hub import MemoryHub
from hubline.testing.simulation.faults import RemoteHub, RemoteStore
from hubline.testing.simulation.final_checks import check_liveness, check_sink
from hubline.testing.simulation.ledger import Ledger, LedgerStore, Session
from hubline.testing.simulation.recording_sink import BAD, RemoteSink, SimulatedDatabase, rows_of
from hubline.testing.simulation.scenario import FAULTY_SECONDS, Scenario
from hubline.testing.simulation.virtual_loop import SimProcess, World, run_now
from hubline.testing.simulation.virtual_processor import VirtualProcessor

GROUP = "simulated"

CLOCK_ERROR = 0.001
"""How wrong the rate of a process's clock may be: a part in a thousand, ten times what a bad quartz has."""

BAD_SHARE = 0.05
"""How many events the table of a sink refuses."""


@dataclass(slots=True)
class Report:
    """What came of a seed. An empty ``violations`` is success."""

    seed: int
    violations: list[str]
    faults: Counter[str]
    events_count: int
    repeats_count: int
    steps_count: int
    trace: list[str] = field(repr=False)

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()


def simulate(seed: int, *, into_sink: bool = False) -> Report:
    """Runs one seed to its end."""
    with _without_garbage_collection():
        return Simulation(Scenario.draw(seed, into_sink=into_sink)).run()


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """A collection in mid-run takes a tenth of the time, and finalizes at a moment that no seed decides."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(slots=True)
class _Host:
    """A simulated process with a processor in it."""

    process: SimProcess
    processor: Processor
    stopping: asyncio.Task[None] | None = None

    @property
    def is_up(self) -> bool:
        return not self.process.is_doomed and self.stopping is None


class Simulation:
    """One run of a scenario."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.world = World(f"world {scenario.seed}")
        self.weather = replace(scenario.weather, counts={})
        self.ledger = Ledger(
            self.world, lease_seconds=scenario.options.lease.lease_seconds, clock_error=2 * CLOCK_ERROR
        )
        self.store = LedgerStore(self.world, self.ledger)
        self.hub = MemoryHub(scenario.partitions_count, now=lambda: self.world.now)
        self.database = SimulatedDatabase() if scenario.into_sink else None
        self.hosts: list[_Host] = []
        self.events_count = 0
        self._is_producing = True

    @property
    def group(self) -> GroupKey:
        return GroupKey(self.hub.namespace, self.hub.name, GROUP)

    def run(self) -> Report:
        for _ in range(self.scenario.members_count):
            self.world.call_later(self.world.rng.uniform(0, 2), self.join)
        for second, kind in self.scenario.faults:
            self.world.call_at(second, lambda kind=kind: self._inject(kind))  # type: ignore[misc]
        self._produce()
        self.world.run_until(FAULTY_SECONDS)
        self._recover()
        self.world.run_until(self.world.now + self._recovery_seconds())
        self.world.look_for_failed_tasks()
        if not self.world.failures:
            check_liveness(self)
            check_sink(self)
        report = self._report()
        self.world.end()
        if self.database is not None:
            self.database.close()
        return report

    def _report(self) -> Report:
        return Report(
            seed=self.scenario.seed,
            violations=list(self.world.failures),
            faults=Counter(self.weather.counts),
            events_count=self.events_count,
            repeats_count=sum(self.ledger.partition(p).repeats_count for p in self.hub.partition_ids),
            steps_count=self.world.steps_count,
            trace=list(self.ledger.trace),
        )

    # Members

    def join(self, name: str | None = None) -> None:
        """Starts a process; under the name of a dead one, it is that one restarted, unless it already was."""
        name = name or f"host-{len(self.hosts)}"
        if any(host.is_up and host.processor.owner_id == name for host in self.hosts):
            return
        rng = random.Random(f"{self.scenario.seed} {len(self.hosts)}")
        process = SimProcess(  # type: ignore[abstract]
            self.world,
            f"{name}#{len(self.hosts)}",
            rate=1 + rng.uniform(-CLOCK_ERROR, CLOCK_ERROR),
            clock_start=rng.uniform(0, 1e6),
        )
        processor = VirtualProcessor(
            RemoteHub(process, self.hub, self.weather),
            RemoteStore(process, self.store, self.weather),
            consumer_group=GROUP,
            starting_position=Position.earliest(),
            load_balancing=self.scenario.strategy,
            owner_id=name,
            options=self.scenario.options,
            sink=self._sink(process),
            rng=rng,
        )
        self._register_handlers(processor, process, rng)
        self.hosts.append(_Host(process, processor))
        self.ledger.note(f"{process.name} starts")
        process.spawn(self._start(process, processor))

    def _sink(self, process: SimProcess) -> RemoteSink | None:
        if self.database is None:
            return None
        process.call_latency = lambda: self.weather.latency(self.world)
        return RemoteSink(process, self.database, self.weather)

    async def _start(self, process: SimProcess, processor: Processor) -> None:
        try:
            await processor.start()
        except HublineError as error:
            # As a supervisor would: the process ends, and another one is started in its place.
            self.ledger.note(f"{process.name} could not start: {error}")
            process.kill()
            self.world.call_later(1.0, lambda: self.join(processor.owner_id))

    def _register_handlers(self, processor: Processor, process: SimProcess, rng: random.Random) -> None:
        sessions: dict[str, Session] = {}

        @processor.on_assigned
        async def assigned(partition: PartitionContext) -> None:
            sessions[partition.partition_id] = self.ledger.session(
                process.name, partition.partition_id, partition.epoch, partition.initial_checkpoint
            )

        @processor.on_batch
        async def handle(batch: EventBatch, partition: PartitionContext) -> pa.Table | None:
            session = sessions[partition.partition_id]
            self.ledger.handling(session, batch)
            await asyncio.sleep(0 if self._is_recovering else rng.uniform(0, self.scenario.handler_timeout_seconds))
            if not self._is_recovering and rng.random() < self.scenario.handler_failure:
                self.weather.count("handler_failure")
                raise RuntimeError("injected")
            self.ledger.handled(session, batch)
            return rows_of(batch) if self.scenario.into_sink else None

        @processor.on_released
        async def released(partition: PartitionContext, reason: ReleaseReason) -> None:
            self.ledger.note(f"{process.name} released {partition.partition_id} {reason}")

    def _inject(self, kind: str) -> None:
        rng = self.world.rng
        up = [host for host in self.hosts if host.is_up]
        self.weather.count(kind)
        self.ledger.note(f"fault {kind}")
        if kind == "join":
            self.join()
        elif kind == "grow":
            self.hub.grow(len(self.hub.partition_ids) + rng.randint(1, 3))
        elif kind == "store_outage":
            self.weather.is_store_down = True
            seconds = rng.uniform(1, 2 * self.scenario.options.lease.lease_seconds)
            self.world.call_later(seconds, lambda: setattr(self.weather, "is_store_down", False))
        elif kind == "store_clock_jump":
            self.store.clock_offset += rng.uniform(-2, 2) * self.scenario.options.lease.lease_seconds
        elif kind == "operator_reset":
            self._reset(rng.choice(self.hub.partition_ids))
        elif up and kind == "pause":
            rng.choice(up).process.pause(rng.uniform(0.1, 2.5) * self.scenario.options.lease.lease_seconds)
        elif len(up) > 1 and kind == "stop":
            self._stop(rng.choice(up))
        elif up and kind in ("crash", "crash_restart"):
            self._crash(rng.choice(up), is_restarted=kind == "crash_restart" or len(up) == 1)

    def _reset(self, partition: str) -> None:
        """Moves a checkpoint back, or removes it, while the partition is being processed."""
        key = self.group.partition(partition)
        before = self.store.checkpoint_of(key)
        if before is None or self.world.rng.random() < 0.2:
            run_now(self.store.reset_checkpoint(key, None))
        else:
            sequence = self.world.rng.randint(0, before.sequence_number)
            run_now(self.store.reset_checkpoint(key, Checkpoint(key, self.hub.offset_of(sequence), sequence)))

    def _stop(self, host: _Host) -> None:
        host.stopping = host.process.spawn(host.processor.stop())

    def _crash(self, host: _Host, *, is_restarted: bool) -> None:
        # A few callbacks later, so that it falls on any await of whatever runs on.
        steps = self.world.rng.randint(0, 200)
        self.ledger.note(f"{host.process.name} is killed in {steps} steps")
        host.process.kill(after_steps=steps)
        if is_restarted:
            delay = self.world.rng.uniform(1, self.scenario.options.lease.lease_seconds)
            self.world.call_later(delay, lambda: self._restart(host))

    def _restart(self, host: _Host) -> None:
        host.process.kill()
        self.join(host.processor.owner_id)

    # Events

    def _produce(self) -> None:
        if not self._is_producing:
            return
        ids = self.hub.partition_ids
        count = self.world.rng.randint(1, 8)
        self.hub.append(self.world.rng.choice(ids), self._bodies(count))
        self.events_count += count
        self.world.call_later(self.world.rng.expovariate(self.scenario.events_per_second / 4.5), self._produce)

    def _bodies(self, count: int) -> list[bytes]:
        if not self.scenario.into_sink:
            return [b"x"] * count
        return [BAD if self.world.rng.random() < BAD_SHARE else b"x" for _ in range(count)]

    # The end

    @property
    def _is_recovering(self) -> bool:
        return not self._is_producing

    def _recover(self) -> None:
        self._is_producing = False
        self.weather.clear()
        # What was queued as a late fault must not strike after the weather has cleared.
        for host in self.hosts:
            host.process.paused_until = min(host.process.paused_until, self.world.now)
            if host.process.is_doomed:
                host.process.kill()
        if not any(host.is_up for host in self.hosts):
            self.join()

    def _recovery_seconds(self) -> float:
        lease = self.scenario.options.lease
        # A crash costs the lease, a hand-over that is not answered the grace; balanced members then claim one
        # partition a cycle, and a partition that failed may be backing off.
        cycles = 4 + len(self.hub.partition_ids)
        reopen = self.scenario.options.reconnect_backoff.max_backoff_seconds
        return (
            3 * (lease.lease_seconds + lease.handover_timeout_seconds)
            + cycles * lease.load_balancing_interval_seconds
            + 2 * reopen
            + 30
        )
