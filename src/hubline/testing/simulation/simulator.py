"""The simulator: a group of production processors in virtual time, with faults drawn from a seed.

A :class:`Simulation` runs the processors that a :class:`Program` builds, through a scenario that a seed stands for:
partitions, instances, a schedule of faults, bad weather. Then the weather clears, and the program's laws are asked. The
laws in :mod:`hubline.testing.simulation.ledger` hold at every step. The same seed gives the same run.

A program is a user's (:mod:`.simulate`), or hubline's own (:mod:`.own_seeds`).
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
from typing import Protocol

from hubline.coordination.strategies import Strategy
from hubline.errors import ConfigError, HublineError
from hubline.model.events import NewEvent
from hubline.model.keys import GroupKey
from hubline.model.ownership import Checkpoint
from hubline.processor import LeaseOptions, Processor
from hubline.sinks import SqlSink
from hubline.testing.memory_hub import MemoryHub
from hubline.testing.simulation.final_checks import Objection
from hubline.testing.simulation.instance import Instance, SimulatedWorld
from hubline.testing.simulation.ledger import Ledger, LedgerStore
from hubline.testing.simulation.observed import Observer
from hubline.testing.simulation.recording_sink import RemoteSink
from hubline.testing.simulation.scenario import FAULTY_SECONDS, Scenario
from hubline.testing.simulation.virtual_loop import SimProcess, World, run_now
from hubline.testing.simulation.virtual_processor import make_virtual
from hubline.tracebacks import text_of

CLOCK_ERROR = 0.001
"""How wrong the rate of a process's clock may be: a part in a thousand, ten times what a bad quartz has."""


class Program(Protocol):
    """What is simulated."""

    def build(self, instance: Instance, simulation: Simulation) -> Processor:
        """The processor of a process that starts. Called for each one, in the world and not in the process."""
        ...

    def event(self, number: int, rng: random.Random) -> NewEvent:
        """The event of this number, counted from 0."""
        ...

    def objections(self, simulation: Simulation) -> Iterator[Objection]:
        """The laws that are broken now that there are no more faults; at the end, none may be."""
        ...

    def after(self, simulation: Simulation) -> None:
        """Called at the end, unless a law was broken before. What it raises is a broken law, too."""
        ...


