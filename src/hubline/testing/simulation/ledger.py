"""The ledger: everything the simulated processors did, checked against hubline's guarantees at every entry.

no gap, order       a session's batches follow each other, from just after its checkpoint
one owner           an epoch of a partition is claimed once
lease               no handler starts once its lease has expired
fence               a stale epoch moves no checkpoint
forward             a checkpoint never moves back
not past handled    every event up to a checkpoint was handled before it was written
exactly once        a commit of a sink has the events since the last commit, each once or as a dead letter
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hubline.checkpoint_stores.memory import MemoryStore
from hubline.errors import Fenced
from hubline.model.keys import GroupKey, PartitionKey
from hubline.model.ownership import Checkpoint, Member, Ownership, Renewal
from hubline.testing.simulation.virtual_loop import World


@dataclass(slots=True)
class _PartitionLedger:
    """What is known of one partition. ``handled_to`` is the last event of the unbroken run of handled ones."""

    claims: dict[int, str] = field(default_factory=dict)
    lease_started_at: dict[int, float] = field(default_factory=dict)
    sessions: dict[int, Session] = field(default_factory=dict)
    fence_epoch: int = -1
    checkpoint_sequence: int = -1
    committed_to: int = -1
    given_to: int = -1
    handled_to: int = -1
    handled_later: set[int] = field(default_factory=set)
    handled_count: int = 0
    repeats_count: int = 0

    def mark_handled(self, first: int, last: int) -> None:
        """A dead letter counts as handled, too."""
        if first > self.handled_to + 1:
            self.handled_later.update(range(first, last + 1))
            return
        self.handled_to = max(self.handled_to, last)
        while self.handled_later and self.handled_to + 1 in self.handled_later:
            self.handled_to += 1
            self.handled_later.discard(self.handled_to)


@dataclass(slots=True)
class Session:
    """One run of a partition by one process, from its fence on. ``uncommitted`` is what it handled since a commit."""

    process: str
    partition: str
    epoch: int
    next_sequence: int
    uncommitted: list[range] = field(default_factory=list)


class Ledger:
    """Takes notes and objects. Objections end the run: they are the world's failures.

    Attributes:
        trace: The notes.
        last_failure: What a handler raised last.
        lease_seconds: No handler starts so long after its lease was last renewed.
        may_skip: Events may be passed over: they are dead letters, or will be, at a commit and in the end.
        may_repeat: Events may be repeated until a sink has them, as the others of a batch with a bad one do.
        may_checkpoint: A handler may checkpoint what it is given. It is the handler's word that this is done.
    """

    def __init__(self, world: World) -> None:
        self.last_failure: Exception | None = None
        self.lease_seconds = 0.0
        self.may_skip = False
        self.may_repeat = False
        self.may_checkpoint = False
        self._world = world
        self._partitions: defaultdict[str, _PartitionLedger] = defaultdict(_PartitionLedger)
        self.trace: list[str] = []

    def partition(self, partition: str) -> _PartitionLedger:
        return self._partitions[partition]

    def note(self, what: str) -> None:
        self.trace.append(f"{self._world.now:.6f} {what}")

    def object(self, law: str, what: str) -> None:
        self.note(f"VIOLATION {law}: {what}")
        self._world.failures.append(f"{law}: {what} (at {self._world.now:.3f} s)")

    # Ownership, as it took effect in the store

    def claimed(self, ownership: Ownership) -> None:
        book, epoch = self.partition(ownership.key.partition), ownership.epoch
        self.note(f"claimed {ownership.key.partition} {epoch} {ownership.owner_id!r}")
        if not ownership.owner_id:
            return
        if epoch in book.claims:
            self.object(
                "one owner",
                f"epoch {epoch} of partition {ownership.key.partition} was claimed by {book.claims[epoch]}, "
                f"and again by {ownership.owner_id}",
            )
        book.claims[epoch] = ownership.owner_id
        book.lease_started_at[epoch] = self._world.now

    def renewed(self, ownership: Ownership) -> None:
        self.partition(ownership.key.partition).lease_started_at[ownership.epoch] = self._world.now

    # Handling

    def session(self, process: str, partition: str, epoch: int, checkpoint: Checkpoint | None) -> Session:
        following = 0 if checkpoint is None else checkpoint.sequence_number + 1
        self.note(f"{process} opened {partition} epoch {epoch} at {following}")
        session = self.partition(partition).sessions[epoch] = Session(process, partition, epoch, following)
        return session

    def handling(self, session: Session, first: int, last: int) -> None:
        book = self.partition(session.partition)
        who = f"{session.process}, partition {session.partition}, epoch {session.epoch}"
        earliest = book.committed_to + 1 if self.may_repeat else session.next_sequence
        if first < earliest:
            self.object("order", f"{who}: {earliest} was due, and {first} was delivered")
        if first > session.next_sequence and not self.may_skip:
            self.object("no gap", f"{who}: {session.next_sequence} was due, and {first} was delivered")
        age = self._world.now - book.lease_started_at.get(session.epoch, -1e9)
        if age >= self.lease_seconds:
            self.object("lease", f"{who}: a handler started {age:.3f} s after the lease was last renewed")
        book.given_to = max(book.given_to, last)

    def handled(self, session: Session, first: int, last: int) -> None:
        book = self.partition(session.partition)
        self.note(f"{session.process} handled {session.partition} {first}..{last}")
        session.next_sequence = last + 1
        session.uncommitted.append(range(first, last + 1))
        book.handled_count += last - first + 1
        book.repeats_count += max(0, min(book.handled_to, last) - first + 1)
        book.mark_handled(first, last)

    def dead_lettered(self, session: Session, sequence: int) -> None:
        self.note(f"dead letter {session.partition} {sequence}")
        session.next_sequence = max(session.next_sequence, sequence + 1)
        self.partition(session.partition).mark_handled(sequence, sequence)

    def committed(self, checkpoint: Checkpoint, epoch: int, dead_letters: Callable[[], list[int]]) -> None:
        """A transaction of a sink took effect, with the dead letters that there are now."""
        partition, last = checkpoint.key.partition, checkpoint.sequence_number
        book = self.partition(partition)
        written = [sequence for run in book.sessions[epoch].uncommitted for sequence in run]
        if again := [sequence for sequence in written if sequence <= book.committed_to]:
            self.object("exactly once", f"epoch {epoch} committed events {again[:10]} of partition {partition} again")
        missing = set(range(book.committed_to + 1, last + 1)).difference(written)
        if missing:
            failed = missing.intersection(dead_letters())
            for sequence in sorted(failed):
                book.mark_handled(sequence, sequence)
            if lost := sorted(missing - failed):
                self.object("exactly once", f"epoch {epoch} committed past events {lost[:10]} of partition {partition}")
        book.committed_to = max(book.committed_to, last)
        book.sessions[epoch].uncommitted.clear()

    # Checkpoints, as they took effect in the store

    def fenced(self, key: PartitionKey, epoch: int) -> None:
        book = self.partition(key.partition)
        if epoch < book.fence_epoch:
            self.object("fence", f"epoch {epoch} took partition {key.partition} from {book.fence_epoch}")
        book.fence_epoch = epoch
        self.note(f"fenced {key.partition} {epoch}")

    def checkpointed(self, before: Checkpoint | None, after: Checkpoint, *, epoch: int) -> None:
        partition = after.key.partition
        book = self.partition(partition)
        if before == after:
            return
        self.note(f"checkpointed {partition} {after.sequence_number} by epoch {epoch}")
        if epoch != book.fence_epoch:
            self.object(
                "fence", f"epoch {epoch} moved the checkpoint of partition {partition}, held by {book.fence_epoch}"
            )
        if before is not None and after.sequence_number < before.sequence_number:
            self.object("forward", f"partition {partition}: from {before.sequence_number} to {after.sequence_number}")
        if self.may_checkpoint and book.handled_to < after.sequence_number <= book.given_to:
            book.mark_handled(book.handled_to + 1, after.sequence_number)
        if after.sequence_number > book.handled_to:
            self.object(
                "not past handled",
                f"partition {partition}: checkpoint {after.sequence_number}, handled to {book.handled_to}",
            )
        book.checkpoint_sequence = after.sequence_number

    def reset(self, key: PartitionKey, checkpoint: Checkpoint | None) -> None:
        """An operator's hand: the one thing that may move a checkpoint back. It raises the fence."""
        book = self.partition(key.partition)
        book.fence_epoch += 1
        book.checkpoint_sequence = checkpoint.sequence_number if checkpoint else -1
        self.note(f"reset {key.partition} to {book.checkpoint_sequence}")


