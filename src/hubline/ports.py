"""The protocols between hubline's core and the world: hubs and checkpoint stores.

An adapter implements one of them and passes its contract suite in `hubline.testing.contracts`. All methods
are coroutines and may be cancelled; a call that was cancelled or that raised ``...Unavailable`` may or may not
have taken effect, and callers live with both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hubline.addresses.option_kinds import Named
from hubline.errors import HubError
from hubline.model.dead_letters import DeadLetter
from hubline.model.events import EventBatch
from hubline.model.hubs import HubProperties, PartitionProperties
from hubline.model.keys import GroupKey, PartitionKey
from hubline.model.ownership import Checkpoint, GroupState, Member, Ownership, Renewal, StoreExamination
from hubline.model.positions import Position
from hubline.read_ahead import ReadAhead


class Receiver(Protocol):
    """Reads one partition in order. Used by one task at a time."""

    async def receive(self, *, max_count: int, wait_seconds: float) -> EventBatch:
        """The next events: at least one and at most ``max_count``, or an empty batch after ``wait_seconds``.

        Returns as soon as there is anything. Raises ReaderStolen as soon as another reader took the partition,
        also while waiting; PositionInvalid if retention overtook the reader; HubUnavailable if it was lost: another
        receiver has to be opened after the last event, as a ReconnectingReceiver does.
        Cancelling a call loses no event: the next call returns what this one would have.
        """
        ...

    @property
    def last_sequence(self) -> int | None:
        """The partition's newest sequence number when ``receive`` last looked; None if it never did.

        Without an epoch it may be that of the newest event that arrived here.
        """
        ...

    async def close(self) -> None:
        """Lets the partition go. Closing twice is fine."""
        ...


@runtime_checkable
class PrefetchingReceiver(Receiver, Protocol):
    """A receiver that reads ahead of its calls, as far as the caller says. Not every receiver can."""

    def prefetch(self, read_ahead: ReadAhead, *, end_sequence: int | None = None) -> None:
        """Reads ahead as far as ``read_ahead`` has room, and asks for no events from ``end_sequence``.

        Called after opening, and again for the next range. The receiver counts there with ``hold`` what no call has
        taken yet, and no longer when it gives it out: then the caller does. Where nothing can be read before the caller
        releases some of that, ``receive`` calls ``mark_full`` and returns an empty batch at once.

        Without an end, the events of a range would have to be paid for together with thousands of those after it,
        which are on their way at any time.
        """
        ...


class Sender(Protocol):
    """Appends events. Calls from several tasks are taken one after the other."""

    async def send(
        self, events: pa.RecordBatch, *, partition: str | None = None, partition_key: str | None = None
    ) -> None:
        """Appends the events (`OUTGOING_SCHEMA`), in order, and returns once they are
        durable.

        They go to ``partition``; or to the partition of ``partition_key``; or each to that of its own key; and
        those without a key to the next partition in turn. What goes to one partition is kept whole or not at
        all. Raises EventTooLarge (nothing is sent), HubFull, HubUnavailable.
        """
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True, eq=False)
class Unsent:
    """Events of a send that were not kept, by their places in it, and why."""

    places: npt.NDArray[np.int64]
    error: HubError


@runtime_checkable
class SharingSender(Sender, Protocol):
    """A sender that tells what became of each partition's share."""

    async def send_shares(
        self, events: pa.RecordBatch, *, partition: str | None = None, partition_key: str | None = None
    ) -> list[Unsent]:
        """As ``send``, but where some partitions cannot be written, what was not kept is returned, and not raised."""
        ...


class Hub(Protocol):
    """A partitioned event hub."""

    @property
    def namespace(self) -> str: ...

    @property
    def name(self) -> str: ...

    async def describe(self) -> HubProperties:
        """Called at every dispatch cycle, so that partitions added to the hub are seen."""
        ...

    async def describe_partition(self, partition: str) -> PartitionProperties: ...

    async def open_receiver(
        self, partition: str, *, group: str, position: Position, epoch: int | None = None
    ) -> Receiver:
        """Starts reading. With an epoch, readers of the group with an equal or lower one, or none, are
        disconnected (ReaderStolen); ReaderRefused if one with a higher epoch is there.

        Raises PositionInvalid where starting there would skip events or read those of another hub.
        """
        ...

    async def open_sender(self) -> Sender: ...

    async def close(self) -> None: ...


