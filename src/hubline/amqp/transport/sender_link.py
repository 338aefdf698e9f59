"""The sending end of a link."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from hubline.amqp.codec.decode import Bytes
from hubline.amqp.codec.performatives import SENDER, DeliveryState, Flow, Transfer
from hubline.amqp.transport.frames import split_transfer
from hubline.amqp.transport.link import SERIAL_MODULUS, Link, LinkHandler, left_of

if TYPE_CHECKING:
    from hubline.amqp.transport.session import Session


class SenderLink(Link):
    """Sends as many messages as the peer gives credit for."""

    role: ClassVar[bool] = SENDER

    def __init__(self, session: Session, *, name: str, handle: int, handler: LinkHandler | None = None) -> None:
        super().__init__(session, name=name, handle=handle, handler=handler)
        self.is_draining = False
        """Whether the peer asks to use its credit up, or to hear that there is nothing to send."""

    @property
    def next_delivery_id(self) -> int:
        """The id of the next message; of those after it, the numbers that follow."""
        return self.session.next_delivery_id

    @property
    def frame_bytes_max(self) -> int:
        """The largest frame that the peer takes."""
        return self.session.connection.frame_bytes_max

    @property
    def sendable_count(self) -> int:
        """How many messages of one frame may be sent now: credit, the session's window, and room to write."""
        return min(self.credit, self.session.sendable_count) if self.is_attached else 0

    async def sendable(self) -> int:
        """Waits until something may be sent; returns ``sendable_count``. Raises AmqpClosed."""
        while not (count := self.sendable_count):
            self._require_alive()
            await self._changed.wait()
        return count

    def send(self, *message: Bytes, message_format: int = 0, settled: bool = False, tag: bytes = b"\0") -> int:
        """Sends one message, which may come in pieces, over as many frames as it takes; returns its delivery id.

        One at a time after :meth:`sendable`; the session keeps what its window has no room for.
        """
        self._require_alive()
        delivery_id = self.session.take_delivery_ids(1, None if settled else self)
        transfer = Transfer(self.handle, delivery_id, tag, message_format, settled)
        frames = split_transfer(self.session.channel, transfer, message, frame_bytes_max=self.frame_bytes_max)
        self._count_sent(1)
        self.session.transfers.send_delivery(list(frames))
        return delivery_id

    def send_frames(self, frames: Bytes, *, count: int, transfers_count: int | None = None) -> None:
        """Sends ``count`` settled messages that are encoded already: for our channel and handle, with the delivery ids
        from ``next_delivery_id`` on. ``count`` is at most ``sendable_count``; each is one frame, unless
        ``transfers_count`` says how many frames they are."""
        self._require_alive()
        self.session.take_delivery_ids(count, None)
        self._count_sent(count)
        self.session.transfers.send((frames,), count if transfers_count is None else transfers_count)

    def drained(self) -> None:
        """Says that there is nothing to send for the credit that is left, which a draining peer asked to know."""
        self._delivery_count = (self._delivery_count + self.credit) % SERIAL_MODULUS
        self.credit = 0
        self.is_draining = False
        self._send_flow(drain=True)

    # What the session hears from the peer.

    def take_outcome(self, delivery_id: int, state: DeliveryState | None) -> None:
        if self.is_attached and self._handler is not None:
            self._handler.on_outcome(self, delivery_id, state)

    def _apply_flow(self, flow: Flow) -> None:
        if flow.link_credit is None:
            return
        # Nothing may be left: the peer took credit back too late.
        self.credit = left_of(flow.link_credit, sent=self._delivery_count, seen=flow.delivery_count or 0)
        self.is_draining = flow.drain
        if self.is_draining and not self.credit:
            self.drained()
        self._pulse()

    def _count_sent(self, count: int) -> None:
        self.credit -= count
        self._delivery_count = (self._delivery_count + count) % SERIAL_MODULUS
