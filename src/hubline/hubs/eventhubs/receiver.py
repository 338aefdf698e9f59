"""Receiving: a link that is kept supplied with credit, its events as columns, and a new link when it is lost."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from hubline.amqp.codec.decode import Bytes
from hubline.amqp.codec.performatives import (
    RECEIVER,
    SEND_SETTLED,
    Accepted,
    Attach,
    DeliveryState,
    Error,
    Source,
    Target,
)
from hubline.amqp.codec.types import Described, Symbol
from hubline.amqp.events.byte_rows import Octets, Positions
from hubline.amqp.events.decoder import EventDecoder, join_messages
from hubline.amqp.events.reference_decoder import RuntimeMetrics, read_runtime_metrics
from hubline.amqp.transport.errors import AmqpDecodeError, AmqpError
from hubline.amqp.transport.link import AmqpClosed, Link
from hubline.amqp.transport.link import Message as Delivered
from hubline.amqp.transport.receiver_link import ReceiverLink
from hubline.amqp.transport.transfer_runs import Deliveries
from hubline.errors import HubDamaged, HubError, HubUnavailable, ReaderRefused
from hubline.hubs.argument_checks import require_count
from hubline.hubs.eventhubs.service_connection import Service
from hubline.hubs.eventhubs.service_errors import (
    LINK_REDIRECT,
    NOT_FOUND,
    POSITION_REFUSED,
    QUOTA_EXCEEDED,
    STOLEN,
    Where,
    reader_lost,
    reader_refused,
    reader_stolen,
    refused,
    translated,
)
from hubline.hubs.eventhubs.start_position import Progress
from hubline.model.events import EventBatch
from hubline.model.hubs import PartitionProperties

log = logging.getLogger("hubline.eventhubs")

# How large events are is not known at first: so many of the largest there are still fit into memory.
CREDIT_FIRST: Final = 256
# The size of events is averaged over about this many deliveries.
SIZE_MEMORY: Final = 8
# What came in small pieces is given out together up to this: a copy of so much costs less than another call.
COALESCED_BYTES_MAX: Final = 256 * 1024

# The service answers an attach within a second or so.
ATTACH_SECONDS: Final = 30.0
# A lost link is opened again so often before the caller hears of it; then the caller decides.
REATTACH_ATTEMPTS: Final = 3
REATTACH_FIRST_SECONDS: Final = 0.2
REATTACH_LAST_SECONDS: Final = 5.0
REDIRECTS_MAX: Final = 3

_FILTER: Final = Symbol("apache.org:selector-filter:string")
_EPOCH: Final = Symbol("com.microsoft:epoch")
_NAME: Final = Symbol("com.microsoft:receiver-name")
_CAPABILITIES: Final = ("com.microsoft:georeplication",)
# The partition's newest event is then told with every other, in 160 bytes. An owner is asked how far behind it is;
# those who read a range, or look at some events, are not.
_OWNER_CAPABILITIES: Final = (*_CAPABILITIES, "com.microsoft:enable-receiver-runtime-metric")


@dataclass(frozen=True, slots=True)
class Window:
    """What may be on its way and received, for each link. Credit is given for what fits, by the size events have."""

    max_count: int
    bytes_max: int

    def count(self, used_bytes: int, event_bytes: float) -> int:
        """How many more events there is room for. One that is larger than all the room has to come, too, by itself."""
        fitting = int((self.bytes_max - used_bytes) / event_bytes)
        return min(self.max_count, max(fitting, 0 if used_bytes else 1))


# Enough to fill a connection of 100 MB/s over 60 ms with small events.
WINDOW: Final = Window(20_000, 8 * 1024 * 1024)
# For a range, of which few are read at a time.
RANGE_WINDOW: Final = Window(40_000, 16 * 1024 * 1024)

Describe = Callable[[], Awaitable[PartitionProperties]]


@dataclass(frozen=True, slots=True)
class Reading:
    """What a receiver reads, and as whom."""

    where: Where
    address: str
    group: str
    partition: str
    epoch: int | None
    progress: Progress
    describe: Describe


class EventHubsReceiver:
    """Reads one partition, as :class:`~hubline.ports.Receiver` says.

    A link that is lost is opened again after the last event that arrived, here and in silence; only when that fails
    does the caller get HubUnavailable, and may call again.
    """

    def __init__(self, service: Service, reading: Reading) -> None:
        self._service = service
        self._reading = reading
        self._progress = reading.progress
        self._decoder = EventDecoder(reading.partition)
        self._link: ReceiverLink | None = None
        self._arrived: deque[tuple[EventBatch, int]] = deque()
        self._undecoded: list[Bytes] = []  # messages that came by themselves, after all that arrived
        self._arrived_bytes = 0  # as they were on the wire
        self._event_bytes = 0.0  # of one event, on average; 0 if none has come yet
        self._last_sequence: int | None = None
        self._failed: HubError | None = None
        self._reattaching: asyncio.Task[None] | None = None
        self._attempts_count = 0  # to attach anew, since an event came
        self._lost: HubUnavailable | None = None  # why it had to, last
        self._changed = asyncio.Event()
        self._is_closed = False
        self._end_sequence: int | None = None

    async def open(self) -> None:
        """Attaches, and waits for the first event where only that tells whether the position is good."""
        try:
            await self._attach()
            await self._first_event()
        except BaseException:
            await self.close()
            raise

    @property
    def last_sequence(self) -> int | None:
        return self._last_sequence

    def read_to(self, end_sequence: int) -> None:
        """Asks for no events from this sequence number on, until told another.

        Who reads a range would otherwise pay for what comes after it: thousands of events are on their way at any time.
        """
        self._end_sequence = end_sequence
        self._supply()

    async def receive(self, *, max_count: int, wait_seconds: float) -> EventBatch:
        require_count(max_count)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        while True:
            self._decode_rest()
            self._require_readable()
            if self._progress.missing_from is not None:
                self._progress.explain(await self._reading.describe())
                continue
            if self._arrived:
                return self._take(max_count)
            self._keep_attached()
            if loop.time() >= deadline:
                self._last_sequence = self._progress.last_sequence
                return EventBatch.empty(self._reading.partition)
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._clear()
        if self._reattaching is not None:
            self._reattaching.cancel()
            with suppress(asyncio.CancelledError, HubError):
                await self._reattaching
        link, self._link = self._link, None
        if link is not None:
            link.detach()
            link.session.end()
        self._changed.set()

    # Giving out

    def _take(self, max_count: int) -> EventBatch:
        """The next events: one piece of what arrived, or several small ones."""
        parts: list[EventBatch] = []
        taken_bytes = 0
        while self._arrived and max_count and (not parts or taken_bytes < COALESCED_BYTES_MAX):
            batch, bytes_count = self._arrived.popleft()
            if len(batch) > max_count:
                rest_bytes = bytes_count * (len(batch) - max_count) // len(batch)
                self._arrived.appendleft((batch.slice(max_count), rest_bytes))
                batch, bytes_count = batch.slice(0, max_count), bytes_count - rest_bytes
            parts.append(batch)
            max_count -= len(batch)
            taken_bytes += bytes_count
        self._arrived_bytes -= taken_bytes
        self._last_sequence = self._progress.last_sequence
        self._supply()
        return EventBatch.concat(parts)

    def _keep_attached(self) -> None:
        """Sees to it that a lost link is opened again, and raises what came of it, if that is an error."""
        if self._reattaching is not None and self._reattaching.done():
            reattached, self._reattaching = self._reattaching, None
            reattached.result()
        if self._link is None and self._reattaching is None:
            self._reattaching = asyncio.create_task(self._reattach(), name="hubline-eventhubs-reattach")

    def _require_readable(self) -> None:
        if self._is_closed:
            raise HubError("the receiver is closed: open another one", partition=self._reading.partition)
        failed = self._failed or self._progress.failed
        if failed is not None:
            # What was read ahead is not given out: whoever took the partition reads it.
            self._clear()
            raise failed

    async def _first_event(self) -> None:
        try:
            async with asyncio.timeout(ATTACH_SECONDS):
                while not self._progress.is_proven and self._link is not None:
                    self._changed.clear()
                    await self._changed.wait()
                    self._decode_rest()
        except TimeoutError:
            raise HubUnavailable(
                f"{self._reading.where} has sent nothing from where it was asked to, and should have events there",
                hub=self._reading.where.hub,
                partition=self._reading.partition,
            ) from None
        self._require_readable()

    # Attaching

    async def _reattach(self) -> None:
        """Opens a link after the last event that arrived. Raises HubUnavailable when it has tried often enough.

        A link that brings nothing before it is lost again counts as an attempt, too.
        """
        try:
            while self._attempts_count < REATTACH_ATTEMPTS:
                self._attempts_count += 1
                if self._attempts_count > 1:
                    await asyncio.sleep(_backoff_seconds(self._attempts_count - 1))
                try:
                    await self._attach()
                except HubUnavailable as error:
                    self._lost = error
                except ReaderRefused as error:
                    # Whoever came while the link was lost has taken the partition.
                    cause = Error(STOLEN, f"epoch '{error.held_epoch}'")
                    self._failed = reader_stolen(self._reading.where, self._reading.epoch, cause)
                    return
                else:
                    log.info("reattached partition=%s", self._reading.partition)
                    return
            self._attempts_count = 0
            raise self._lost or HubUnavailable(f"{self._reading.where} was lost", hub=self._reading.where.hub)
        finally:
            self._changed.set()

    async def _attach(self) -> None:
        service = self._service
        for _ in range(REDIRECTS_MAX):
            try:
                self._link = await self._attached(service)
            except AmqpClosed as closed:
                if closed.error is None or closed.condition != LINK_REDIRECT:
                    raise self._refusal(closed.error) from closed
                service = service.redirected(closed.error)
            except AmqpError as error:
                raise translated(self._reading.where, error) from error
            else:
                self._supply()
                return
        raise HubUnavailable(f"{self._reading.where} was redirected again and again", hub=self._reading.where.hub)

    async def _attached(self, service: Service) -> ReceiverLink:
        session = await service.session()
        name = f"hubline-{secrets.token_hex(8)}"
        properties: dict[object, object] = {_NAME: name}
        is_owner = self._reading.epoch is not None
        if is_owner:
            properties[_EPOCH] = self._reading.epoch
        details = Attach(
            name,
            0,
            RECEIVER,
            snd_settle_mode=SEND_SETTLED,
            desired_capabilities=_OWNER_CAPABILITIES if is_owner else _CAPABILITIES,
            properties=properties,
        )
        source = Source(self._reading.address, filter={_FILTER: Described(_FILTER, self._progress.start.selector)})
        link = session.attach_receiver(name, source=source, target=Target(name), handler=self, details=details)
        try:
            async with asyncio.timeout(ATTACH_SECONDS):
                await link.attached()
        except BaseException as error:
            link.detach()
            session.end()
            if isinstance(error, TimeoutError):
                raise HubUnavailable(
                    f"{self._reading.where} did not answer in time", hub=self._reading.where.hub
                ) from None
            raise
        return link

    def _refusal(self, error: Error | None) -> HubError:
        reading = self._reading
        if error is not None and error.condition == STOLEN:
            return reader_refused(reading.where, reading.epoch, error)
        if error is not None and error.condition in POSITION_REFUSED:
            return self._progress.refuse("beyond" if self._progress.is_proven else "foreign")
        if error is not None and error.condition == NOT_FOUND:
            return HubError(
                f"{reading.where} has no consumer group {reading.group}: create it, or read in one that is there "
                f"({error.description})",
                hub=reading.where.hub,
                partition=reading.partition,
            )
        if error is not None and error.condition == QUOTA_EXCEEDED:
            return HubUnavailable(
                f"{reading.where} has as many readers without an epoch in this group as it takes: "
                "close one, or read with an epoch",
                hub=reading.where.hub,
                partition=reading.partition,
            )
        return refused(reading.where, error)

    # What happens on the link

    def on_attached(self, link: Link, attach: Attach) -> None:
        pass  # whoever attached waits for it

    def on_deliveries(self, link: ReceiverLink, deliveries: Deliveries) -> None:
        if not deliveries.is_settled:
            link.settle(int(deliveries.delivery_ids[0]), int(deliveries.delivery_ids[-1]), Accepted())
        self._decode_rest()
        self._arrive(link, int((deliveries.ends - deliveries.starts).sum()), len(deliveries), undecoded=len(deliveries))
        self._decode(deliveries.data, deliveries.starts, deliveries.ends)

    def on_message(self, link: ReceiverLink, message: Delivered) -> None:
        if not message.is_settled:
            link.settle(message.delivery_id, message.delivery_id, Accepted())
        self._undecoded.append(message.payload)
        self._arrive(link, len(message.payload), 1, undecoded=len(self._undecoded))

    def on_outcome(self, link: Link, delivery_id: int, state: DeliveryState | None) -> None:
        pass  # nothing is sent

    def on_detached(self, link: Link, error: Error | None) -> None:
        if link is not self._link:
            return  # it was never attached: whoever tried to knows
        self._link = None
        if error is not None and error.condition == STOLEN:
            self._failed = reader_lost(self._reading.where, self._reading.epoch, error)
        elif not self._service.is_closed:
            problem = self._refusal(error)
            log.warning("link_lost partition=%s reason=%s", self._reading.partition, problem)
            if isinstance(problem, HubUnavailable):
                self._lost = problem
            else:
                self._failed = problem
        self._changed.set()

    def _arrive(self, link: ReceiverLink, bytes_count: int, count: int, *, undecoded: int) -> None:
        self._attempts_count = 0
        self._arrived_bytes += bytes_count
        self._event_bytes += (bytes_count / count - self._event_bytes) / (SIZE_MEMORY if self._event_bytes else 1)
        self._supply(link, undecoded=undecoded)
        self._changed.set()

    def _decode_rest(self) -> None:
        """Decodes together what came message by message."""
        if self._undecoded:
            messages, self._undecoded = self._undecoded, []
            self._decode(*join_messages(messages))

    def _decode(self, data: Octets, starts: Positions, ends: Positions) -> None:
        bytes_count = int((ends - starts).sum())
        try:
            events = EventBatch(self._reading.partition, self._decoder.decode(data, starts, ends))
            newest = data[starts[-1] : ends[-1]].tobytes()
            metrics = read_runtime_metrics(newest, 0, len(newest))
        except AmqpDecodeError as error:
            # To go on after it would be to lose it.
            self._failed = self._failed or self._damaged(error)
            return
        self._keep(events, metrics, bytes_count)
        self._supply()  # for events that are not new, which nobody takes

    def _keep(self, events: EventBatch, metrics: RuntimeMetrics | None, bytes_count: int) -> None:
        """What is new among events that arrived waits to be taken."""
        batch = self._progress.take(events)
        if metrics is not None:
            self._progress.last_sequence = max(self._progress.last_sequence, metrics.last_sequence)
        if len(batch):
            self._arrived.append((batch, bytes_count))
        else:
            self._arrived_bytes -= bytes_count

    def _damaged(self, error: AmqpDecodeError) -> HubDamaged:
        where = self._reading.where
        return HubDamaged(
            f"{where} sends an event that cannot be read, when asked for {self._progress.start.selector}: {error}",
            hub=where.hub,
            partition=where.partition,
        )

    # Credit

    def _supply(self, link: ReceiverLink | None = None, *, undecoded: int = 0) -> None:
        """Lets as many events come as there is room for and are wanted, once that is half of what there could be.

        Where they turn out larger than those before, and are more than there is room for, no others are to come.
        """
        link = link or self._link
        if link is None:
            return
        credit = most = CREDIT_FIRST
        if self._event_bytes:
            window = WINDOW if self._end_sequence is None else RANGE_WINDOW
            if self._arrived_bytes > window.bytes_max and link.credit:
                link.grant(0)
                return
            credit = window.count(self._arrived_bytes, self._event_bytes)
            most = window.count(0, self._event_bytes)
        next_sequence = self._progress.start.next_sequence
        if self._end_sequence is not None and next_sequence is not None:
            wanted = max(self._end_sequence - next_sequence - undecoded, 0)
            credit, most = min(credit, wanted), min(most, wanted)
        if credit and credit - link.credit >= most / 2:
            link.grant(credit)

    def _clear(self) -> None:
        self._arrived.clear()
        self._undecoded.clear()
        self._arrived_bytes = 0


def _backoff_seconds(attempt: int) -> float:
    """Twice as long each time, and a random part of it: many that lost the same connection come back spread out."""
    longest = min(REATTACH_FIRST_SECONDS * 2 ** (attempt - 1), REATTACH_LAST_SECONDS)
    return random.uniform(longest / 2, longest)  # noqa: S311