class DeadLetterSink(Protocol):
    """Keeps events that failed, for a processor without a SQL sink (which keeps them itself, with its rows).

    Called for each event that failed for good, before the checkpoint moves past it: dying in between adds the
    dead letter again.
    """

    async def add(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Returns once the dead letters are durable. If it raises, the partition stops, and the events come again."""
        ...

    async def close(self) -> None: ...


class CheckpointStore(Protocol):
    """Keeps ownership, membership and checkpoints for many groups; the one truth about progress.

    A processor at rest calls ``list_ownership`` and ``renew_ownership`` once a dispatch cycle, or only the second if it
    lists the group as well; the rest when there is something to do. Ages are by the store's own clock. Methods that
    take several records treat each by itself.
    Calls may come from one event loop at a time only.
    """

    async def list_ownership(self, group: GroupKey) -> GroupState:
        """Every ownership record, request and member of the group.

        A record that does not read back is named in ``damaged`` and left out. Members not heard of for
        long may be left out too; the caller judges by age.
        """
        ...

    async def claim_ownership(self, claims: Sequence[Ownership]) -> list[Ownership]:
        """Writes the owner and epoch of each record whose ``version`` is still current (None: no record yet).

        Returns the records that were written, with their new version; a lost claim is left out, it is not an error.
        A claim with an empty owner releases. A claim that changes the epoch clears the handover request;
        releasing keeps it, so that the partition stays reserved for who asked.
        """
        ...

    async def renew_ownership(self, group: GroupKey, member: Member, owned: Sequence[Ownership]) -> Renewal:
        """Announces the member as alive and renews what it owns, in one round trip if the store can.

        As ``claim_ownership``, but epoch and owner stay; what comes back carries the handover requests. A member that
        owns nothing and takes nothing (``max_partitions=0``) leaves: it is forgotten, so that its share is dealt out
        at once.
        """
        ...

    async def request_handover(self, keys: Sequence[PartitionKey], *, owner_id: str) -> None:
        """Asks the owners to drain and release in favour of ``owner_id``.

        Changes no version: it must not make the owner's renewal fail. The newest request stands, and its age
        starts again: callers do not ask again for what they or others wait for.
        """
        ...

    async def fence(self, key: PartitionKey, epoch: int) -> Checkpoint | None:
        """Takes the partition's checkpoint for this epoch, in one statement, and returns where it stands.

        From then on no lower epoch can move it. Raises Fenced if a higher epoch holds it, RecordDamaged if it
        does not read back. Taking it again with the same epoch is fine.
        """
        ...

    async def list_checkpoints(self, group: GroupKey) -> list[Checkpoint]:
        """The checkpoints of the group. One that does not read back is left out; ``fence`` names it."""
        ...

    async def update_checkpoint(self, checkpoint: Checkpoint, *, epoch: int) -> None:
        """Moves the checkpoint forward. One that is not ahead of what is stored changes nothing.

        Raises Fenced unless ``epoch`` holds the fence.
        """
        ...

    async def reset_checkpoint(self, key: PartitionKey, checkpoint: Checkpoint | None) -> None:
        """By an operator's hand: sets the checkpoint anywhere, also back, or removes it (None).

        Raises the fence by one and takes the partition from its owner, in one step: the owner
        cannot overwrite the checkpoint, and sees at its next renewal that it has to start from there.
        """
        ...

    async def close(self) -> None: ...


HubOrAddress: TypeAlias = Annotated[str | Hub, Named("an address such as 'local:./data/telemetry', or a Hub")]
"""What a `hub` option takes."""

StoreOrAddress: TypeAlias = Annotated[
    str | CheckpointStore, Named("an address such as 'sqlite:///state.db', or a CheckpointStore")
]
"""What a `store` option takes."""


@runtime_checkable
class Examinable(Protocol):
    """A store that more can be learned of than its work needs. People ask it, by ``hubline doctor``; no processor does.

    Not every store is: one without a clock of its own, and whose records cannot be damaged, has nothing to tell.
    """

    async def examine(self, group: GroupKey) -> StoreExamination:
        """Reads, and changes nothing."""
        ...


@runtime_checkable
class LockingStore(Protocol):
    """A store that can lock partitions, so that they cannot be taken from an active owner at all."""

    def with_locks(self, seconds: int) -> CheckpointStore:
        """The same store, for an owner whose claims also lock their partitions for this long, and renewals again.

        A claim under somebody else's lock is lost. The two share what they have open: closing one closes both.
        """
        ...


def shares_with_sdks(store: CheckpointStore) -> bool:
    """Whether a group in this store may have members of another kind, which announce nothing and know no epochs.

    A store whose groups the official SDKs may join, now or later, says so by an attribute `shares_with_sdks`.
    """
    return bool(getattr(store, "shares_with_sdks", False))


def keeps_requests(store: CheckpointStore) -> bool:
    """Whether owners can be asked for a partition. Where they cannot, what they have above their share is taken.

    A store that keeps no requests says so by an attribute `keeps_requests`.
    """
    return bool(getattr(store, "keeps_requests", True))


def reader_epoch(store: CheckpointStore, epoch: int) -> int:
    """The epoch to open a receiver with.

    The SDKs read with epoch 0, and one above it would lock them out for good. Among equals the last one to come reads:
    the ownership record says who that is, and the fence keeps the others from writing.
    """
    return 0 if shares_with_sdks(store) else epoch
