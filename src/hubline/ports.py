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
        """Return the next events, as soon as there are any. Cancelling a call loses no event.

        Args:
            max_count: The most events to return.
            wait_seconds: How long to wait for the first one. After that the batch is empty.

        Raises:
            ReaderStolen: Another reader took the partition, perhaps during the wait.
            PositionInvalid: The next events expired before they were read.
            HubUnavailable: The connection is lost. Open another receiver after the last event.
        """
        ...

    @property
    def last_sequence(self) -> int | None:
        """The partition's newest sequence number when ``receive`` last looked; None if it never did.

        Without an epoch it may be that of the newest event that arrived here.
        """
        ...

    async def close(self) -> None:
        """Stop reading. Closing twice is fine."""
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
        """Append events, in order, and return once they are durable.

        What goes to one partition is kept whole or not at all.

        Args:
            events: The columns, as `hubline.new_events` makes them.
            partition: The partition that all go to. By default the one of `partition_key`, else of each event's own
                key; events without a key go to the partitions in turn.
            partition_key: The key whose partition all go to. Default: None.

        Raises:
            EventTooLarge: The hub does not take an event of that size. Nothing was sent.
            HubFull: A partition is full.
            HubUnavailable: The hub could not be reached. It may or may not have kept the events.
        """
        ...

    async def close(self) -> None:
        """Stop sending. Closing twice is fine."""
        ...


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
    def namespace(self) -> str:
        """Where the hub is: a host name, or the folder of a local hub."""
        ...

    @property
    def name(self) -> str:
        """The name of the hub."""
        ...

    async def describe(self) -> HubProperties:
        """Return the hub's partitions and when it was created. Processors call it at each rebalance.

        Raises:
            HubNotFound: There is no such hub.
            HubUnavailable: The hub could not be reached.
        """
        ...

    async def describe_partition(self, partition: str) -> PartitionProperties:
        """Return the first and last sequence numbers of a partition.

        Args:
            partition: The id of the partition.

        Raises:
            PartitionNotFound: The hub has no such partition.
        """
        ...

    async def open_receiver(
        self, partition: str, *, group: str, position: Position, epoch: int | None = None
    ) -> Receiver:
        """Start to read a partition.

        Args:
            partition: The id of the partition.
            group: The name of the consumer group.
            position: Where to start.
            epoch: Readers of the group with an equal or lower epoch, or with none, are disconnected. Default: None.

        Raises:
            ReaderRefused: A reader with a higher epoch reads the partition.
            PositionInvalid: Starting there would skip events, or read those of another hub.
        """
        ...

    async def open_sender(self) -> Sender:
        """Start to send. Prefer `hubline.Producer`, which splits large sends and retries."""
        ...

    async def close(self) -> None:
        """Close all that is open. Closing twice is fine."""
        ...


