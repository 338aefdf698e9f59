"""The receivers of clients: links on which the emulator sends events, at ``HUB/ConsumerGroups/GROUP/Partitions/ID``."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from hubline.amqp import conditions
from hubline.amqp.codec.decode import Bytes
from hubline.amqp.codec.performatives import Attach, DeliveryState, Error
from hubline.amqp.events.encoder import Destination, encode_deliveries
from hubline.amqp.events.reference_decoder import RuntimeMetrics
from hubline.amqp.transport.errors import AmqpClosed
from hubline.amqp.transport.link import Link, Message
from hubline.amqp.transport.sender_link import SenderLink
from hubline.amqp.transport.transfer_runs import Deliveries
from hubline.emulator.errors import Refusal, error_of, stolen_text
from hubline.emulator.link_addresses import ReceiverAddress
from hubline.emulator.management import NO_OFFSET, NO_TIME, timestamp
from hubline.errors import HublineError, PositionInvalid
from hubline.model.events import EventBatch
from hubline.model.positions import Position, PositionKind
from hubline.ports import Hub, Receiver

# As the service has it, per partition and consumer group.
READERS_WITHOUT_EPOCH_MAX: Final = 5

# Read and encoded at once: enough to make the work for each batch small beside that for its events.
BATCH_COUNT_MAX: Final = 5000

# Encoded at once, so that a reader of large events holds little more than what its connection may buffer. What the
# local hub stores as one fits, which is 4 MiB and a little.
ENCODED_BYTES_MAX: Final = 7 * 1024 * 1024

# How long a reader waits in one go. It is woken by new events and by takeovers; a drain that is asked for meanwhile is
# answered after this.
WAIT_SECONDS: Final = 1.0


class ReaderCount:
    """How many readers without an epoch there are, for each partition and consumer group."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str], int] = {}

    @contextmanager
    def one_more(self, address: ReceiverAddress) -> Iterator[None]:
        """Counts a reader as long as it lasts. Raises Refusal."""
        key = _key(address)
        if self._counts.get(key, 0) >= READERS_WITHOUT_EPOCH_MAX:
            raise Refusal(
                conditions.RESOURCE_LIMIT_EXCEEDED,
                "Exceeded the maximum number of allowed receivers per partition in a consumer group which is "
                f"{READERS_WITHOUT_EPOCH_MAX}. Close one, or read with an owner level.",
            )
        self._counts[key] = self._counts.get(key, 0) + 1
        try:
            yield
        finally:
            self._counts[key] -= 1
            if not self._counts[key]:
                del self._counts[key]


class ReceiverLinks:
    """The links of receivers, for each partition and consumer group."""

    def __init__(self) -> None:
        self._epochs: dict[tuple[str, str, str], dict[Link, int | None]] = {}
        self._changed = asyncio.Event()

    async def settled(self, address: ReceiverAddress) -> None:
        """Waits until those that have ended have let go of the partition: who comes after them is not held off."""
        while any(link.is_over for link in self._epochs.get(_key(address), ())):
            await self._changed.wait()

    @contextmanager
    def one_more(self, address: ReceiverAddress, link: Link, epoch: int | None) -> Iterator[None]:
        """Knows a link as long as it lasts. One with an epoch ends the others: its own peer hears of it after theirs.

        They would hear of it from the hub as well, but only once they have credit to read on.
        """
        key = _key(address)
        links = self._epochs.setdefault(key, {})
        if epoch is not None:
            for other, other_epoch in links.items():
                other.detach(Error(conditions.STOLEN, stolen_text(epoch, other_epoch)))
            links.clear()
        links[link] = epoch
        try:
            yield
        finally:
            links.pop(link, None)
            if not links and self._epochs.get(key) is links:
                del self._epochs[key]
            self._changed.set()  # wakes all who wait, to look again
            self._changed.clear()


def _key(address: ReceiverAddress) -> tuple[str, str, str]:
    return (address.hub.lower(), address.group.lower(), address.partition)


