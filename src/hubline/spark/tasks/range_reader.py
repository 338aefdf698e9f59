"""The task's side: reads ranges in Spark's Python workers, which live longer than a task.

A worker keeps the links of its last tasks, on the loop that :mod:`.event_loop` runs: the next batch continues
where a link stands, without connecting. What is not used for a while is closed. All of it ends with the process: a
worker that dies leaves nothing behind, since its readers have no epoch and hold nobody off.

While Spark takes a batch from the task's thread, the next ones are received and decoded in the loop's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from hubline.errors import HubError, HublineError, PositionInvalid
from hubline.hubs.data_loss import accept_data_loss
from hubline.hubs.hub_calls import describe_partition
from hubline.hubs.reconnecting_receiver import ReconnectingReceiver, ReconnectPolicy
from hubline.model.events import EventBatch
from hubline.model.positions import Position
from hubline.ports import Hub
from hubline.read_ahead import ReadAhead, ReadAheadPool
from hubline.retry import RetryPolicy
from hubline.spark.arrow_columns import Layout
from hubline.spark.options import Options
from hubline.spark.source.offsets import Range
from hubline.spark.source.position_lookup import Places
from hubline.spark.tasks import event_loop as process
from hubline.spark.tasks.handoff_queue import HandoffQueue
from hubline.spark.tasks.links import LinkKey, Links

log = logging.getLogger("hubline.spark")

# Events asked of a receiver at once, half of what one has on the way.
COUNT_MAX: Final = 20_000
# Ranges whose links are opened before their turn: their events arrive while others are read.
AHEAD_RANGES_MAX: Final = 4
# Between two tries to reach a hub: soon enough for one that only restarted, and no flood for one that did not.
RETRY: Final = RetryPolicy(initial_backoff_seconds=0.5, max_backoff_seconds=5.0)
# Events that are known to be there come at once. After this long the hub is asked whether they still are.
SILENCE_SECONDS: Final = 5.0


def read_ranges(options: Options, ranges: Sequence[Range], layout: Layout) -> Iterator[pa.RecordBatch]:
    """The events of the ranges, one range after the other, as Spark was promised them."""
    loop = process.loop()
    handoff = HandoffQueue(loop, options.prefetch_bytes)
    reading = asyncio.run_coroutine_threadsafe(_read(options, ranges, layout, handoff), loop)
    try:
        yield from handoff
    finally:
        # Spark takes no more than a query's limit: then the rest is not read.
        reading.cancel()


async def _read(options: Options, ranges: Sequence[Range], layout: Layout, handoff: HandoffQueue) -> None:
    """One task's reading, on the loop. What goes wrong is raised in the task's thread."""
    async with process.shared_hub(options.hub) as opened:
        pool = ReadAheadPool(options.prefetch_bytes)
        readers = [_RangeReader(opened.links, opened.hub, options, wanted, pool) for wanted in ranges]
        try:
            for number, reader in enumerate(readers):
                window = readers[number : number + AHEAD_RANGES_MAX]
                for ahead in window:
                    ahead.join()  # all of them, before the first asks for its part of what they may hold together
                for ahead in window:
                    ahead.open_ahead()
                async for batch in reader.batches():
                    handoff.put(layout.arranged(batch, replayed_to=reader.wanted.replayed_to), reader.read_ahead)
                reader.keep_link()
                await reader.close()
            handoff.end()
        except Exception as error:  # noqa: BLE001 - raised in the task's thread
            handoff.end(error)
        finally:
            for reader in readers:
                await reader.close()


class _RangeReader:
    """Reads one range, and no event twice."""

    def __init__(self, links: Links, hub: Hub, options: Options, wanted: Range, pool: ReadAheadPool) -> None:
        self._links = links
        self._hub = hub
        self._options = options
        self.wanted = wanted
        self.read_ahead = ReadAhead(options.prefetch_bytes, pool)
        self._next_sequence = wanted.start
        self._is_beyond = False  # whether the receiver has given out events after the range
        self._is_joined = False
        self._is_started = False
        self._receiver = ReconnectingReceiver(
            hub,
            wanted.partition,
            group=options.consumer_group,
            position=Position.sequence(wanted.start, inclusive=True),
            after_sequence=wanted.start - 1,
            policy=ReconnectPolicy(
                RETRY,
                self._note_retry,
                stall_seconds=self._silence_seconds,
                call_seconds=options.receiver_timeout_seconds,
                outage_seconds=options.receiver_timeout_seconds,
            ),
        )
        self._receiver.prefetch(self.read_ahead, end_sequence=wanted.end)

    def join(self) -> None:
        """From now on the range has its part of what those of the task may hold."""
        if not self._is_joined:
            self._is_joined = True
            self.read_ahead.join()

    def open_ahead(self) -> None:
        """Begins to open the receiver, unless that has begun: a link that waits for this range is used."""
        if self._is_started:
            return
        self._is_started = True
        kept = self._links.take(self._key, self._next_sequence)
        if kept is None:
            self._receiver.open_ahead()
        else:
            self._receiver.adopt(kept)

    async def batches(self) -> AsyncIterator[EventBatch]:
        """The events, in order. If the hub cannot be reached, it retries while its timeout lasts."""
        self.open_ahead()
        while self._next_sequence < self.wanted.end:
            try:
                batch = await self._receive()
            except PositionInvalid as error:
                self._next_sequence = self._after_gap(error)
                await self._receiver.seek(Position.sequence(self._next_sequence, inclusive=True))
            else:
                yield batch

    def keep_link(self) -> None:
        """The range is read: its receiver stands where the next one begins."""
        if self._is_beyond:
            return
        receiver = self._receiver.release()
        if receiver is not None:
            self._links.keep(self._key, receiver, self._next_sequence)

    async def close(self) -> None:
        """Ends what the range has open. Closing twice is fine."""
        if self._is_joined:
            self._is_joined = False
            self.read_ahead.leave()
        await self._receiver.close()

    async def _receive(self) -> EventBatch:
        max_count = min(self.wanted.end - self._next_sequence, COUNT_MAX)
        batch = await self._receiver.receive(max_count=max_count, wait_seconds=self._silence_seconds)
        while not len(batch) and self.read_ahead.is_full:
            await self.read_ahead.released()  # by Spark, which takes what it was handed
            batch = await self._receiver.receive(max_count=max_count, wait_seconds=self._silence_seconds)
        if not len(batch):
            raise await self._beyond()
        if batch.last_sequence >= self.wanted.end:
            # Sequence numbers may have holes, where a hub is compacted: then fewer events fill the range.
            sequences = batch.arrow.column("sequenceNumber").to_numpy()
            batch = batch.slice(0, int(np.searchsorted(sequences, self.wanted.end)))
            self._is_beyond = True
        self._next_sequence = self.wanted.end if self._is_beyond else batch.last_sequence + 1
        return batch

    @property
    def _key(self) -> LinkKey:
        return self._options.consumer_group, self.wanted.partition

    @property
    def _silence_seconds(self) -> float:
        return min(SILENCE_SECONDS, self._options.receiver_timeout_seconds)

    def _note_retry(self, error: HublineError) -> None:
        log.warning("range_retried partition=%s next=%d %s", self.wanted.partition, self._next_sequence, error)

    async def _beyond(self) -> HubError:
        """The events of a range are there. If the hub has no more, it is another hub by now."""
        seconds_max = self._options.receiver_timeout_seconds
        there = await describe_partition(self._hub, self.wanted.partition, timeout_seconds=seconds_max)
        places = Places(self._hub, group=self._options.consumer_group, seconds_max=seconds_max)
        return places.invalid("beyond", Position.sequence(self.wanted.end - 1, inclusive=True), there)

    def _after_gap(self, error: PositionInvalid) -> int:
        """Where to continue, as the user chose. The planner could not know: the events went since it looked."""
        if error.reason == "expired" and self._next_sequence < self.wanted.replayed_to:
            # Handled before it went: nothing is lost. Should newer ones be gone as well, the next try finds that out.
            return min(error.begin_sequence, self.wanted.replayed_to, self.wanted.end)
        accept_data_loss(error, self._options.on_data_loss)
        if self._options.on_data_loss == "earliest" and self._next_sequence < error.begin_sequence:
            return min(error.begin_sequence, self.wanted.end)
        return self.wanted.end
