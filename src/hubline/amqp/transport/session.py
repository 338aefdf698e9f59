"""Sessions: the links on one channel of a connection, their handles, and the outcomes of what they sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from hubline.amqp import conditions
from hubline.amqp.codec.composites import Composite
from hubline.amqp.codec.decode import Bytes
from hubline.amqp.codec.performatives import (
    RECEIVER,
    SENDER,
    Accepted,
    Attach,
    Begin,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Modified,
    Rejected,
    Released,
    Source,
    Target,
    Transfer,
)
from hubline.amqp.transport.link import SERIAL_MODULUS, Link, LinkHandler
from hubline.amqp.transport.receiver_link import ReceiverLink
from hubline.amqp.transport.sender_link import SenderLink
from hubline.amqp.transport.transfer_runs import Deliveries
from hubline.amqp.transport.transfer_window import TransferWindow

if TYPE_CHECKING:
    from hubline.amqp.transport.connection import Connection

# The most links a session may have: more than any client uses, few enough to bound what a peer can make us hold.
HANDLE_MAX: Final = 255

AnyLink = TypeVar("AnyLink", bound=Link)

_TERMINAL_STATES: Final = (Accepted, Rejected, Released, Modified)


class Session:
    """One session. ``channel`` is ours, and says nothing about the peer's."""

    def __init__(self, connection: Connection, channel: int) -> None:
        self.connection = connection
        self.channel = channel
        self.is_over = False
        self.error: Error | None = None
        self.next_delivery_id = 0
        self.transfers = TransferWindow(connection.write)
        self._is_end_sent = False
        self._unsettled: dict[int, SenderLink] = {}
        self._links: dict[int, Link] = {}
        self._by_remote_handle: dict[int, Link] = {}

    @property
    def links(self) -> list[Link]:
        return list(self._links.values())

    def attach_sender(
        self, name: str, *, source: Source, target: Target, handler: LinkHandler, details: Attach | None = None
    ) -> SenderLink:
        """Asks the peer for a link to send on. ``details`` gives what else the attach says; its first fields are not
        used."""
        link = self._new_link(SenderLink, name, handler)
        self._send_attach(link, source, target, details or Attach(name, link.handle, SENDER))
        return link

    def attach_receiver(
        self, name: str, *, source: Source, target: Target, handler: LinkHandler, details: Attach | None = None
    ) -> ReceiverLink:
        """Asks the peer for a link to receive from; else as :meth:`attach_sender`."""
        link = self._new_link(ReceiverLink, name, handler)
        self._send_attach(link, source, target, details or Attach(name, link.handle, RECEIVER))
        return link

    def end(self, error: Error | None = None) -> None:
        """Ends the session and its links from this side. Handlers of links that were alive hear of it."""
        if not self._is_end_sent:
            self.send(End(error))
            self._is_end_sent = True
        self.close(error)

    def close(self, error: Error | None) -> None:
        """The session is over, and nothing is to be said any more. Closing twice is fine."""
        self.is_over = True
        if self.error is None:
            self.error = error
        self.transfers.clear()
        self._unsettled.clear()
        for link in self.links:
            link.end(error)
        self._links.clear()
        self._by_remote_handle.clear()

    # What links send.

    @property
    def sendable_count(self) -> int:
        return self.transfers.room if self.connection.is_writable else 0

    def send(self, performative: Composite) -> None:
        if not self._is_end_sent:
            self.connection.send(self.channel, performative)

    def send_flow(self, *, handle: int | None, delivery_count: int | None, credit: int | None, drain: bool) -> None:
        self.send(self.transfers.flow(handle=handle, delivery_count=delivery_count, credit=credit, drain=drain))

    def take_delivery_ids(self, count: int, unsettled_on: SenderLink | None) -> int:
        """The first of ``count`` ids. With a link, the one message is remembered until the peer settles it."""
        first = self.next_delivery_id
        self.next_delivery_id = (first + count) % SERIAL_MODULUS
        if unsettled_on is not None:
            self._unsettled[first] = unsettled_on
        return first

    # What the connection hears from the peer.

    def send_begin(self, remote_channel: int | None) -> None:
        self.send(self.transfers.begin(remote_channel, handle_max=HANDLE_MAX))

    def take_begin(self, begin: Begin) -> None:
        self.transfers.take_begin(begin)
        self.wake()

    def take(self, performative: Composite, payload: Bytes) -> None:
        """Anything but begin and end."""
        if self.is_over:
            return
        match performative:
            case Attach():
                self._take_attach(performative)
            case Flow():
                self._take_flow(performative)
            case Transfer(handle=handle):
                self.transfers.count_received(1)
                if link := self._transferring(handle):
                    link.take_transfer(performative, payload)
            case Disposition():
                self._take_disposition(performative)
            case Detach(handle=handle):
                self._take_detach(handle, performative)

    def take_deliveries(self, deliveries: Deliveries) -> None:
        if self.is_over:
            return
        self.transfers.count_received(len(deliveries))
        if link := self._transferring(deliveries.handle):
            link.take_deliveries(deliveries)

    def take_end(self, end: End) -> None:
        if not self._is_end_sent:
            self.send(End())
            self._is_end_sent = True
        self.close(end.error)

    def wake(self) -> None:
        for link in self.links:
            link.wake()

    def _new_link(self, kind: type[AnyLink], name: str, handler: LinkHandler | None) -> AnyLink:
        handle = next(number for number in range(HANDLE_MAX + 1) if number not in self._links)
        link = kind(self, name=name, handle=handle, handler=handler)
        self._links[handle] = link
        return link

    def _send_attach(self, link: Link, source: Source, target: Target, details: Attach) -> None:
        link.message_bytes_max = details.max_message_size or 0
        self.send(
            Attach(
                name=link.name,
                handle=link.handle,
                role=link.role,
                snd_settle_mode=details.snd_settle_mode,
                rcv_settle_mode=details.rcv_settle_mode,
                source=source,
                target=target,
                initial_delivery_count=0 if link.role is SENDER else None,
                max_message_size=details.max_message_size,
                desired_capabilities=details.desired_capabilities,
                properties=details.properties,
            )
        )

    def _take_attach(self, attach: Attach) -> None:
        if attach.handle in self._by_remote_handle:
            self.end(Error(conditions.HANDLE_IN_USE, f"handle {attach.handle} is in use"))
            return
        named = [link for link in self.links if link.name == attach.name and link.role is not attach.role]
        awaited = next((link for link in named if link.remote is None), None)
        if awaited is not None:
            self._by_remote_handle[attach.handle] = awaited
            awaited.take_attach(attach)
        elif any(not link.is_over for link in named):
            self.end(
                Error(
                    conditions.NOT_ALLOWED, f"the session has a link of this name and role already: {attach.name[:64]}"
                )
            )
        elif attach.handle > HANDLE_MAX or len(self._links) > HANDLE_MAX:
            self.end(Error(conditions.NOT_ALLOWED, f"a session has at most {HANDLE_MAX + 1} links"))
        else:
            link = self._new_link(SenderLink if attach.role is RECEIVER else ReceiverLink, attach.name, None)
            self._by_remote_handle[attach.handle] = link
            link.take_attach(attach)
            self.connection.take_link(link)

    def _take_flow(self, flow: Flow) -> None:
        self.transfers.take_flow(flow)
        if flow.handle is not None:
            # Some clients still send flows for a link that was refused or is gone: nothing depends on them.
            if link := self._by_remote_handle.get(flow.handle):
                link.take_flow(flow)
        else:
            if flow.echo:
                self.send_flow(handle=None, delivery_count=None, credit=None, drain=False)
            self.wake()

    def _take_disposition(self, disposition: Disposition) -> None:
        if disposition.role is not RECEIVER:
            return  # of what the peer sent us, which is settled at once or by us
        first = disposition.first
        count = ((first if disposition.last is None else disposition.last) - first) % SERIAL_MODULUS + 1
        is_final = disposition.settled or isinstance(disposition.state, _TERMINAL_STATES)
        if not is_final:
            return
        settled = [delivery_id for delivery_id in self._unsettled if (delivery_id - first) % SERIAL_MODULUS < count]
        if settled and not disposition.settled:
            self.send(Disposition(SENDER, first, disposition.last, settled=True, state=disposition.state))
        for delivery_id in settled:
            self._unsettled.pop(delivery_id).take_outcome(delivery_id, disposition.state)

    def _take_detach(self, handle: int, detach: Detach) -> None:
        # Some clients detach what is gone already.
        link = self._by_remote_handle.pop(handle, None)
        if link is not None:
            del self._links[link.handle]
            self._unsettled = {key: other for key, other in self._unsettled.items() if other is not link}
            link.take_detach(detach.error)

    def _transferring(self, handle: int) -> ReceiverLink | None:
        """The link that a transfer is for; None, and the session ends, if there is none that takes it."""
        link = self._by_remote_handle.get(handle)
        if isinstance(link, ReceiverLink):
            return link
        if link is None:
            self.end(Error(conditions.UNATTACHED_HANDLE, f"a transfer came for handle {handle}, which is not attached"))
        else:
            self.end(Error(conditions.NOT_ALLOWED, f"a transfer came for handle {handle}, on which this side sends"))
        return None
