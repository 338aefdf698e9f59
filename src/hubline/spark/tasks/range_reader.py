"""The task's side: reads ranges in Spark's Python workers, which live longer than a task.

A worker keeps the links of its last tasks, on the loop that :mod:`.event_loop` runs: the next batch goes on
where a link stands, without connecting. What is not used for a while is closed. All of it ends with the process: a
worker that dies leaves nothing behind, since its readers have no epoch and hold nobody off.

While Spark takes a batch from the task's thread, the next ones are received and decoded in the loop's.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa

from hubline.addresses.hub_address import HubAddress
from hubline.errors import HubError, HublineError, HubUnavailable, PositionInvalid, ReaderStolen
from hubline.hubs.hub_calls import describe_partition, within
from hubline.model.events import EventBatch
from hubline.model.positions import Position
from hubline.ports import Hub, Receiver
from hubline.spark.options import Options
from hubline.spark.schema import Layout
from hubline.spark.source.offsets import Range
from hubline.spark.source.position_lookup import Places
from hubline.spark.tasks import event_loop as process

log = logging.getLogger("hubline.spark.tasks.range_reader")

# Events asked of a receiver at once, half of what one has on the way.
COUNT_MAX: Final = 20_000
# Received and arranged, and not yet taken by Spark. Enough that neither waits for the other; a task holds no more.
AHEAD_BYTES_MAX: Final = 16 * 1024 * 1024
# Ranges whose links are opened before their turn: their events arrive while others are read.
AHEAD_RANGES_MAX: Final = 4
# A link waits this long for its next range. The service takes five readers of a partition in a group: where many
# workers take turns, those that do not get it again must let go soon.
LINK_IDLE_SECONDS: Final = 10.0
# Between two tries to reach a hub: soon enough for one that only restarted, and no flood for one that did not.
RETRY_SECONDS: Final = 0.5
# Events that are known to be there come at once. After this long the hub is asked whether they still are.
SILENCE_SECONDS: Final = 5.0

LinkKey = tuple[HubAddress, str, str]


def read_ranges(options: Options, ranges: Sequence[Range], layout: Layout) -> Iterator[pa.RecordBatch]:
    """The events of the ranges, one range after the other, as Spark was promised them."""
    loop = process.loop()
    feed = Feed(loop)
    reading = asyncio.run_coroutine_threadsafe(_read(options, ranges, layout, feed), loop)
    try:
        yield from feed
    finally:
        # Spark takes no more than a query's limit: then the rest is not read.
        reading.cancel()


class Feed:
    """Hands batches from the loop's thread to the task's, bounded in bytes. The loop's side calls all but iteration.

    Each thread wakes the other seldom, which takes longer than the rest: a loop that waits for room is woken once there
    is room for many batches.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: queue.SimpleQueue[tuple[pa.RecordBatch, int] | BaseException | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._bytes = 0
        self._is_awaited = False
        self._room = asyncio.Event()

    async def put(self, batch: pa.RecordBatch) -> None:
        bytes_count = batch.nbytes
        while not self._has_room(bytes_count):
            await self._room.wait()
        self._queue.put((batch, bytes_count))

    def end(self, error: BaseException | None = None) -> None:
        self._queue.put(error)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while True:
            taken = self._queue.get()
            if taken is None:
                return
            if isinstance(taken, BaseException):
                raise taken
            batch, bytes_count = taken
            yield batch
            self._give_room(bytes_count)

    def _has_room(self, bytes_count: int) -> bool:
        """Takes the room, if there is any."""
        with self._lock:
            if self._bytes < AHEAD_BYTES_MAX:
                self._bytes += bytes_count
                return True
            self._is_awaited = True
            self._room.clear()
            return False

    def _give_room(self, bytes_count: int) -> None:
        with self._lock:
            self._bytes -= bytes_count
            is_enough = self._is_awaited and self._bytes < AHEAD_BYTES_MAX // 2
            if is_enough:
                self._is_awaited = False
        if is_enough:
            self._loop.call_soon_threadsafe(self._room.set)


@dataclass(slots=True)
class _Link:
    """A receiver that stands before ``next_sequence``, until it is closed."""

    receiver: Receiver
    next_sequence: int
    expiry: asyncio.TimerHandle


class Links:
    """The links that wait for their next range, one for each partition. Their hubs stay open longer than they do."""

    def __init__(self) -> None:
        self._waiting: dict[LinkKey, _Link] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def take(self, key: LinkKey, next_sequence: int) -> Receiver | None:
        """The link that stands right there, if there is one. One that stands elsewhere is of no more use."""
        link = self._waiting.get(key)
        if link is None or link.next_sequence != next_sequence:
            self._expire(key)
            return None
        del self._waiting[key]
        link.expiry.cancel()
        return link.receiver

    def keep(self, key: LinkKey, receiver: Receiver, next_sequence: int) -> None:
        """For the next range. A link that waits there already goes."""
        self._expire(key)
        expiry = asyncio.get_running_loop().call_later(LINK_IDLE_SECONDS, self._expire, key)
        self._waiting[key] = _Link(receiver, next_sequence, expiry)

    def _expire(self, key: LinkKey) -> None:
        link = self._waiting.pop(key, None)
        if link is not None:
            link.expiry.cancel()
            closing = asyncio.create_task(_close(link.receiver))
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)


async def _close(receiver: Receiver) -> None:
    with suppress(HublineError):  # what cannot be closed in good order is gone already
        await receiver.close()


_links: WeakKeyDictionary[asyncio.AbstractEventLoop, Links] = WeakKeyDictionary()


