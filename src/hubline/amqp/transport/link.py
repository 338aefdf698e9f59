"""Links: one-way streams of messages within a session, and who handles what arrives on them.

A link is made by :meth:`.session.Session.attach`, or comes from the peer and is accepted
or refused. What happens on it is told to its :class:`LinkHandler`; what has to be waited for is a coroutine here.
"""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from hubline.amqp.codec.decode import Bytes
from hubline.amqp.codec.performatives import (
    RECEIVER,
    SENDER,
    Attach,
    DeliveryState,
    Detach,
    Disposition,
    Error,
    Flow,
    Source,
    Target,
    Transfer,
)
from hubline.amqp.transport.errors import AmqpError
from hubline.amqp.transport.frames import kept_memory, split_transfer
from hubline.amqp.transport.transfer_runs import Deliveries

if TYPE_CHECKING:
    from hubline.amqp.transport.session import Session

# Delivery counts and transfer ids are 32-bit serial numbers, which wrap around.
SERIAL_MODULUS: Final = 2**32

MESSAGE_SIZE_EXCEEDED: Final = "amqp:link:message-size-exceeded"
TRANSFER_LIMIT_EXCEEDED: Final = "amqp:link:transfer-limit-exceeded"
RESOURCE_LIMIT_EXCEEDED: Final = "amqp:resource-limit-exceeded"
DETACH_FORCED: Final = "amqp:link:detach-forced"
CONNECTION_FORCED: Final = "amqp:connection:forced"


class AmqpClosed(AmqpError):
    """A link, or the session or connection that it is part of, is over. ``condition`` says why, in AMQP's words."""

    def __init__(self, what: str, error: Error | None) -> None:
        why = "without a reason" if error is None else f"{error.condition} {error.description or ''}".rstrip()
        super().__init__(f"{what} was closed: {why}")
        self.condition = None if error is None else error.condition
        self.error = error


@dataclass(frozen=True, slots=True)
class Message:
    """One message that arrived by itself: large, over several frames, or of another format than 0."""

    delivery_id: int
    message_format: int
    is_settled: bool
    payload: Bytes


class _Parts:
    """A message that arrives in parts, each of which is put in its place at once.

    One that is all there, and has memory of its own, stays there.
    """

    def __init__(self) -> None:
        self._view = memoryview(b"")
        self._bytes = 0
        self._bytes_before = 0  # of the last message of several parts: the next one may be as large

    def __len__(self) -> int:
        return self._bytes

    def add(self, part: Bytes) -> None:
        if not part:
            return
        end = self._bytes + len(part)
        if not self._bytes:  # mostly all there is
            self._view = part if isinstance(part, memoryview) and part.readonly else memoryview(bytes(part))
        else:
            if end > len(self._view):
                self._grow(max(end, 2 * len(self._view), self._bytes_before))
            self._view[self._bytes : end] = part
        self._bytes = end

    def joined(self) -> memoryview:
        """The message. It keeps little more than it takes."""
        message = self._view[: self._bytes]
        if message.readonly:  # one part
            return message
        self._bytes_before = self._bytes
        return message if 2 * self._bytes >= len(self._view) else memoryview(bytes(message))

    def clear(self) -> None:
        self._view, self._bytes = memoryview(b""), 0

    def _grow(self, size: int) -> None:
        grown = kept_memory(size)
        grown[: self._bytes] = self._view[: self._bytes]
        self._view = grown