async def open_receiver(hub: Hub, address: ReceiverAddress, position: Position, epoch: int | None) -> Receiver:
    """Starts reading as the service does: where retention removed the events, with the oldest there is."""
    try:
        return await hub.open_receiver(address.partition, group=address.group, position=position, epoch=epoch)
    except PositionInvalid as error:
        if error.reason != "expired":
            raise _invalid(position, error) from error
        earliest = Position.earliest()
        return await hub.open_receiver(address.partition, group=address.group, position=earliest, epoch=epoch)


def _invalid(position: Position, error: PositionInvalid) -> Refusal:
    """The error in the service's words."""
    what = "offset" if position.kind is PositionKind.OFFSET else "sequence number"
    return Refusal(
        conditions.ARGUMENT_ERROR,
        f"The supplied {what} '{position.value}' is invalid. "
        f"The last sequence number in the system is '{error.last_sequence}'",
    )


class ClientReceiver:
    """A receiver of one client: sends it a partition's events, one a message. A link handler; ``run`` does the work."""

    def __init__(self, hub: Hub, receiver: Receiver, partition: str, *, has_metrics: bool) -> None:
        self._hub = hub
        self._receiver = receiver
        self._partition = partition
        self._has_metrics = has_metrics
        self._task: asyncio.Task[None] | None = None

    async def run(self, link: SenderLink) -> None:
        """Sends what there is and what comes, as far as the link has credit and room, until one of them ends."""
        self._task = asyncio.current_task()
        try:
            while True:
                max_count = await link.sendable()
                wait_seconds = 0.0 if link.is_draining else WAIT_SECONDS
                events = await self._receiver.receive(
                    max_count=min(max_count, BATCH_COUNT_MAX), wait_seconds=wait_seconds
                )
                if len(events):
                    await self._send(link, events)
                elif link.is_draining:
                    link.drained()
        except AmqpClosed:
            pass
        except PositionInvalid as error:
            # Retention overtook the reader. It comes back with its position, and starts with the oldest there is.
            link.detach(replace(error_of(error), condition=conditions.INTERNAL_ERROR))
        except HublineError as error:
            link.detach(error_of(error))
        finally:
            with suppress(HublineError):
                await self._receiver.close()

    def on_attached(self, link: Link, attach: Attach) -> None: ...

    def on_deliveries(self, link: Link, deliveries: Deliveries) -> None: ...

    def on_message(self, link: Link, message: Message) -> None: ...

    def on_outcome(self, link: Link, delivery_id: int, state: DeliveryState | None) -> None: ...

    def on_detached(self, _link: Link, _error: Error | None) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _send(self, link: SenderLink, events: EventBatch) -> None:
        annotations = await self._metrics() if self._has_metrics else b""
        start = 0
        while start < len(events):
            part = _fitting(events.slice(start, await link.sendable()))
            self._send_part(link, part, annotations)
            start += len(part)

    async def _metrics(self) -> bytes:
        """What the partition holds now, as a section that goes with every event."""
        held = await self._hub.describe_partition(self._partition)
        return RuntimeMetrics(
            last_sequence=held.last_sequence,
            last_offset=held.last_offset or NO_OFFSET,
            last_enqueued_ms=timestamp(held.last_enqueued_time or NO_TIME),
            retrieved_ms=timestamp(datetime.now(UTC)),
        ).encode()

    def _send_part(self, link: SenderLink, part: EventBatch, annotations: bytes) -> None:
        """Sends events that the link has credit for, each with the annotations."""
        destination = Destination(link.session.channel, link.handle, link.frame_bytes_max)
        encoded = list(
            encode_deliveries(
                part.arrow, destination, first_delivery_id=link.next_delivery_id, delivery_annotations=annotations
            )
        )
        if len(encoded) == 1:
            link.send_frames(encoded[0], count=len(part))
            return
        # Some events take several frames: what the session's window counts has to be counted.
        count = len(part)
        for frames in encoded:
            link.send_frames(frames, count=count, transfers_count=_frames_count(frames))
            count = 0


def _fitting(events: EventBatch) -> EventBatch:
    """As many of the events as are encoded at once. One at least: it is far smaller."""
    while len(events) > 1 and events.nbytes > ENCODED_BYTES_MAX:
        events = events.slice(0, len(events) // 2)
    return events


def _frames_count(frames: Bytes) -> int:
    count = position = 0
    while position < len(frames):
        position += int.from_bytes(frames[position : position + 4])
        count += 1
    return count
