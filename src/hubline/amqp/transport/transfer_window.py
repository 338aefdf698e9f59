"""The flow control of a session: how many transfers its peer takes, and those that wait until it takes more."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final

from hubline.amqp.codec.decode import Bytes
from hubline.amqp.codec.performatives import Begin, Flow
from hubline.amqp.transport.link import SERIAL_MODULUS, left_of

# What may come is bounded by the credit of links, so the session's own window is never in the way.
INCOMING_WINDOW: Final = 2**31 - 1
OUTGOING_WINDOW: Final = 2**31 - 1

# Frames of a large delivery that are written at once: of the usual size they are 256 KiB, as the transport gets them.
FRAMES_AT_ONCE: Final = 4


class TransferWindow:
    """Counts the transfers of both directions. ``write`` gets frames once the peer's window has room for them."""

    def __init__(self, write: Callable[..., None]) -> None:
        self._write = write
        self._next_incoming_id = 0
        self._next_outgoing_id = 0
        self._remote_window = 0  # until the peer's begin
        self._queued: deque[tuple[Sequence[Bytes], int]] = deque()

    @property
    def room(self) -> int:
        """How many transfers may be sent now, in front of which none waits."""
        return 0 if self._queued else max(self._remote_window, 0)

    def send(self, frames: Sequence[Bytes], count: int) -> None:
        """Transfers, encoded, in pieces: written if the peer's window has room, kept for later if not."""
        if self._queued or self._remote_window < count:
            self._queued.append((frames, count))
        else:
            self._write_now(frames, count)

    def send_delivery(self, frames: Sequence[Sequence[Bytes]]) -> None:
        """One delivery, each frame in pieces: some at once if the peer's window has room, frame by frame if not."""
        at_once = FRAMES_AT_ONCE if len(frames) <= self._remote_window else 1
        for start in range(0, len(frames), at_once):
            some = frames[start : start + at_once]
            self.send(list(chain.from_iterable(some)), len(some))

    def count_received(self, count: int) -> None:
        self._next_incoming_id = (self._next_incoming_id + count) % SERIAL_MODULUS

    def begin(self, remote_channel: int | None, *, handle_max: int) -> Begin:
        """What this side says in its begin."""
        return Begin(
            remote_channel=remote_channel,
            next_outgoing_id=self._next_outgoing_id,
            incoming_window=INCOMING_WINDOW,
            outgoing_window=OUTGOING_WINDOW,
            handle_max=handle_max,
        )

    def take_begin(self, begin: Begin) -> None:
        self._next_incoming_id = begin.next_outgoing_id
        self._remote_window = begin.incoming_window

    def flow(self, *, handle: int | None, delivery_count: int | None, credit: int | None, drain: bool) -> Flow:
        """Where this side stands, for the peer; with a handle, its link as well."""
        return Flow(
            next_incoming_id=self._next_incoming_id,
            incoming_window=INCOMING_WINDOW,
            next_outgoing_id=self._next_outgoing_id,
            outgoing_window=OUTGOING_WINDOW,
            handle=handle,
            delivery_count=delivery_count,
            link_credit=credit,
            drain=drain,
        )

    def take_flow(self, flow: Flow) -> None:
        """Where the peer stands: what waits is written as far as there is room now."""
        self._next_incoming_id = flow.next_outgoing_id
        self._remote_window = left_of(
            flow.incoming_window, sent=self._next_outgoing_id, seen=flow.next_incoming_id or 0
        )
        while self._queued and self._queued[0][1] <= self._remote_window:
            self._write_now(*self._queued.popleft())

    def clear(self) -> None:
        """Forgets what waits: the session is over."""
        self._queued.clear()

    def _write_now(self, frames: Sequence[Bytes], count: int) -> None:
        self._next_outgoing_id = (self._next_outgoing_id + count) % SERIAL_MODULUS
        self._remote_window -= count
        self._write(*frames)
