"""The reconnect after a network error, for every reader: processors, Spark's tasks, ``hubline tail`` and redrive.

No other code reconnects a reader. A receiver that is lost or falls silent is replaced by another one, which starts
after the last event. A hub's own receivers, such as :mod:`hubline.hubs.eventhubs.receiver`, raise HubUnavailable
instead. So do senders: the caller decides whether to send again. How long to pause between tries is
:class:`hubline.retry.RetryPolicy`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from hubline.concurrency import TimeLimit
from hubline.errors import HublineError, HubUnavailable, PartitionStalled, PositionInvalid, ReaderRefused, ReaderStolen
from hubline.hubs.hub_calls import describe_partition, pinned, within
from hubline.hubs.size_estimate import EVENT_BYTES_MIN, SizeEstimate
from hubline.model.events import EventBatch
from hubline.model.positions import Position, PositionKind
from hubline.ports import Hub, Receiver
from hubline.read_ahead import ReadAhead
from hubline.retry import RetryPolicy

log = logging.getLogger("hubline.hubs")


@dataclass(frozen=True, slots=True)
class ReconnectPolicy:
    """How patient a ReconnectingReceiver is.

    Attributes:
        backoff: The pauses between tries that fail in a row. How many there are, ``outage_seconds`` says.
        report: Called with what went wrong, each time that opening another receiver at once did not help.
        stall_seconds: After so long without an event the hub is asked whether it has any.
        call_seconds: What opening, closing and asking may take. By default as long as ``stall_seconds``.
        outage_seconds: A call that has been trying for so long raises what went wrong last. By default it never does.
        rng: Spreads the pauses.
    """

    backoff: RetryPolicy
    report: Callable[[HublineError], None]
    stall_seconds: float = 60.0
    call_seconds: float | None = None
    outage_seconds: float = math.inf
    rng: random.Random = field(default_factory=random.Random)

    @property
    def seconds_max(self) -> float:
        """What a single call of the hub may take."""
        return self.stall_seconds if self.call_seconds is None else self.call_seconds


class ReconnectingReceiver:
    """Reads one partition with as many receivers as it takes, and gives out each event once.

    Used as a :class:`~hubline.ports.Receiver`, by one task at a time. A receiver that has worked is replaced at once
    when it is lost, since services close links at times; whatever fails after that is reported and waited for.
    ``after_sequence`` is the last event before the position, if known.

    Where no other receiver would help, the error is raised: PositionInvalid, after which :meth:`seek` chooses where to
    continue; ReaderStolen, for a reader with an epoch; and whatever else the hub raises.
    """

    def __init__(
        self,
        hub: Hub,
        partition: str,
        *,
        group: str,
        position: Position,
        policy: ReconnectPolicy,
        epoch: int | None = None,
        after_sequence: int | None = None,
    ) -> None:
        self._hub = hub
        self._partition = partition
        self._group = group
        self._epoch = epoch
        self._policy = policy
        self._position = position
        self._after_sequence = after_sequence
        self._read_ahead: ReadAhead | None = None
        self._end_sequence: int | None = None
        self._is_counting = False  # whether the present receiver counts what it holds
        self._sizes = SizeEstimate()  # where it does not
        self._receiver: Receiver | None = None
        self._opening: asyncio.Task[Receiver] | None = None
        self._has_been_open = False
        self._is_proven = False  # whether the present receiver has answered a call
        self._failures = 0  # in a row
        self._silent_seconds = 0.0
        self._last_sequence: int | None = None

    @property
    def last_sequence(self) -> int | None:
        return self._last_sequence

    def prefetch(self, read_ahead: ReadAhead, *, end_sequence: int | None = None) -> None:
        """As of a PrefetchingReceiver, for this and all later receivers.

        One that cannot do it is asked for as many events as there is room for, if they are as large as those before.
        """
        self._read_ahead, self._end_sequence = read_ahead, end_sequence
        if self._receiver is not None:
            self._tell(self._receiver)

    def open_ahead(self) -> asyncio.Task[Receiver]:
        """Begins to open a receiver, unless that has begun. What goes wrong is raised by ``receive``."""
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(), name=f"hubline-open-{self._partition}")
        return self._opening

    def adopt(self, receiver: Receiver) -> None:
        """Uses a receiver that stands at the position already, in place of opening one."""
        self._use(receiver)

    def release(self) -> Receiver | None:
        """The receiver that stands after the last event, if there is one. It is the caller's from now on."""
        receiver, self._receiver = self._receiver, None
        return receiver

    async def seek(self, position: Position) -> None:
        """Continues from another position, with another receiver."""
        await self._drop()
        self._position = position
        self._after_sequence = None

    async def receive(self, *, max_count: int, wait_seconds: float) -> EventBatch:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._policy.outage_seconds
        while True:
            try:
                batch = await self._receive(max_count, wait_seconds)
                if batch is None and loop.time() >= end:
                    raise HubUnavailable(
                        f"{self._silence()}. Try again.", hub=self._hub.name, partition=self._partition
                    )
            except HubUnavailable as error:
                await self._fail(error, end)
            except ReaderStolen as error:
                if error.epoch is not None:
                    raise
                await self._fail(error, end)
            except PositionInvalid as error:
                if not self._is_nothing_missing(error):
                    raise
                await self._drop()
                self._position = Position.sequence(error.begin_sequence, inclusive=True)
            else:
                if batch is not None:
                    return batch

    async def close(self) -> None:
        await self._drop()

    async def _receive(self, max_count: int, wait_seconds: float) -> EventBatch | None:
        """What comes within the wait. None if that is nothing though there are events: the receiver has gone then."""
        receiver = self._receiver or await self._opened()
        if self._read_ahead is not None and not self._is_counting:
            max_count = min(max_count, self._fitting_count(self._read_ahead))
            if not max_count:
                return EventBatch.empty(self._partition)
        try:
            # A call that takes much longer than its wait hangs, whatever the reason.
            with TimeLimit(wait_seconds + self._policy.stall_seconds):
                batch = await receiver.receive(max_count=max_count, wait_seconds=wait_seconds)
        except TimeoutError:
            await self._stalled()
            return None
        self._last_sequence = receiver.last_sequence
        if len(batch):
            self._position = Position.offset(batch.last_offset)
            self._after_sequence = batch.last_sequence
            self._silent_seconds = 0.0
            if self._read_ahead is not None and not self._is_counting:
                self._sizes.arrived_alike(len(batch), _bytes_of(batch))
        elif self._read_ahead is not None and self._read_ahead.is_full:
            pass  # it waits for its caller
        elif await self._is_silent_for_too_long(wait_seconds):
            await self._stalled()
            return None
        self._is_proven = True
        return batch

    async def _opened(self) -> Receiver:
        opening = self.open_ahead()
        await asyncio.wait([opening])  # cancelled here, the next call has what was opened
        self._opening = None
        receiver = opening.result()
        self._use(receiver)
        return receiver

    def _use(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._has_been_open = True
        self._is_proven = False
        self._silent_seconds = 0.0
        self._is_counting = hasattr(receiver, "prefetch")  # it is a PrefetchingReceiver
        self._tell(receiver)

    def _tell(self, receiver: Receiver) -> None:
        if self._read_ahead is not None and (prefetch := getattr(receiver, "prefetch", None)) is not None:
            prefetch(self._read_ahead, end_sequence=self._end_sequence)

    def _fitting_count(self, ahead: ReadAhead) -> int:
        """How many events a receiver is asked for that does not count what it holds."""
        count = self._sizes.fitting_count(ahead)
        if not count:
            ahead.mark_full()
        return count

    async def _open(self) -> Receiver:
        hub, partition, seconds_max = self._hub, self._partition, self._policy.seconds_max
        self._position = await pinned(hub, partition, self._position, seconds_max=seconds_max)
        opening = hub.open_receiver(partition, group=self._group, position=self._position, epoch=self._epoch)
        try:
            receiver = await within(seconds_max, opening, what=f"open partition {partition}")
        except ReaderRefused as error:
            if self._epoch is None or not self._has_been_open:
                raise
            # A reader that came while the receiver was lost has taken the partition.
            raise ReaderStolen(
                f"another reader took partition {partition} of hub {error.hub} with epoch {error.held_epoch}. "
                "Stop one of them, or use another consumer group.",
                hub=error.hub,
                partition=partition,
                epoch=error.epoch,
                taken_by_epoch=error.held_epoch,
            ) from error
        self._tell(receiver)  # what is opened ahead reads ahead
        return receiver

    async def _fail(self, error: HubUnavailable | ReaderStolen, end: float) -> None:
        """Makes way for the next receiver, and waits unless this one has worked."""
        has_worked, self._is_proven = self._is_proven, False
        await self._drop()
        if asyncio.get_running_loop().time() >= end:
            raise error
        if has_worked:
            self._failures = 0
            log.warning("receiver_lost partition=%s after=%s reason=%s", self._partition, self._after_sequence, error)
            return
        self._failures += 1
        self._policy.report(error)
        await asyncio.sleep(self._policy.backoff.delay(self._failures, self._policy.rng))

    def _is_nothing_missing(self, error: PositionInvalid) -> bool:
        """Whether only the last event has expired, after which the offset asked for the next one."""
        is_next = self._after_sequence is not None and error.begin_sequence == self._after_sequence + 1
        return is_next and error.reason == "expired" and self._position.kind is PositionKind.OFFSET

    async def _is_silent_for_too_long(self, waited_seconds: float) -> bool:
        """Whether the hub holds events after the last one, and none has come for ``stall_seconds``."""
        self._silent_seconds += waited_seconds
        if self._silent_seconds < self._policy.stall_seconds:
            return False
        self._silent_seconds = 0.0
        return await self._is_behind()

    async def _is_behind(self) -> bool:
        """Whether the hub holds events after the last one. The first look sets what is not known yet."""
        held = await describe_partition(self._hub, self._partition, timeout_seconds=self._policy.seconds_max)
        if self._after_sequence is None:
            self._after_sequence = held.last_sequence
        return held.last_sequence > max(self._after_sequence, held.begin_sequence - 1)

    async def _stalled(self) -> None:
        log.warning("stalled partition=%s after=%s", self._partition, self._after_sequence)
        message = f"{self._silence()}. hubline opens another receiver."
        self._policy.report(PartitionStalled(message, partition=self._partition))
        await self._drop()

    def _silence(self) -> str:
        return (
            f"partition {self._partition} of hub {self._hub.name} has events after {self._after_sequence}, "
            f"but none arrived for {self._policy.stall_seconds:g} s"
        )

    async def _drop(self) -> None:
        """Closes what is open. Never raises: what was received counts, and an error here would hide another one."""
        opening, self._opening = self._opening, None
        receiver, self._receiver = self._receiver, None
        if opening is not None:
            opening.cancel()
            with suppress(asyncio.CancelledError, Exception):
                receiver = await opening
        if receiver is None:
            return
        try:
            await within(self._policy.seconds_max, receiver.close(), what=f"close partition {self._partition}")
        except Exception as error:  # noqa: BLE001 - a hub of the user's own may raise anything
            log.warning("receiver_not_closed partition=%s %s: %s", self._partition, type(error).__name__, error)


def _bytes_of(batch: EventBatch) -> int:
    """How many bytes the events take.

    Where they are so small that they count as `EVENT_BYTES_MIN` anyway, it is what their buffers take as a whole: to
    ask for the part of a slice takes as long as the rest of a small batch.
    """
    whole = int(batch.arrow.get_total_buffer_size())
    return whole if whole <= EVENT_BYTES_MIN * len(batch) else batch.nbytes
