"""Any sequence of calls, by Hypothesis: every store answers as a model does that fits on a page."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from hubline.checkpoint_stores.memory import MemoryStore
from hubline.checkpoint_stores.postgres import PostgresStore
from hubline.checkpoint_stores.sqlite import SqliteStore
from hubline.errors import Fenced
from hubline.model.keys import GroupKey
from hubline.model.ownership import Checkpoint, Member, Ownership
from hubline.ports import CheckpointStore
from hubline.secrets import Secret
from hubline.testing.contracts.store import untimed

PARTITIONS = st.sampled_from(["0", "1", "10"])
OWNERS = st.sampled_from(["a", "b"])
EPOCHS = st.integers(0, 4)
SEQUENCES = st.integers(0, 9)
PLACES = st.integers(0, 3)  # how many versions back a caller is
_group_numbers = itertools.count()


class StoreMachine(RuleBasedStateMachine):
    """A group of its own in a store that others may use as well."""

    @staticmethod
    def open_store() -> CheckpointStore:
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.store = self.open_store()
        self.group = GroupKey("namespace.example", "orders", f"group{next(_group_numbers)}")
        self.records: dict[str, Ownership] = {}
        self.versions: dict[str, list[str | None]] = {}
        self.members: dict[str, int | None] = {}
        self.fences: dict[str, tuple[int, Checkpoint | None]] = {}

    def teardown(self) -> None:
        self.runner.run(self.store.close())
        self.runner.close()

    @rule(partition=PARTITIONS, owner_id=st.sampled_from(["", "a", "b"]), epoch=EPOCHS, place=PLACES)
    def claim(self, partition: str, owner_id: str, epoch: int, place: int) -> None:
        claimed = replace(self.known(partition, place), owner_id=owner_id, epoch=epoch)
        is_current = self.is_current(claimed)

        won = self.runner.run(self.store.claim_ownership([claimed]))

        assert len(won) == is_current
        for ownership in won:
            before = self.records.get(partition)
            keeps_request = before is not None and (owner_id == "" or epoch == before.epoch)
            requested_by = before.requested_by if before is not None and keeps_request else None
            self.wrote(ownership, replace(claimed, requested_by=requested_by))

    @rule(owner_id=OWNERS, max_partitions=st.none() | st.integers(0, 3), places=st.dictionaries(PARTITIONS, PLACES))
    def renew(self, owner_id: str, max_partitions: int | None, places: dict[str, int]) -> None:
        owned = [self.known(partition, place) for partition, place in places.items() if partition in self.records]
        current = {ownership.key.partition for ownership in owned if self.is_current(ownership)}

        member = Member(owner_id, max_partitions)
        renewed = self.runner.run(self.store.renew_ownership(self.group, member, owned)).renewed

        assert {ownership.key.partition for ownership in renewed} == current
        for ownership in renewed:
            self.wrote(ownership, self.records[ownership.key.partition])
        if max_partitions == 0 and not owned:
            self.members.pop(owner_id, None)
        else:
            self.members[owner_id] = max_partitions

    @rule(partitions=st.sets(PARTITIONS), owner_id=OWNERS)
    def request(self, partitions: set[str], owner_id: str) -> None:
        keys = [self.group.partition(partition) for partition in sorted(partitions)]
        self.runner.run(self.store.request_handover(keys, owner_id=owner_id))
        for partition in partitions & self.records.keys():
            self.records[partition] = replace(self.records[partition], requested_by=owner_id)

    @rule(partition=PARTITIONS, epoch=EPOCHS)
    def fence(self, partition: str, epoch: int) -> None:
        held_epoch, checkpoint = self.fences.get(partition, (-1, None))
        fencing = self.store.fence(self.group.partition(partition), epoch)
        if held_epoch > epoch:
            self.expect_fenced(fencing, held_epoch)
        else:
            assert self.runner.run(fencing) == checkpoint
            self.fences[partition] = (epoch, checkpoint)

    @rule(partition=PARTITIONS, epoch=EPOCHS, sequence=SEQUENCES)
    def update(self, partition: str, epoch: int, sequence: int) -> None:
        held_epoch, stored = self.fences.get(partition, (-1, None))
        moved = self.checkpoint(partition, sequence)
        updating = self.store.update_checkpoint(moved, epoch=epoch)
        if held_epoch != epoch:
            self.expect_fenced(updating, held_epoch)
        else:
            self.runner.run(updating)
            if stored is None or stored.sequence_number < sequence:
                self.fences[partition] = (epoch, moved)

    @precondition(lambda self: self.fences)
    @rule(data=st.data(), sequence=SEQUENCES)
    def update_as_holder(self, data: st.DataObject, sequence: int) -> None:
        partition = data.draw(st.sampled_from(sorted(self.fences)))
        self.update(partition=partition, epoch=self.fences[partition][0], sequence=sequence)

    @rule(partition=PARTITIONS, sequence=st.none() | SEQUENCES)
    def reset(self, partition: str, sequence: int | None) -> None:
        checkpoint = None if sequence is None else self.checkpoint(partition, sequence)
        self.runner.run(self.store.reset_checkpoint(self.group.partition(partition), checkpoint))
        held_epoch, _ = self.fences.get(partition, (-1, None))
        self.fences[partition] = (held_epoch + 1, checkpoint)
        for ownership in self.runner.run(self.store.list_ownership(self.group)).ownerships:
            if ownership.key.partition == partition:
                before = self.records[partition]
                self.wrote(ownership, replace(before, owner_id="", epoch=before.epoch + 1))

    @invariant()
    def the_store_lists_what_the_model_holds(self) -> None:
        state = self.runner.run(self.store.list_ownership(self.group))
        checkpoints = self.runner.run(self.store.list_checkpoints(self.group))

        assert {one.key.partition: untimed(one) for one in state.ownerships} == self.records
        assert {one.owner_id: one.max_partitions for one in state.members} == self.members
        assert state.damaged == {}
        assert set(checkpoints) == {checkpoint for _, checkpoint in self.fences.values() if checkpoint is not None}

    def known(self, partition: str, place: int) -> Ownership:
        """The record as a caller knows it that has missed some writes; at the end, one that knows of none."""
        versions = self.versions.get(partition, [None])
        record = self.records.get(partition, Ownership(self.group.partition(partition), "a", 0))
        return replace(record, version=versions[max(len(versions) - 1 - place, 0)])

    def is_current(self, ownership: Ownership) -> bool:
        record = self.records.get(ownership.key.partition)
        return ownership.version == (None if record is None else record.version)

    def wrote(self, answer: Ownership, expected: Ownership) -> None:
        versions = self.versions.setdefault(answer.key.partition, [None])
        assert answer.version not in versions
        assert untimed(answer) == replace(untimed(expected), version=answer.version)
        versions.append(answer.version)
        self.records[answer.key.partition] = untimed(answer)

    def checkpoint(self, partition: str, sequence: int) -> Checkpoint:
        return Checkpoint(self.group.partition(partition), f"offset{sequence}", sequence)

    def expect_fenced(self, call: Coroutine[object, None, object], held_epoch: int) -> None:
        with pytest.raises(Fenced) as refused:
            self.runner.run(call)
        assert refused.value.held_epoch == held_epoch


def explore(open_store: Callable[[], CheckpointStore], *, examples: int) -> None:
    run_state_machine_as_test(
        type("Machine", (StoreMachine,), {"open_store": staticmethod(open_store)}),
        settings=settings(
            max_examples=examples, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_the_memory_store_answers_as_the_model() -> None:
    explore(MemoryStore, examples=100)


def test_the_sqlite_store_answers_as_the_model(tmp_path: Path) -> None:
    explore(lambda: SqliteStore(tmp_path / "store.db"), examples=25)


def test_the_postgres_store_answers_as_the_model(postgres_database: Secret) -> None:
    explore(lambda: PostgresStore(postgres_database), examples=25)
