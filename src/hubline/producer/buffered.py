"""The producer that does not wait: `send` returns once there is room for the events, and they are sent meanwhile."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

import numpy as np
import pyarrow as pa

from hubline.addresses.option_checks import checked
from hubline.addresses.option_kinds import ByteSize, Count, Seconds
from hubline.addresses.values import byte_count
from hubline.concurrency import BackgroundTasks, cancel
from hubline.errors import FailedSend, SendFailed
from hubline.hubs.event_sizes import parts_by_size
from hubline.model.events import NewEvent, OutgoingRow, outgoing_events, outgoing_rows
from hubline.ports import HubOrAddress
from hubline.producer.lanes import SEND_BYTES_MAX, Piece
from hubline.producer.outlet import (
    COLUMNS,
    EVENT_OVERHEAD_BYTES,
    MAX_OUTAGE_SECONDS,
    Outlet,
    columns_of,
    failure,
    pieces_of,
    send_failed,
    sizes_of,
)
from hubline.producer.room import Room
from hubline.producer.routing import Indexes
from hubline.tracebacks import format_failure

log = logging.getLogger("hubline.producer")

MAX_BUFFER_BYTES: Final = 32 * 1024 * 1024
MAX_BUFFER_EVENTS: Final = 100_000

# So many rows become columns at once: enough to share the cost, few enough that sending begins early.
PACK_EVENTS_MAX: Final = 2_000
OnError = Callable[[FailedSend], object]


class BufferedProducer:
    """Sends events to a hub in the background. `send` waits only while the buffer is full.

    What failed is never dropped silently: `on_error` gets it; without one, the next `send`, `flush` or the end of the
    `async with` raises SendFailed, which has it. Use it from one event loop.

    Args:
        hub: An address, or an open hub, which stays open.
        on_error: A function, plain or async, that is called with each `FailedSend`. It may send the events again.
        max_buffer_bytes: What may wait to be kept by the hub, also as text such as `"1MiB"`. Default: 32 MiB.
        max_buffer_events: The same, in events. Default: 100,000.
        max_outage_seconds: How long a send is retried while the hub cannot be reached. Default: 60.

    Example:
        async with hubline.BufferedProducer("local:./data/telemetry") as producer:
            for reading in readings:
                await producer.send(reading, partition_key="device-7")
    """

    @checked
    def __init__(
        self,
        hub: HubOrAddress,
        *,
        on_error: OnError | None = None,
        max_buffer_bytes: ByteSize = MAX_BUFFER_BYTES,
        max_buffer_events: Count = MAX_BUFFER_EVENTS,
        max_outage_seconds: Seconds = MAX_OUTAGE_SECONDS,
    ) -> None:
        self._outlet = Outlet(hub, max_outage_seconds=max_outage_seconds)
        self._on_error = on_error
        max_bytes = byte_count(max_buffer_bytes)
        self._room = Room(max_bytes, max_buffer_events)
        self._max_part_bytes = min(max_bytes, SEND_BYTES_MAX)
        self._max_part_events = max_buffer_events
        self._intake = _Intake()
        self._given_count = 0
        self._packer: asyncio.Task[None] | None = None
        self._reports = BackgroundTasks()
        self._failures: list[FailedSend] = []

    async def __aenter__(self) -> Self:
        await self._outlet.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except SendFailed as failed:
            if error is None:
                raise
            log.warning("send_failed hub=%s error=%s", self._outlet.name, failed)  # it must not hide the other error

    @property
    def buffered_events(self) -> int:
        """How many events the hub has not kept yet."""
        return self._room.events_count

    @property
    def buffered_bytes(self) -> int:
        """How many bytes these are."""
        return self._room.bytes_count

    async def send(
        self,
        events: NewEvent | Iterable[NewEvent] | pa.RecordBatch,
        *,
        partition_key: str | None = None,
        partition_id: str | None = None,
    ) -> None:
        """Take events to send, and return once there is room for them.

        Events of one partition that are sent with the same kind of target stay in order. An event goes to the partition
        of its key; without a key, to any.

        Args:
            events: One event or several, as for `Producer.send`.
            partition_key: The key of the events that have no other. Default: None.
            partition_id: Sends all to this partition, whatever their keys. Default: None.

        Raises:
            ConfigError: An event or an argument is wrong. None of the events is sent.
            PartitionNotFound: The hub has no such partition. None of the events is sent.
            SendFailed: Without `on_error`: events that were given before could not be sent. These were not taken.
        """
        await self._outlet.require_target(partition_id, partition_key)
        self._raise_failures(" The events of this call were not taken. Send these again, too.")
        if isinstance(events, COLUMNS):
            await self._send_columns(columns_of(events, partition_key), partition_id)
            return
        rows = outgoing_rows(events, partition_key=partition_key)
        _require_text(rows)
        for row in rows:
            size = _size_of(row)
            if not self._room.try_take(size, 1):
                await self._packed()  # what waits here must be on its way, for room to come
                await self._room.take(size, 1)
            self._intake.add(row, size, self._given_count, partition_id)
            self._given_count += 1
            if self._intake.is_full:
                await self._packed()
        if self._intake.count:
            self._start_packing()

    async def flush(self) -> None:
        """Return once the hub has kept all that was given before, or it has failed.

        Raises:
            SendFailed: Without `on_error`: some events could not be sent. Its `failures` have them.
        """
        await self._flushed()
        self._raise_failures()

    async def close(self) -> None:
        """Flush, and close what was opened. Closing twice is fine.

        Raises:
            SendFailed: As `flush`.
        """
        try:
            if not self._outlet.is_closed:
                await self._flushed()
            self._outlet.is_closed = True
            await self._flushed()  # what on_error sent again
        finally:
            if self._packer is not None:
                await cancel([self._packer])
            left_count = self._room.events_count
            await self._outlet.close()
            if left_count:  # somebody did not want to wait for them
                log.warning("not_sent hub=%s events=%d", self._outlet.name, left_count)
        self._raise_failures()

    # For the lanes

    def sent(self, piece: Piece) -> None:
        """For hubline's own parts: the hub has kept some events.

        Args:
            piece: The events.
        """
        self._room.give(piece.bytes_count, len(piece))

    def failed(self, piece: Piece, error: Exception) -> None:
        """For hubline's own parts: the hub has not kept some events.

        Args:
            piece: The events.
            error: The reason.
        """
        self._room.give(piece.bytes_count, len(piece))
        failed = failure(piece, error, what=f"event {piece.numbers[0]:,} of those that the producer was given")
        if self._on_error is None:
            self._failures.append(failed)
        else:
            self._reports.spawn(_report(self._on_error, failed))

    async def _send_columns(self, columns: pa.RecordBatch, partition_id: str | None) -> None:
        if not len(columns):
            return
        ids = await self._outlet.partition_ids()
        sizes = sizes_of(columns)
        for start, stop in parts_by_size(sizes, max_bytes=self._max_part_bytes, max_events=self._max_part_events):
            await self._packed()  # what was given before is sent before
            await self._room.take(int(sizes[start:stop].sum()), stop - start)
            numbers = np.arange(self._given_count, self._given_count + stop - start)
            self._given_count += stop - start
            self._put(columns.slice(start, stop - start), numbers, sizes[start:stop], partition_id, ids)

    def _start_packing(self) -> asyncio.Task[None]:
        """A task that packs all that waits, also what comes until it ends."""
        if self._packer is None or self._packer.done():
            self._packer = asyncio.create_task(self._pack())
        return self._packer

    async def _packed(self) -> None:
        """Returns when all that waits is on its way, which it is also if the caller is cancelled."""
        await asyncio.shield(self._start_packing())

    async def _pack(self) -> None:
        """Makes columns of the rows that wait, and gives them to the lanes."""
        while self._intake.count:
            taken, self._intake = self._intake, _Intake()
            for partition_id, rows in taken.by_target.items():
                events = outgoing_events(rows.rows)
                sizes, numbers = np.array(rows.sizes, np.int64), np.array(rows.numbers, np.int64)
                try:
                    ids = await self._outlet.partition_ids()
                except Exception as error:  # noqa: BLE001 - they were taken: what keeps them from being sent is reported
                    self.failed(Piece(events, numbers, int(sizes.sum()), partition_id, self), error)
                else:
                    self._put(events, numbers, sizes, partition_id, ids)

    def _put(
        self,
        events: pa.RecordBatch,
        numbers: Indexes,
        sizes: Indexes,
        partition_id: str | None,
        partition_ids: Sequence[str],
    ) -> None:
        for piece in pieces_of(events, numbers, sizes, partition_id, partition_ids, giver=self):
            self._outlet.lanes.put(piece)

    async def _flushed(self) -> None:
        await self._packed()
        await self._outlet.lanes.drained()
        # on_error may flush: it does not wait for itself.
        if reports := [task for task in self._reports if task is not asyncio.current_task()]:
            await asyncio.wait(reports)

    def _raise_failures(self, more: str = "") -> None:
        if self._failures:
            raise self._take_failures(more)

    def _take_failures(self, more: str = "") -> SendFailed:
        failures, self._failures = self._failures, []
        return send_failed(failures, hub=self._outlet.name, more=more)


@dataclass(slots=True)
class _Rows:
    """Events that wait to become columns, the bytes they count, and their numbers."""

    rows: list[OutgoingRow] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)


class _Intake:
    """Rows that wait to become columns, by the partition that their sender named."""

    def __init__(self) -> None:
        self.by_target: dict[str | None, _Rows] = {}
        self.count = 0
        self._bytes_count = 0

    @property
    def is_full(self) -> bool:
        return self.count >= PACK_EVENTS_MAX or self._bytes_count >= SEND_BYTES_MAX

    def add(self, row: OutgoingRow, size: int, number: int, partition_id: str | None) -> None:
        rows = self.by_target.get(partition_id)
        if rows is None:
            rows = self.by_target[partition_id] = _Rows()
        rows.rows.append(row)
        rows.sizes.append(size)
        rows.numbers.append(number)
        self.count += 1
        self._bytes_count += size


def _size_of(row: OutgoingRow) -> int:
    body, key, properties = row
    size = EVENT_OVERHEAD_BYTES + len(body) + (len(key) if key else 0)
    return size + sum(len(name) + len(text) for name, text in properties) if properties else size


def _require_text(rows: Sequence[OutgoingRow]) -> None:
    """Refuses here, to the caller, what could not become columns later."""
    for _, key, properties in rows:
        texts = [key] if key is not None else []
        if properties:
            texts += [text for pair in properties for text in pair]
        if not all(map(_is_text, texts)):
            outgoing_events(rows)  # which says what is wrong with which event
            return


def _is_text(value: object) -> bool:
    try:
        value.encode()  # type: ignore[attr-defined]
    except (AttributeError, UnicodeEncodeError):
        return False
    return isinstance(value, str)


async def _report(on_error: OnError, failed: FailedSend) -> None:
    try:
        result = on_error(failed)
        if inspect.isawaitable(result):
            await result
    except Exception as error:  # noqa: BLE001 - nothing comes after on_error: its own failure can only be logged
        log.error("on_error_failed %s", format_failure(error))