class LinkHandler(Protocol):
    """What happens on a link. The connection calls these as it reads; they must not block.

    An exception that one of them lets out closes the connection, and no other.
    """

    def on_attached(self, link: Link, attach: Attach) -> None:
        """The peer answered our attach, or our answer to its attach is on its way. Called once, before all others."""
        ...

    def on_deliveries(self, link: Link, deliveries: Deliveries) -> None:
        """Messages of format 0 arrived, as many as there were. What they point to changes after this call."""
        ...

    def on_message(self, link: Link, message: Message) -> None:
        """A message arrived that is not fit for ``on_deliveries``. The order of all messages is kept."""
        ...

    def on_outcome(self, link: Link, delivery_id: int, state: DeliveryState | None) -> None:
        """The peer settled a message that was sent unsettled."""
        ...

    def on_detached(self, link: Link, error: Error | None) -> None:
        """The link is over, by whatever but our own ``detach``. Called once, after all others."""
        ...


class _State(enum.Enum):
    ATTACHING = "attaching"  # our attach is sent, or the peer's has come and is not answered
    ATTACHED = "attached"
    DETACHING = "detaching"  # our detach is sent: what still comes is passed over
    OVER = "over"


class Link:
    """One end of a link. ``role`` is ours: SENDER or RECEIVER."""

    def __init__(
        self, session: Session, *, name: str, role: bool, handle: int, handler: LinkHandler | None = None
    ) -> None:
        self.session = session
        self.name = name
        self.role = role
        self.handle = handle
        self.remote_handle: int | None = None
        self.remote: Attach | None = None
        """What the peer said in its attach."""
        self.error: Error | None = None
        """Why the link is over, if it is."""
        self.credit = 0
        """How many more messages may be sent; of a receiver, how many more may come."""
        self.is_draining = False
        self.message_bytes_max = 0
        """The largest message that is taken; 0 is without limit."""
        self._handler = handler
        self._state = _State.ATTACHING
        self._delivery_count = 0
        self._taken_back = 0  # credit that the peer may have used before it heard that it is gone
        self._parts = _Parts()
        self._first_part: Transfer | None = None
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"Link({self.name!r}, {'receiver' if self.role is RECEIVER else 'sender'}, {self._state.value})"

    @property
    def is_attached(self) -> bool:
        return self._state is _State.ATTACHED

    @property
    def is_over(self) -> bool:
        """Whether nothing can happen on the link any more, also if the peer has not confirmed it yet."""
        return self._state in (_State.DETACHING, _State.OVER)

    # Attaching, detaching.

    async def attached(self) -> Attach:
        """Waits for the peer's answer to our attach. Raises AmqpClosed if the link is refused."""
        while not self.is_attached or self.remote is None:
            self._require_alive()
            await self._changed.wait()
        return self.remote

    def accept(self, attach: Attach, handler: LinkHandler) -> None:
        """Answers the peer's attach. ``attach.handle`` has to be ours."""
        assert self._state is _State.ATTACHING  # noqa: S101 (the caller's bug, not the peer's)
        assert self.remote is not None  # noqa: S101
        self._handler = handler
        self._state = _State.ATTACHED
        self.message_bytes_max = attach.max_message_size or 0
        self.session.send(attach)
        handler.on_attached(self, self.remote)

    def refuse(self, error: Error) -> None:
        """Answers the peer's attach, and ends the link with the reason.

        AMQP would have an answer without the terminus that is refused. A client that sees one may give up before it
        hears why, and try again for ever, as azure-eventhub does: so the answer is the one of a link that is taken.
        """
        remote = self.remote
        assert remote is not None  # noqa: S101 (only a link that the peer asked for is refused)
        self.session.send(
            Attach(
                name=self.name,
                handle=self.handle,
                role=self.role,
                source=remote.source or Source(),
                target=remote.target or Target(),
                initial_delivery_count=0 if self.role is SENDER else None,
            )
        )
        self.detach(error)

    def detach(self, error: Error | None = None) -> None:
        """Ends the link from this side. The handler hears nothing more."""
        if self.is_over:
            return
        self._state = _State.DETACHING
        self.error = error
        self._drop_parts()
        self.session.send(Detach(self.handle, closed=True, error=error))
        self._pulse()

    # Sending.

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
        may_send = self.role is SENDER and self.is_attached
        return min(self.credit, self.session.sendable_count) if may_send else 0

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
        self.session.send_delivery(list(frames))
        return delivery_id

    def send_frames(self, frames: Bytes, *, count: int, transfers_count: int | None = None) -> None:
        """Sends ``count`` settled messages that are encoded already: for our channel and handle, with the delivery ids
        from ``next_delivery_id`` on. ``count`` is at most ``sendable_count``; each is one frame, unless
        ``transfers_count`` says how many frames they are."""
        self._require_alive()
        self.session.take_delivery_ids(count, None)
        self._count_sent(count)
        self.session.send_transfers((frames,), count if transfers_count is None else transfers_count)

    def drained(self) -> None:
        """Says that there is nothing to send for the credit that is left, which a draining peer asked to know."""
        self._delivery_count = (self._delivery_count + self.credit) % SERIAL_MODULUS
        self.credit = 0
        self.is_draining = False
        self._send_flow(drain=True)

    # Receiving.

    def grant(self, credit: int) -> None:
        """Lets the peer send so many messages from now on, whatever was left. Where that was more, what is on its way
        still comes."""
        if self.is_over:
            return
        self._taken_back = max(self._taken_back + self.credit - credit, 0)
        self.credit = credit
        self._send_flow()

    def settle(self, first: int, last: int, state: DeliveryState) -> None:
        """Tells the peer what became of its messages with these delivery ids."""
        if not self.is_over:
            self.session.send(Disposition(RECEIVER, first, last, settled=True, state=state))

    # What the session hears from the peer.

    def take_attach(self, attach: Attach) -> None:
        """The peer's attach: an answer to ours, or what :meth:`accept` or :meth:`refuse` will answer."""
        is_answer = self._handler is not None
        self.remote = attach
        self.remote_handle = attach.handle
        if self.role is RECEIVER:
            self._delivery_count = attach.initial_delivery_count or 0
        if not is_answer or self.is_over:
            return
        if (attach.source if self.role is RECEIVER else attach.target) is None:
            return  # refused: the detach that says why follows
        self._state = _State.ATTACHED
        assert self._handler is not None  # noqa: S101
        self._handler.on_attached(self, attach)
        self._pulse()

    def take_flow(self, flow: Flow) -> None:
        if self.is_over:
            return
        if self.role is SENDER and flow.link_credit is not None:
            received = flow.delivery_count or 0
            credit = (received + flow.link_credit - self._delivery_count) % SERIAL_MODULUS
            # More than half the numbers there are is less than nothing: the peer took credit back too late.
            self.credit = credit if credit < SERIAL_MODULUS // 2 else 0
            self.is_draining = flow.drain
            if self.is_draining and not self.credit:
                self.drained()
            self._pulse()
        elif self.role is RECEIVER and flow.delivery_count is not None and flow.drain:
            self._delivery_count = flow.delivery_count
            self.credit = 0
        if flow.echo and self.is_attached:
            self._send_flow()

    def take_deliveries(self, deliveries: Deliveries) -> None:
        if self._first_part is not None and self.is_attached:
            deliveries = self._take_last_part(deliveries)
        if not self.is_attached or not len(deliveries) or not self._count_received(len(deliveries)):
            return
        if self.message_bytes_max and int((deliveries.ends - deliveries.starts).max()) > self.message_bytes_max:
            self._fail(MESSAGE_SIZE_EXCEEDED, f"a message is larger than {self.message_bytes_max:,} bytes")
            return
        assert self._handler is not None  # noqa: S101
        self._handler.on_deliveries(self, deliveries)

    def _take_last_part(self, deliveries: Deliveries) -> Deliveries:
        """The last part of a message looks like a message: this takes it, and leaves the others."""
        first = self._first_part
        assert first is not None  # noqa: S101
        delivery_id = int(deliveries.delivery_ids[0])
        if delivery_id != first.delivery_id:
            self._drop_parts()  # the rest never came: it was given up
            return deliveries
        payload = deliveries.data[int(deliveries.starts[0]) : int(deliveries.ends[0])].tobytes()
        self.take_transfer(Transfer(first.handle, delivery_id, settled=deliveries.is_settled), payload)
        return replace(
            deliveries,
            delivery_ids=deliveries.delivery_ids[1:],
            starts=deliveries.starts[1:],
            ends=deliveries.ends[1:],
        )

    def take_transfer(self, transfer: Transfer, payload: Bytes) -> None:
        if not self.is_attached:
            return
        if transfer.aborted:
            self._drop_parts()
            return
        if self._first_part is None:
            if not self._count_received(1):
                return
            self._first_part = transfer
        self._parts.add(payload)
        self.session.connection.count_parts(len(payload))
        if self.message_bytes_max and len(self._parts) > self.message_bytes_max:
            self._fail(MESSAGE_SIZE_EXCEEDED, f"a message is larger than {self.message_bytes_max:,} bytes")
        elif not transfer.more:
            self._complete(transfer)

    def take_outcome(self, delivery_id: int, state: DeliveryState | None) -> None:
        if self.is_attached and self._handler is not None:
            self._handler.on_outcome(self, delivery_id, state)

    def take_detach(self, error: Error | None) -> None:
        """The peer's detach, or its confirmation of ours."""
        if self._state is _State.ATTACHING and self._handler is None:
            self.refuse(Error(DETACH_FORCED, "the link was detached before it was answered"))
        elif self._state is not _State.DETACHING:
            self.session.send(Detach(self.handle, closed=True))
        self.end(error)

    def end(self, error: Error | None) -> None:
        """The link is over: detached, or its session or connection ended. Ending twice is fine."""
        was_alive = not self.is_over
        self._state = _State.OVER
        self._drop_parts()
        if was_alive:
            self.error = error
            if self._handler is not None:
                self._handler.on_detached(self, error)
        self._pulse()

    def wake(self) -> None:
        """Something that :attr:`sendable_count` depends on changed."""
        self._pulse()

    def _complete(self, last_part: Transfer) -> None:
        first, payload = self._first_part, self._parts.joined()
        assert first is not None  # noqa: S101
        self._drop_parts()
        assert self._handler is not None  # noqa: S101
        is_settled = bool(first.settled or last_part.settled)
        self._handler.on_message(self, Message(first.delivery_id or 0, first.message_format or 0, is_settled, payload))

    def _drop_parts(self) -> None:
        self.session.connection.count_parts(-len(self._parts))
        self._first_part = None
        self._parts.clear()

    def _count_sent(self, count: int) -> None:
        self.credit -= count
        self._delivery_count = (self._delivery_count + count) % SERIAL_MODULUS

    def _count_received(self, count: int) -> bool:
        """Whether the peer may send so many; it is told otherwise."""
        self._taken_back -= max(count - self.credit, 0)
        self.credit = max(self.credit - count, 0)
        self._delivery_count = (self._delivery_count + count) % SERIAL_MODULUS
        if self._taken_back < 0:
            self._fail(TRANSFER_LIMIT_EXCEEDED, "more messages came than there was credit for")
        return self._taken_back >= 0

    def _fail(self, condition: str, description: str) -> None:
        """Ends the link for what the peer did; the handler hears of it as if the peer had said so."""
        error = Error(condition, description)
        self.detach(error)
        if self._handler is not None:
            self._handler.on_detached(self, error)

    def _send_flow(self, *, drain: bool = False) -> None:
        self.session.send_flow(handle=self.handle, delivery_count=self._delivery_count, credit=self.credit, drain=drain)

    def _require_alive(self) -> None:
        if self.is_over:
            raise AmqpClosed(f"link {self.name}", self.error)

    def _pulse(self) -> None:
        """Wakes all who wait, to look again."""
        self._changed.set()
        self._changed.clear()