@dataclass(slots=True)
class Report:
    """What came of a seed. An empty ``violations`` is success.

    ``error`` is what the user's code raised to end it, ``last_failure`` what a handler raised last before a violation.
    """

    seed: int
    violations: list[str]
    faults: Counter[str]
    events_count: int
    repeats_count: int
    steps_count: int
    trace: list[str] = field(repr=False)
    error: Exception | None = None
    last_failure: Exception | None = None

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()


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
    """One run of a program in a scenario.

    Attributes:
        lease: The lease of the processors, as the first one has it once it is there.
        strategy: Their strategy, likewise.
        group: Their consumer group, likewise.
        has_sink: Whether they write into a sink.
        error: What the user's code raised, which ended the run.
    """

    def __init__(self, scenario: Scenario, program: Program) -> None:
        self.scenario = scenario
        self.program = program
        self.world = World(f"world {scenario.seed}")
        self.weather = replace(scenario.weather, counts={})
        self.ledger = Ledger(self.world)
        self.store = LedgerStore(self.world, self.ledger)
        self.hub = MemoryHub(scenario.partitions_count, now=lambda: self.world.now)
        self.shared = SimulatedWorld(scenario.seed, self.world)
        self.lease: LeaseOptions = scenario.options.lease
        self.strategy: Strategy = scenario.strategy
        self.group = GroupKey(self.hub.namespace, self.hub.name, "simulated")
        self.hosts: list[_Host] = []
        self.events_count = 0
        self.has_sink = False
        self.error: Exception | None = None
        self._is_producing = True

    def run(self) -> Report:
        for _ in range(self.scenario.members_count):
            self.world.call_later(self.world.rng.uniform(0, 2), self.join)
        for second, kind in self.scenario.faults:
            self.world.call_at(second, lambda kind=kind: self._inject(kind))  # type: ignore[misc]
        self._produce()
        self.world.run_until(FAULTY_SECONDS)
        if not self.world.failures:
            self._clear_weather()
            self._recover()
        self.world.look_for_failed_tasks()
        if not self.world.failures:
            self._check()
        report = self._report()
        self.world.end()
        self.shared.close()
        return report

    def _check(self) -> None:
        try:
            self.program.after(self)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer
            self.broken_by(error)
        for law, what in self.program.objections(self):
            self.ledger.object(law, what)

    def broken_by(self, error: Exception) -> None:
        """The user's code objects: the run ends."""
        self.error = self.error or error
        self.ledger.object(type(error).__name__, text_of(error).partition("\n")[0])

    def _report(self) -> Report:
        return Report(
            seed=self.scenario.seed,
            violations=list(self.world.failures),
            faults=Counter(self.weather.counts),
            events_count=self.events_count,
            repeats_count=sum(self.ledger.partition(p).repeats_count for p in self.hub.partition_ids),
            steps_count=self.world.steps_count,
            trace=list(self.ledger.trace),
            error=self.error,
            # Its traceback keeps the whole simulation, of which a report of success needs nothing.
            last_failure=self.ledger.last_failure if self.world.failures else None,
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
        instance = Instance(name, self.shared, process, self.weather, hub=self.hub, store=self.store, rng=rng)
        try:
            processor = self.program.build(instance, self)
        except Exception as error:  # noqa: BLE001 - the user's
            self.broken_by(error)
            return
        self._adopt(processor, instance, process)
        self.hosts.append(_Host(process, processor))
        self.ledger.note(f"{process.name} starts")
        process.spawn(self._start(process, processor))

    def _adopt(self, processor: Processor, instance: Instance, process: SimProcess) -> None:
        """Makes a processor one of the simulation."""
        make_virtual(processor, instance.rng)
        processor.owner_id = instance.name
        options, sink = processor._options, processor._sink  # noqa: SLF001
        if not self.hosts:
            self.lease, self.strategy = options.lease, processor._strategy  # noqa: SLF001
            self.group = GroupKey(self.hub.namespace, self.hub.name, processor.consumer_group)
            self.ledger.lease_seconds = self.lease.lease_seconds * (1 + 2 * CLOCK_ERROR)
            self.ledger.may_skip = options.on_failure != "stop"
            self.has_sink = sink is not None
            self.ledger.may_repeat = self.has_sink and self.ledger.may_skip
        observer = Observer(process.name, self.ledger, self.broken_by)
        observer.observe(processor._registry.handlers)  # noqa: SLF001
        if processor._dead_letters is not None:  # noqa: SLF001
            processor._dead_letters = observer.observed(processor._dead_letters)  # noqa: SLF001
        if sink is not None:
            processor._sink = self._remote(sink, process)  # noqa: SLF001

    def _remote(self, sink: SqlSink, process: SimProcess) -> RemoteSink:
        process.call_latency = lambda: self.weather.latency(self.world)
        simulated = self.shared.simulated
        simulated.committed = self._committed
        return RemoteSink(sink.database.settings, process, simulated, self.weather)

    def _committed(self, checkpoint: Checkpoint, epoch: int) -> None:
        self.ledger.committed(checkpoint, epoch, lambda: self.shared.simulated.dead_letters(checkpoint.key.partition))

    async def _start(self, process: SimProcess, processor: Processor) -> None:
        try:
            await processor.start()
        except ConfigError as error:
            self.broken_by(error)
        except HublineError as error:
            # As a supervisor would: the process ends, and another one is started in its place.
            self.ledger.note(f"{process.name} could not start: {error}")
            process.kill()
            self.world.call_later(1.0, lambda: self.join(processor.owner_id))

    # Faults

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
            seconds = rng.uniform(1, 2 * self.lease.lease_seconds)
            self.world.call_later(seconds, lambda: setattr(self.weather, "is_store_down", False))
        elif kind == "store_clock_jump":
            self.store.clock_offset += rng.uniform(-2, 2) * self.lease.lease_seconds
        elif kind == "operator_reset":
            self._reset(rng.choice(self.hub.partition_ids))
        elif up and kind == "pause":
            rng.choice(up).process.pause(rng.uniform(0.1, 2.5) * self.lease.lease_seconds)
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
            delay = self.world.rng.uniform(1, self.lease.lease_seconds)
            self.world.call_later(delay, lambda: self._restart(host))

    def _restart(self, host: _Host) -> None:
        host.process.kill()
        self.join(host.processor.owner_id)

    # Events

    def _produce(self) -> None:
        if not self._is_producing:
            return
        count = self.world.rng.randint(1, 8)
        partition = self.world.rng.choice(self.hub.partition_ids)
        numbers = range(self.events_count, self.events_count + count)
        self.hub.append_events(partition, [self.program.event(number, self.world.rng) for number in numbers])
        self.events_count += count
        self.world.call_later(self.world.rng.expovariate(self.scenario.events_per_second / 4.5), self._produce)

    # The end

    @property
    def is_recovering(self) -> bool:
        """Whether there are no more faults, nor events."""
        return not self._is_producing

    def _clear_weather(self) -> None:
        self._is_producing = False
        self.weather.clear()
        # What was queued as a late fault must not strike after the weather has cleared.
        for host in self.hosts:
            host.process.paused_until = min(host.process.paused_until, self.world.now)
            if host.process.is_doomed:
                host.process.kill()
        if not any(host.is_up for host in self.hosts):
            self.join()

    def _recover(self) -> None:
        """Until no law has been broken for a lease and a handover: by then, partitions that are to move have moved.

        After that nothing would happen any more, for as long as the worst seeds take to recover.
        """
        ends_at = self.world.now + self._recovery_seconds()
        settled_at: float | None = None
        while self.world.now < ends_at and not self.world.failures:
            self.world.run_until(min(ends_at, self.world.now + self.lease.load_balancing_interval_seconds))
            if next(self.program.objections(self), None) is not None:
                settled_at = None
            elif settled_at is None:
                settled_at = self.world.now
            elif self.world.now - settled_at >= self.lease.lease_seconds + self.lease.handover_timeout_seconds:
                return

    def _recovery_seconds(self) -> float:
        options, lease = self.hosts[0].processor._options, self.lease  # noqa: SLF001
        # A crash costs the lease, a handover that is not answered the grace; balanced members then claim one
        # partition a cycle, and a partition that failed may be backing off.
        cycles = 4 + len(self.hub.partition_ids)
        return (
            3 * (lease.lease_seconds + lease.handover_timeout_seconds)
            + cycles * lease.load_balancing_interval_seconds
            + 2 * options.reconnect_backoff.max_backoff_seconds
            + 30
        )


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Decorates what makes a simulation, runs it and lets it go.

    A collection in mid-run takes a tenth of the time, and finalizes at a moment that no seed decides. One while the
    simulation is still there keeps all of it, and looks through it again with those of later seeds.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
