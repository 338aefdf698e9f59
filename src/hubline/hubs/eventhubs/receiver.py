"""Receiving: a link that is kept supplied with credit, and its events as columns.

Nothing here reconnects. After a network error the receiver ends, and :mod:`hubline.hubs.reconnecting_receiver` opens
another one after the last event.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from typing import Final

import numpy as np

from hubline.amqp import conditions
from hubline.amqp.arrays import Octets, Positions
from hubline.amqp.codec.decode import Bytes
from hubline.amqp.codec.performatives import Accepted, Attach, DeliveryState, Error
from hubline.amqp.events.decoder import EventDecoder, join_messages
from hubline.amqp.events.reference_decoder import RuntimeMetrics, read_runtime_metrics
from hubline.amqp.transport.errors import AmqpDecodeError
from hubline.amqp.transport.link import Link
from hubline.amqp.transport.link import Message as Delivered
from hubline.amqp.transport.receiver_link import ReceiverLink
from hubline.amqp.transport.transfer_runs import Deliveries
from hubline.errors import HubDamaged, HubError, HubUnavailable, ReaderRefused
from hubline.hubs.argument_checks import require_count
from hubline.hubs.event_buffer import EventBuffer
from hubline.hubs.eventhubs.credit_window import BYTES_MAX, CreditWindow
from hubline.hubs.eventhubs.link_attach import ATTACH_SECONDS
from hubline.hubs.eventhubs.receive_link import Reading, open_receive_link, refusal
from hubline.hubs.eventhubs.service_connection import Service
from hubline.hubs.eventhubs.service_errors import reader_lost
from hubline.model.events import EventBatch
from hubline.read_ahead import ReadAhead
from hubline.text import sentences

log = logging.getLogger("hubline.hubs")

# What came in small pieces is given out together up to this: a copy of so much costs less than another call.
COALESCED_BYTES_MAX: Final = 256 * 1024

# Messages that came by themselves are decoded in groups of this size: for a moment there are three of each.
TOGETHER_BYTES: Final = 512 * 1024


class EventHubsReceiver:
    """Reads one partition, as :class:`~hubline.ports.PrefetchingReceiver` says, by one link.

    When the link is lost, what has arrived is still given out, and then every call raises HubUnavailable: a
    :class:`~hubline.hubs.reconnecting_receiver.ReconnectingReceiver` opens another receiver after the last event.

    The service counts messages, and may send larger ones than those before. What comes beyond the bound is dropped, and
    the link with it: another one brings it again, once there is room for it.
    """

    def __init__(self, service: Service, reading: Reading) -> None:
        self._service = service
        self._reading = reading
        self._progress = reading.progress
        self._decoder = EventDecoder(reading.partition)
        self._link: ReceiverLink | None = None
        self._window = CreditWindow()
        self._read_ahead = ReadAhead(BYTES_MAX)
        self._is_alone = True  # nobody else counts what is held
        self._buffer = EventBuffer(self._read_ahead)
        self._undecoded: list[Bytes] = []  # messages that came by themselves, after all that is in the buffer
        self._end_sequence: int | None = None
        self._last_sequence: int | None = None
        self._kept_offset: str | None = None  # of the last event that was kept
        self._failed: HubError | None = None  # nothing more is given out
        self._lost: HubError | None = None  # nothing more arrives
        self._is_cut = False  # more came than there was room for: the rest comes on another link
        self._changed = asyncio.Event()
        self._is_opening = False
        self._is_closed = False

    async def open(self) -> None:
        """Attaches, and waits for the first event where only that tells whether the position is good.

        How much else may come is not known yet.
        """
        try:
            await self._attach()
        except BaseException:
            await self.close()
            raise

    @property
    def last_sequence(self) -> int | None:
        return self._last_sequence

    def prefetch(self, read_ahead: ReadAhead, *, end_sequence: int | None = None) -> None:
        self._read_ahead.on_room = None
        self._read_ahead.hold(-self._undecoded_bytes)
        read_ahead.hold(self._undecoded_bytes)
        self._buffer.count_in(read_ahead)
        self._read_ahead, self._is_alone = read_ahead, False
        read_ahead.on_room = self._supply
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
            if self._buffer.count:
                return self._take(max_count)
            if self._is_out_of_room():
                self._read_ahead.mark_full()
                return EventBatch.empty(self._reading.partition)
            if self._is_cut:
                await self._reopen()
                continue
            self._require_link()
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
        self._read_ahead.on_room = None
        self._clear()
        self._end_link()
        self._changed.set()

    @property
    def _undecoded_bytes(self) -> int:
        return sum(map(len, self._undecoded))

    def _take(self, max_count: int) -> EventBatch:
        """The next events: one piece of what arrived, or several small ones."""
        batch = self._buffer.take(max_count, copied_bytes_max=COALESCED_BYTES_MAX)
        self._last_sequence = self._progress.last_sequence
        if self._is_alone:
            self._supply()  # where others count what they take, there is room once they release it
        return batch

    def _is_out_of_room(self) -> bool:
        """Whether nothing comes until the caller has released some of what it holds."""
        if not self._read_ahead.held_bytes:
            self._supply()
            return False
        if self._is_cut:
            return self._window.credit(0, self._read_ahead) is None
        self._supply()
        return self._link is not None and not self._link.credit and self._wanted() != 0

    async def _reopen(self) -> None:
        """Another link, in place of the one on which more came than there was room for."""
        if self._kept_offset is not None:
            self._progress = self._progress.after(self._kept_offset, await self._reading.describe())
            self._reading = replace(self._reading, progress=self._progress)
        try:
            await self._attach()
        except ReaderRefused as error:
            # A reader that came meanwhile has taken the partition: opening another receiver says so.
            where = self._reading.where
            raise HubUnavailable(str(error), hub=where.hub, partition=where.partition) from error
        except BaseException:
            self._end_link()
            raise
        self._is_cut = False
        if self._is_closed:
            self._end_link()
        self._supply()

    async def _attach(self) -> None:
        self._is_opening = True
        try:
            self._link = await open_receive_link(self._service, self._reading, self)
            if not self._progress.is_proven:
                self._link.grant(1)
                await self._first_event()
        finally:
            self._is_opening = False

    def _end_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.detach()
            link.session.end()

    def _require_readable(self) -> None:
        if self._is_closed:
            raise HubError("the receiver is closed. Open another one.", partition=self._reading.partition)
        failed = self._failed or self._progress.failed
        if failed is not None:
            # What was read ahead is not given out: the reader that took the partition reads it.
            self._clear()
            raise failed

    def _require_link(self) -> None:
        if self._lost is not None:
            self._service.require_open()
            raise self._lost

    async def _first_event(self) -> None:
        try:
            async with asyncio.timeout(ATTACH_SECONDS):
                while not self._progress.is_proven and self._lost is None and self._failed is None:
                    self._changed.clear()
                    await self._changed.wait()
                    self._decode_rest()
        except TimeoutError:
            raise HubUnavailable(
                f"{self._reading.where} has events at the position, but sent none. Try again.",
                hub=self._reading.where.hub,
                partition=self._reading.partition,
            ) from None
        self._require_readable()
        if not self._progress.is_proven:
            self._require_link()

    # What happens on the link

    def on_attached(self, link: Link, attach: Attach) -> None:
        pass  # the task that attached waits for it

    def on_deliveries(self, link: ReceiverLink, deliveries: Deliveries) -> None:
        if not deliveries.is_settled:
            link.settle(int(deliveries.delivery_ids[0]), int(deliveries.delivery_ids[-1]), Accepted())
        self._decode_rest()
        sizes = deliveries.ends - deliveries.starts
        bytes_count = int(sizes.sum())
        self._window.sizes.arrived(sizes, bytes_count)
        if bytes_count <= self._read_ahead.left or self._is_opening:  # one that proves the position always fits
            self._decode(deliveries.data, deliveries.starts, deliveries.ends)
        else:
            self._take_fitting(deliveries, sizes)
        self._changed.set()

    def on_message(self, link: ReceiverLink, message: Delivered) -> None:
        if not message.is_settled:
            link.settle(message.delivery_id, message.delivery_id, Accepted())
        size = len(message.payload)
        self._window.sizes.arrived(np.array([size]), size)
        if self._read_ahead.fits(size) or self._is_opening:
            self._read_ahead.hold(size)
            self._undecoded.append(message.payload)
            self._supply()
        else:
            self._cut(size)
        self._changed.set()

    def on_outcome(self, link: Link, delivery_id: int, state: DeliveryState | None) -> None:
        pass  # nothing is sent

    def on_detached(self, link: Link, error: Error | None) -> None:
        if link is not self._link:
            return  # it was never attached, and the attempt failed by itself
        self._link = None
        if error is not None and error.condition == conditions.STOLEN:
            self._failed = reader_lost(self._reading.where, self._reading.epoch, error)
        else:
            problem = refusal(self._reading, error)
            if isinstance(problem, HubUnavailable):
                self._lost = problem
            else:
                self._failed = problem
            if not self._service.is_closed:
                log.warning("link_lost partition=%s reason=%s", self._reading.partition, problem)
        self._changed.set()

    def _take_fitting(self, deliveries: Deliveries, sizes: Positions) -> None:
        """Keeps as many of the messages that came as there is room for: one, if nothing else is held."""
        count = int(np.searchsorted(np.cumsum(sizes), self._read_ahead.left, side="right"))
        count = max(count, 0 if self._read_ahead.held_bytes else 1)
        if count:
            self._decode(deliveries.data, deliveries.starts[:count], deliveries.ends[:count])
        if count < len(sizes):
            self._cut(int(sizes[count]))

    def _cut(self, event_bytes: int) -> None:
        """Drops what comes from here on. It is asked for again by a link of its own, without hurry."""
        log.info("read_ahead_cut partition=%s event_bytes=%d", self._reading.partition, event_bytes)
        self._decode_rest()
        self._window.sizes.expect(event_bytes)
        self._is_cut = True
        self._end_link()

    def _decode_rest(self) -> None:
        """Decodes what came message by message: together, but no more than a copy may take."""
        while self._undecoded:
            ends = np.cumsum([len(message) for message in self._undecoded])
            count = int(np.searchsorted(ends, TOGETHER_BYTES)) + 1
            messages, self._undecoded = self._undecoded[:count], self._undecoded[count:]
            self._read_ahead.hold(-sum(map(len, messages)))
            self._decode(*join_messages(messages))

    def _decode(self, data: Octets, starts: Positions, ends: Positions) -> None:
        bytes_count = int((ends - starts).sum())
        try:
            events = EventBatch(self._reading.partition, self._decoder.decode(data, starts, ends))
            newest = data[starts[-1] : ends[-1]].tobytes()
            metrics = read_runtime_metrics(newest, 0, len(newest))
        except AmqpDecodeError as error:
            # To continue after it would be to lose it.
            self._failed = self._failed or self._damaged(error)
            return
        self._keep(events, metrics, bytes_count)
        self._supply()

    def _keep(self, events: EventBatch, metrics: RuntimeMetrics | None, bytes_count: int) -> None:
        """What is new among events that arrived waits to be taken."""
        batch = self._progress.take(events)
        if metrics is not None:
            self._progress.last_sequence = max(self._progress.last_sequence, metrics.last_sequence)
        if len(batch):
            self._kept_offset = batch.last_offset
            self._buffer.put(batch, bytes_count)

    def _damaged(self, error: AmqpDecodeError) -> HubDamaged:
        where = self._reading.where
        return HubDamaged(
            sentences(
                f"{where} sends an event that cannot be read, when asked for {self._progress.start.selector}: {error}",
                "read on from a later position, and report this as a bug of hubline",
            ),
            hub=where.hub,
            partition=where.partition,
        )

    def _supply(self) -> None:
        """Lets more events come, if there is room for them and they are wanted."""
        if self._link is None or self._is_opening:
            return
        credit = self._window.credit(self._link.credit, self._read_ahead, wanted=self._wanted())
        if credit is not None:
            self._link.grant(credit)

    def _wanted(self) -> int | None:
        """How many events there are up to the end, where there is one."""
        next_sequence = self._progress.start.next_sequence
        if self._end_sequence is None or next_sequence is None:
            return None
        return max(self._end_sequence - next_sequence - len(self._undecoded), 0)

    def _clear(self) -> None:
        self._buffer.clear()
        self._read_ahead.release(self._undecoded_bytes)
        self._undecoded.clear()