async def _read(options: Options, ranges: Sequence[Range], layout: Layout, feed: Feed) -> None:
    """One task's reading, on the loop. What goes wrong is raised in the task's thread."""
    links = _links.setdefault(asyncio.get_running_loop(), Links())
    async with process.lent(options.hub) as opened:
        readers = [_RangeReader(links, opened.hub, options, wanted) for wanted in ranges]
        try:
            for number, reader in enumerate(readers):
                for ahead in readers[number : number + AHEAD_RANGES_MAX]:
                    ahead.open_ahead()
                async for batch in reader.batches():
                    await feed.put(layout.arranged(batch, replayed_to=reader.wanted.replayed_to))
                reader.keep_link()
            feed.end()
        except Exception as error:  # noqa: BLE001 - raised in the task's thread
            feed.end(error)
        finally:
            for reader in readers:
                await reader.close()


@runtime_checkable
class ReadsTo(Protocol):
    """A receiver that can be kept from asking for more than is wanted."""

    def read_to(self, end_sequence: int) -> None: ...


class _RangeReader:
    """Reads one range, with as many receivers as it takes, and no event twice."""

    def __init__(self, links: Links, hub: Hub, options: Options, wanted: Range) -> None:
        self._links = links
        self._hub = hub
        self._options = options
        self.wanted = wanted
        self._next_sequence = wanted.start
        self._opening: asyncio.Task[Receiver] | None = None
        self._is_beyond = False  # whether the receiver has given out events after the range

    def open_ahead(self) -> None:
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())

    async def batches(self) -> AsyncIterator[EventBatch]:
        """The events, in order. A hub that cannot be reached is tried again while its timeout lasts."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._options.receiver_timeout_seconds
        while self._next_sequence < self.wanted.end:
            try:
                batch = await self._receive()
            except (HubUnavailable, ReaderStolen) as error:
                await self.close()
                if loop.time() >= deadline:
                    raise
                log.warning("range_retried partition=%s next=%d %s", self.wanted.partition, self._next_sequence, error)
                await asyncio.sleep(RETRY_SECONDS)
            except PositionInvalid as error:
                await self.close()
                self._next_sequence = self._after_gap(error)
            else:
                deadline = loop.time() + self._options.receiver_timeout_seconds
                yield batch

    def keep_link(self) -> None:
        """The range is read: its receiver stands where the next one begins."""
        if self._opening is not None and self._opening.done() and not self._is_beyond:
            self._links.keep(self._key, self._opening.result(), self._next_sequence)
            self._opening = None

    async def close(self) -> None:
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.cancel()
            with suppress(asyncio.CancelledError, HublineError):
                await (await opening).close()

    async def _receive(self) -> EventBatch:
        self.open_ahead()
        assert self._opening is not None  # noqa: S101 - it was just made
        receiver = await self._opening
        if isinstance(receiver, ReadsTo):
            receiver.read_to(self.wanted.end)
        left_count = self.wanted.end - self._next_sequence
        batch = await receiver.receive(max_count=min(left_count, COUNT_MAX), wait_seconds=self._silence_seconds)
        if not len(batch):
            raise await self._explained_silence()
        if batch.last_sequence >= self.wanted.end:
            # Sequence numbers may have holes, where a hub is compacted: then fewer events fill the range.
            sequences = batch.arrow.column("sequenceNumber").to_numpy()
            batch = batch.slice(0, int(np.searchsorted(sequences, self.wanted.end)))
            self._is_beyond = True
        self._next_sequence = self.wanted.end if self._is_beyond else batch.last_sequence + 1
        return batch

    async def _open(self) -> Receiver:
        kept = self._links.take(self._key, self._next_sequence)
        if kept is not None:
            return kept
        partition = self.wanted.partition
        position = Position.sequence(self._next_sequence, inclusive=True)
        opening = self._hub.open_receiver(partition, group=self._options.consumer_group, position=position)
        return await within(self._options.receiver_timeout_seconds, opening, what=f"open partition {partition}")

    @property
    def _key(self) -> LinkKey:
        return self._options.hub, self._options.consumer_group, self.wanted.partition

    @property
    def _silence_seconds(self) -> float:
        return min(SILENCE_SECONDS, self._options.receiver_timeout_seconds)

    async def _explained_silence(self) -> HubError:
        """The events of a range are there. If none come, it is the hub that changed, or the link that is dead."""
        partition = self.wanted.partition
        there = await describe_partition(self._hub, partition, timeout_seconds=self._options.receiver_timeout_seconds)
        if self.wanted.end > there.last_sequence + 1:
            places = Places(
                self._hub, group=self._options.consumer_group, seconds_max=self._options.receiver_timeout_seconds
            )
            return places.invalid("beyond", Position.sequence(self.wanted.end - 1, inclusive=True), there)
        return HubUnavailable(
            f"partition {partition} of hub {self._hub.name} has sent nothing from {self._next_sequence} on for "
            f"{self._silence_seconds:g} s, though it holds events up to {there.last_sequence}",
            hub=self._hub.name,
            partition=partition,
        )

    def _after_gap(self, error: PositionInvalid) -> int:
        """Where to go on, as the user chose. The planner could not know: the events went since it looked."""
        if error.reason == "expired" and self._next_sequence < self.wanted.replayed_to:
            # Handled before it went: nothing is lost. Should newer ones be gone as well, the next try finds that out.
            return min(error.begin_sequence, self.wanted.replayed_to, self.wanted.end)
        choice = self._options.on_data_loss
        if choice == "fail":
            raise error
        log.error("gap partition=%s next=%d %s choice=%s", error.partition, self._next_sequence, error.reason, choice)
        if choice == "earliest" and self._next_sequence < error.begin_sequence:
            return min(error.begin_sequence, self.wanted.end)
        return self.wanted.end
