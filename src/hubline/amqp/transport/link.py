"""Links: one-way streams of messages within a session, and the handlers of what happens on them.

A link is made by :meth:`.session.Session.attach_sender` or ``attach_receiver``; or the peer asks for it, and it is
accepted or refused. Here is what both kinds share: how they begin and end.
"""

from __future__ import annotations

import asyncio
import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from hubline.amqp import conditions
from hubline.amqp.codec.decode import Bytes
from hubline.amqp.codec.performatives import (
    RECEIVER,
    SENDER,
    Attach,
    DeliveryState,
    Detach,
    Error,
    Flow,
    Source,
    Target,
)
from hubline.amqp.transport.errors import AmqpClosed
from hubline.amqp.transport.transfer_runs import Deliveries

if TYPE_CHECKING:
    from hubline.amqp.transport.receiver_link import ReceiverLink
    from hubline.amqp.transport.sender_link import SenderLink
    from hubline.amqp.transport.session import Session

# Delivery counts and transfer ids are 32-bit serial numbers, which wrap around.
SERIAL_MODULUS: Final = 2**32


def left_of(allowed: int, *, sent: int, seen: int) -> int:
    """How much is left of what a peer allows, which had seen ``seen`` when it said so; ``sent`` went out by now.

    Both are serial numbers. What is allowed is a count: some allow as much as a number can say, 2**32 - 1.
    """
    under_way = (sent - seen) % SERIAL_MODULUS
    if under_way >= SERIAL_MODULUS // 2:
        under_way = 0  # it has seen more than was sent: it counts in another way
    return max(allowed - under_way, 0)


@dataclass(frozen=True, slots=True)
class Message:
    """One message that arrived by itself: large, over several frames, or of another format than 0."""

    delivery_id: int
    message_format: int
    is_settled: bool
    payload: Bytes


class LinkHandler(Protocol):
    """What happens on a link. The connection calls these as it reads; they must not block.

    An exception that one of them lets out closes the connection, and no other.
    """

    def on_attached(self, link: Link, attach: Attach) -> None:
        """The peer answered our attach, or our answer to its attach is on its way. Called once, before all others."""
        ...

    def on_deliveries(self, link: ReceiverLink, deliveries: Deliveries) -> None:
        """Messages of format 0 arrived, as many as there were. What they point to changes after this call."""
        ...

    def on_message(self, link: ReceiverLink, message: Message) -> None:
        """A message arrived that is not fit for ``on_deliveries``. The order of all messages is kept."""
        ...

    def on_outcome(self, link: SenderLink, delivery_id: int, state: DeliveryState | None) -> None:
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
    """One end of a link: a :class:`SenderLink` or a :class:`ReceiverLink`."""

    role: ClassVar[bool]
    """Ours: SENDER or RECEIVER."""

    def __init__(self, session: Session, *, name: str, handle: int, handler: LinkHandler | None = None) -> None:
        self.session = session
        self.name = name
        self.handle = handle
        self.remote_handle: int | None = None
        self.remote: Attach | None = None
        """What the peer said in its attach."""
        self.error: Error | None = None
        """Why the link is over, if it is."""
        self.credit = 0
        """How many more messages may be sent; of a receiver, how many more may come."""
        self.message_bytes_max = 0
        """The largest message that is taken; 0 is without limit."""
        self._handler = handler
        self._state = _State.ATTACHING
        self._delivery_count = 0
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self._state.value})"

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

    def refuse(self, error: Error, *, message_bytes_max: int | None = None) -> None:
        """Answers the peer's attach, and ends the link with the reason.

        AMQP would have an answer without the terminus that is refused. A client that sees one may give up before it
        hears why, and try again forever, as azure-eventhub does: so the answer is the one of a link that is taken.
        That says how large a message may be, too: the SDKs for Go and Java, where it does not, find every message too
        large before they hear why.
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
                max_message_size=message_bytes_max,
            )
        )
        self.detach(error)

    def detach(self, error: Error | None = None) -> None:
        """Ends the link from this side. The handler hears nothing more."""
        if self.is_over:
            return
        self._state = _State.DETACHING
        self.error = error
        self.session.send(Detach(self.handle, closed=True, error=error))
        self._pulse()

    # What the session hears from the peer.

    def take_attach(self, attach: Attach) -> None:
        """The peer's attach: an answer to ours, or what :meth:`accept` or :meth:`refuse` will answer."""
        is_answer = self._handler is not None
        self.remote = attach
        self.remote_handle = attach.handle
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
        self._apply_flow(flow)
        if flow.echo and self.is_attached:
            self._send_flow()

    def take_detach(self, error: Error | None) -> None:
        """The peer's detach, or its confirmation of ours."""
        if self._state is _State.ATTACHING and self._handler is None:
            self.refuse(Error(conditions.DETACH_FORCED, "the link was detached before it was answered"))
        elif self._state is not _State.DETACHING:
            self.session.send(Detach(self.handle, closed=True))
        self.end(error)

    def end(self, error: Error | None) -> None:
        """The link is over: detached, or its session or connection ended. Ending twice is fine."""
        was_alive = not self.is_over
        self._state = _State.OVER
        if was_alive:
            self.error = error
            if self._handler is not None:
                self._handler.on_detached(self, error)
        self._pulse()

    def wake(self) -> None:
        """Something changed that :attr:`.sender_link.SenderLink.sendable_count` depends on."""
        self._pulse()

    def _apply_flow(self, flow: Flow) -> None:
        """What the peer says about credit."""
        raise NotImplementedError

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