class DeadLetterSink(Protocol):
    """Keep events that failed, for a processor without a SQL sink, which keeps them itself.

    hubline calls it for each such event before the checkpoint moves past it. A crash in between adds the dead letter
    again.
    """

    async def add(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Add dead letters, and return once they are durable.

        If it raises, the partition stops, and its events are processed again.

        Args:
            dead_letters: The dead letters.
        """
        ...

    async def close(self) -> None:
        """Close what is open. Closing twice is fine."""
        ...


class CheckpointStore(Protocol):
    """Keeps who owns which partition, and how far each is processed, for many consumer groups.

    A processor at rest calls `list_ownership` and `renew_ownership` once a cycle, or only the second if that lists the
    group as well. Ages are by the store's own clock. Methods that take several records treat each by itself. Calls come
    from one event loop at a time.
    """

    async def list_ownership(self, group: GroupKey) -> GroupState:
        """Return every ownership record, handover request and member of the group.

        A record that cannot be read is named in `damaged` and left out. Members that have not renewed for long may be
        left out, too; the caller judges by age.

        Args:
            group: The consumer group.

        Raises:
            StoreUnavailable: The store could not be reached.
        """
        ...

    async def claim_ownership(self, claims: Sequence[Ownership]) -> list[Ownership]:
        """Write the owner and epoch of each record whose `version` is still current (None: no record yet).

        A claim with an empty owner releases. A claim that changes the epoch clears the handover request. Releasing
        keeps the request, so that the partition stays reserved for its requester.

        Args:
            claims: The records to write.

        Returns:
            The records that were written, with their new versions. A lost claim is left out; it is not an error.

        Raises:
            StoreUnavailable: The store could not be reached. Some claims may have been written.
        """
        ...

    async def renew_ownership(self, group: GroupKey, member: Member, owned: Sequence[Ownership]) -> Renewal:
        """Announce that a member is active, and renew what it owns, in one round trip if the store can.

        Owners and epochs stay as they are. A member that owns nothing and takes nothing (`max_partitions=0`) leaves:
        the store forgets it, so that others take its share at once.

        Args:
            group: The consumer group.
            member: The member.
            owned: The records of its partitions.

        Returns:
            The records that were renewed, with their new versions and handover requests.

        Raises:
            StoreUnavailable: The store could not be reached. Some records may have been renewed.
        """
        ...

    async def request_handover(self, keys: Sequence[PartitionKey], *, owner_id: str) -> None:
        """Request that the owners finish their batches and release partitions for `owner_id`.

        It changes no version, so that the owner's renewal still succeeds. The newest request counts, and its age starts
        again.

        Args:
            keys: The partitions.
            owner_id: The member that requests them.

        Raises:
            StoreUnavailable: The store could not be reached.
        """
        ...

    async def fence(self, key: PartitionKey, epoch: int) -> Checkpoint | None:
        """Take the partition's checkpoint for an epoch, in one step. From then on no lower epoch can move it.

        Args:
            key: The partition.
            epoch: The epoch of the new owner. Taking it again with the same epoch is fine.

        Returns:
            The checkpoint, or None if there is none yet.

        Raises:
            Fenced: A higher epoch holds it.
            RecordDamaged: The checkpoint cannot be read.
            StoreUnavailable: The store could not be reached.
        """
        ...

    async def list_checkpoints(self, group: GroupKey) -> list[Checkpoint]:
        """Return the checkpoints of the group. One that cannot be read is left out; `fence` names it.

        Args:
            group: The consumer group.

        Raises:
            StoreUnavailable: The store could not be reached.
        """
        ...

    async def update_checkpoint(self, checkpoint: Checkpoint, *, epoch: int) -> None:
        """Move the checkpoint forward. One that is not ahead of the stored one changes nothing.

        Args:
            checkpoint: The checkpoint.
            epoch: The epoch that took it with `fence`.

        Raises:
            Fenced: Another epoch holds it.
            StoreUnavailable: The store could not be reached. It may have been written.
        """
        ...

    async def reset_checkpoint(self, key: PartitionKey, checkpoint: Checkpoint | None) -> None:
        """Move a checkpoint anywhere, also back, or remove it. For operators, not for processors.

        In the same step it raises the epoch and takes the partition from its owner: the owner cannot overwrite the
        checkpoint, and sees at its next renewal that it has to start again from there.

        Args:
            key: The partition.
            checkpoint: The new checkpoint. None removes it.

        Raises:
            StoreUnavailable: The store could not be reached. It may have been written.
        """
        ...

    async def close(self) -> None:
        """Close what is open. Closing twice is fine."""
        ...


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
    """Whether consumers can request a partition of its owner. If not, they take partitions above the owner's share.

    A store that keeps no requests says so by an attribute `keeps_requests`.
    """
    return bool(getattr(store, "keeps_requests", True))


def reader_epoch(store: CheckpointStore, epoch: int) -> int:
    """The epoch to open a receiver with.

    The SDKs read with epoch 0, and one above it would lock them out for good. Among equals the last one to come reads:
    the ownership record says who that is, and the fence keeps the others from writing.
    """
    return 0 if shares_with_sdks(store) else epoch