class LedgerStore(MemoryStore):
    """A memory store that enters what takes effect into a ledger."""

    def __init__(self, world: World, ledger: Ledger) -> None:
        self.clock_offset = 0.0
        super().__init__(now=lambda: world.now + self.clock_offset)
        self._ledger = ledger

    async def claim_ownership(self, claims: Sequence[Ownership]) -> list[Ownership]:
        written = await super().claim_ownership(claims)
        for ownership in written:
            self._ledger.claimed(ownership)
        return written

    async def renew_ownership(self, group: GroupKey, member: Member, owned: Sequence[Ownership]) -> Renewal:
        renewal = await super().renew_ownership(group, member, owned)
        for ownership in renewal.renewed:
            self._ledger.renewed(ownership)
        return renewal

    async def fence(self, key: PartitionKey, epoch: int) -> Checkpoint | None:
        checkpoint = await super().fence(key, epoch)
        self._ledger.fenced(key, epoch)
        return checkpoint

    async def update_checkpoint(self, checkpoint: Checkpoint, *, epoch: int) -> None:
        before = self.checkpoint_of(checkpoint.key)
        try:
            await super().update_checkpoint(checkpoint, epoch=epoch)
        except Fenced:
            self._ledger.note(f"refused checkpoint {checkpoint.key.partition} by epoch {epoch}")
            raise
        after = self.checkpoint_of(checkpoint.key)
        if after is not None:
            self._ledger.checkpointed(before, after, epoch=epoch)

    async def reset_checkpoint(self, key: PartitionKey, checkpoint: Checkpoint | None) -> None:
        await super().reset_checkpoint(key, checkpoint)
        self._ledger.reset(key, checkpoint)

    def checkpoint_of(self, key: PartitionKey) -> Checkpoint | None:
        fence = self._fences.get(key)
        return None if fence is None else fence.checkpoint
