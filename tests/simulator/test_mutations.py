"""The code broken on purpose, one way a test: the simulator has to see every one.

A mutation replaces one small piece of production code by one with a plausible mistake.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from hubline.checkpoint_stores.memory import MemoryStore
from hubline.coordination import fair_share
from hubline.coordination.dispatcher import Dispatcher
from hubline.coordination.lease_keeper import LeaseKeeper
from hubline.coordination.snapshot import Snapshot
from hubline.coordination.strategies import Greedy, Plan
from hubline.errors import HandlerFailed
from hubline.hubs.event_buffer import EventBuffer
from hubline.model.events import EventBatch
from hubline.model.keys import PartitionKey
from hubline.model.ownership import Checkpoint, Member, Ownership, ReleaseReason
from hubline.model.positions import Position
from hubline.processor.checkpointer import Checkpointer
from hubline.processor.delivery.without_sink import DeliveryWithoutSink
from hubline.processor.handlers.caller import HandlerCaller
from hubline.processor.processor_run import ProcessorRun
from hubline.sinks import Move
from hubline.sinks.sql_sink.connection import CommitPlan
from hubline.sinks.sql_sink.partition_transaction import PartitionTransaction
from hubline.sinks.sql_sink.sqlite import SqliteSinkConnection
from hubline.sql.sqlite import QUERIES
from hubline.testing.simulation.own_seeds import run_seed

SEEDS_MAX = 150
"""Most mutations are seen within a dozen seeds; beyond this one counts as missed."""

Patch = Callable[[pytest.MonkeyPatch], None]
MUTATIONS: dict[str, tuple[Patch, set[str], int]] = {}


def mutation(*laws: str, first_seed: int = 0) -> Callable[[Patch], Patch]:
    """Registers a mutation and the laws of which it must break one. A later first seed only saves time."""

    def register(patch: Patch) -> Patch:
        MUTATIONS[patch.__name__] = (patch, set(laws), first_seed)
        return patch

    return register


@mutation("one owner", "lease", "order", "liveness")
def a_lost_claim_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    async def claim(self: Dispatcher, partitions: list[str], snapshot: Snapshot) -> None:
        claims = [self._claim_of(partition, snapshot.ownerships.get(partition)) for partition in partitions]
        await self._calls.claim(claims)
        for ownership in claims:
            self._leases.add(ownership, asyncio.get_running_loop().time())
            self._holder.open(ownership)

    monkeypatch.setattr(Dispatcher, "_claim", claim)


@mutation("one owner")
def a_claim_keeps_the_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Dispatcher._claim_of

    def claim_of(self: Dispatcher, partition: str, record: Ownership | None) -> Ownership:
        claim = original(self, partition, record)
        return Ownership(claim.key, claim.owner_id, max(1, claim.epoch - 1), claim.version)

    monkeypatch.setattr(Dispatcher, "_claim_of", claim_of)


@mutation("not past handled")
def the_checkpoint_comes_before_the_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    original = DeliveryWithoutSink._deliver_batch

    async def deliver(self: DeliveryWithoutSink, batch: EventBatch) -> None:
        await self._checkpointer.mark_handled(batch)
        await original(self, batch)

    monkeypatch.setattr(DeliveryWithoutSink, "_deliver_batch", deliver)


@mutation("order")
def resuming_is_inclusive(monkeypatch: pytest.MonkeyPatch) -> None:
    def resume(self: Checkpoint) -> Position:
        return Position.offset(self.offset, inclusive=True)

    monkeypatch.setattr(Checkpoint, "resume", property(resume))


@mutation("fence", "forward", "not past handled")
def the_checkpoint_update_is_not_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    original = MemoryStore.update_checkpoint

    async def update(self: MemoryStore, checkpoint: Checkpoint, *, epoch: int) -> None:
        held = self._fences[checkpoint.key].epoch
        await original(self, checkpoint, epoch=held)

    monkeypatch.setattr(MemoryStore, "update_checkpoint", update)


@mutation("fence")
def the_fence_lets_a_lower_epoch_in(monkeypatch: pytest.MonkeyPatch) -> None:
    original = MemoryStore.fence

    async def fence(self: MemoryStore, key: PartitionKey, epoch: int) -> Checkpoint | None:
        if (held := self._fences.get(key)) is not None:
            held.epoch = min(held.epoch, epoch)
        return await original(self, key, epoch)

    monkeypatch.setattr(MemoryStore, "fence", fence)


@mutation("forward")
def a_checkpoint_may_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    original = MemoryStore.update_checkpoint

    async def update(self: MemoryStore, checkpoint: Checkpoint, *, epoch: int) -> None:
        await original(self, checkpoint, epoch=epoch)
        self._fences[checkpoint.key].checkpoint = checkpoint

    monkeypatch.setattr(MemoryStore, "update_checkpoint", update)
    # The processor's own check hides the store's: without both, late writes of one owner overtake each other.
    write = Checkpointer.write

    async def write_late(self: Checkpointer, checkpoint: Checkpoint) -> None:
        self.written_sequence = None
        self._lock = asyncio.Lock()
        await write(self, checkpoint)

    monkeypatch.setattr(Checkpointer, "write", write_late)


@mutation("lease", first_seed=10)
def a_lease_that_ran_out_is_not_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeaseKeeper, "is_current", lambda self, partition, epoch: True)


@mutation("lease", first_seed=100)
def a_lease_counts_from_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    original = LeaseKeeper._keep

    def keep(self: LeaseKeeper, ownership: Ownership, sent_at: float) -> None:
        original(self, ownership, asyncio.get_running_loop().time())

    monkeypatch.setattr(LeaseKeeper, "_keep", keep)


@mutation("no gap")
def a_failed_batch_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    original = HandlerCaller.call

    async def call(self: HandlerCaller, batch: EventBatch, *arguments: Any) -> object:
        with suppress(HandlerFailed):
            return await original(self, batch, *arguments)
        return None

    monkeypatch.setattr(HandlerCaller, "call", call)


@mutation("no gap", "liveness")
def the_rest_of_a_cut_batch_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    original = EventBuffer.take

    def take(self: EventBuffer, max_count: int, **options: Any) -> EventBatch:
        batch = original(self, max_count, **options)
        if self._pieces:
            rest = self._pieces[0].left
            if rest.first_sequence == batch.last_sequence + 1 and len(rest) == 1:
                self._hold(-self._pieces.popleft().bytes_count)
                self._count -= 1
        return batch

    monkeypatch.setattr(EventBuffer, "take", take)


@mutation("no repeats", first_seed=30)
def a_hand_over_does_not_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReleaseReason, "drains", property(lambda self: False))


@mutation("no repeats", "liveness", first_seed=30)
def a_hand_over_does_not_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: Checkpointer) -> None:
        return

    monkeypatch.setattr(Checkpointer, "write_last", nothing)


@mutation("no repeats", "lease", first_seed=30)
def a_living_owner_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Greedy.plan

    def plan(self: Greedy, snapshot: Snapshot, rng: Any) -> Plan:
        asked = original(self, snapshot, rng)
        return Plan(claims=asked.claims, steals=asked.steals + asked.requests, rerun_seconds=asked.rerun_seconds)

    monkeypatch.setattr(Greedy, "plan", plan)


@mutation("liveness")
def the_dead_count_as_members(monkeypatch: pytest.MonkeyPatch) -> None:
    def members(snapshot: Snapshot) -> dict[str, Member]:
        known = {member.owner_id: member for member in [*snapshot.members, snapshot.me]}
        known |= {o.owner_id: Member(o.owner_id) for o in snapshot.ownerships.values() if o.owner_id not in known}
        return dict(sorted(known.items()))

    monkeypatch.setattr(fair_share, "living_members", members)


@mutation("liveness", first_seed=371)
def a_failed_checkpoint_is_not_written_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Checkpointer, "_is_due", property(lambda self: False, lambda self, value: None), raising=False)


@mutation("liveness", first_seed=34)
def the_first_request_stands_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    original = MemoryStore.request_handover

    async def request(self: MemoryStore, keys: list[PartitionKey], *, owner_id: str) -> None:
        records = self._groups[keys[0].group_key].records
        await original(self, [key for key in keys if not records[key.partition].requested_by], owner_id=owner_id)

    monkeypatch.setattr(MemoryStore, "request_handover", request)


@mutation("liveness")
def added_partitions_are_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(self: ProcessorRun) -> None:
        return

    monkeypatch.setattr(ProcessorRun, "_watch_hub", nothing)


@pytest.mark.parametrize("name", sorted(MUTATIONS))
def test_the_simulator_sees(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch, laws, first_seed = MUTATIONS[name]
    patch(monkeypatch)

    for seed in range(first_seed, first_seed + SEEDS_MAX):
        report = run_seed(seed)
        if report.violations:
            assert report.violations[0].split(":")[0] in laws
            return
    pytest.fail(f"{SEEDS_MAX} seeds did not notice that {name.replace('_', ' ')}")


SINK_MUTATIONS: dict[str, tuple[Patch, int]] = {}


def sink_mutation(*, first_seed: int = 0) -> Callable[[Patch], Patch]:
    """Registers one that must break the law that every event is in the sink exactly once."""

    def register(patch: Patch) -> Patch:
        SINK_MUTATIONS[patch.__name__] = (patch, first_seed)
        return patch

    return register


@sink_mutation(first_seed=74)
def nobody_looks_at_the_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    unfenced = re.sub(r"AND epoch = .*", "", QUERIES.update_checkpoint.partition("RETURNING")[0]) + "RETURNING epoch"
    monkeypatch.setattr(SqliteSinkConnection, "queries", replace(QUERIES, update_checkpoint=unfenced))
    monkeypatch.setattr(Move, "check", lambda *_: None)


@sink_mutation()
def the_dead_letters_of_refused_rows_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PartitionTransaction, "dead_letter", lambda *_: None)


@sink_mutation()
def rows_are_committed_before_their_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    original = SqliteSinkConnection.commit

    def commit(self: SqliteSinkConnection, plan: CommitPlan) -> None:
        self._statement("COMMIT")
        self.begin([checkpoint.key for checkpoint, _ in plan.checkpoints])
        original(self, plan)

    monkeypatch.setattr(SqliteSinkConnection, "commit", commit)


@pytest.mark.parametrize("name", SINK_MUTATIONS)
def test_the_simulator_sees_the_sink_mutation(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    patch, first_seed = SINK_MUTATIONS[name]
    patch(monkeypatch)

    for seed in range(first_seed, first_seed + SEEDS_MAX):
        if violations := run_seed(seed, into_sink=True).violations:
            assert any(violation.startswith("exactly once") for violation in violations), violations
            return
    raise AssertionError(f"{SEEDS_MAX} seeds did not see it")
