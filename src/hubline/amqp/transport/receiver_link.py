"""The receiving end of a link."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from hubline.amqp import conditions
from hubline.amqp.codec.decode import Bytes
from hubline.amqp.codec.performatives import RECEIVER, Attach, DeliveryState, Disposition, Error, Flow, Transfer
from hubline.amqp.transport.link import SERIAL_MODULUS, Link, LinkHandler
from hubline.amqp.transport.message_assembly import MessageAssembly
from hubline.amqp.transport.transfer_runs import Deliveries

if TYPE_CHECKING:
    from hubline.amqp.transport.session import Session


class ReceiverLink(Link):
    """Takes as many messages as it granted credit for."""

    role: ClassVar[bool] = RECEIVER

    def __init__(self, session: Session, *, name: str, handle: int, handler: LinkHandler | None = None) -> None:
        super().__init__(session, name=name, handle=handle, handler=handler)
        self._taken_back = 0  # credit that the peer may have used before it heard that it is gone
        self._assembly = MessageAssembly(session.connection.input_limits.count_parts)

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

    def detach(self, error: Error | None = None) -> None:
        self._assembly.drop()
        super().detach(error)

    # What the session hears from the peer.

    def take_attach(self, attach: Attach) -> None:
        self._delivery_count = attach.initial_delivery_count or 0
        super().take_attach(attach)

    def take_deliveries(self, deliveries: Deliveries) -> None:
        """Messages that each came in a frame of their own, as many as there were."""
        if self._assembly.first is not None and self.is_attached:
            deliveries = self._take_last_part(deliveries)
        if not self.is_attached or not len(deliveries) or not self._count_received(len(deliveries)):
            return
        if self.message_bytes_max and int((deliveries.ends - deliveries.starts).max()) > self.message_bytes_max:
            self._fail(conditions.MESSAGE_SIZE_EXCEEDED, f"a message is larger than {self.message_bytes_max:,} bytes")
            return
        assert self._handler is not None  # noqa: S101
        self._handler.on_deliveries(self, deliveries)

    def take_transfer(self, transfer: Transfer, payload: Bytes) -> None:
        """A message that stands by itself, or a part of one."""
        if not self.is_attached:
            return
        if transfer.aborted:
            self._assembly.drop()
            return
        if self._assembly.first is None:
            if not self._count_received(1):
                return
            self._assembly.first = transfer
        self._assembly.add(payload)
        if self.is_over:
            return  # of all links together it was too much: the connection is over
        if self.message_bytes_max and len(self._assembly) > self.message_bytes_max:
            self._fail(conditions.MESSAGE_SIZE_EXCEEDED, f"a message is larger than {self.message_bytes_max:,} bytes")
        elif not transfer.more:
            message = self._assembly.finish(transfer)
            assert self._handler is not None  # noqa: S101
            self._handler.on_message(self, message)

    def end(self, error: Error | None) -> None:
        self._assembly.drop()
        super().end(error)

    def _apply_flow(self, flow: Flow) -> None:
        if flow.delivery_count is not None and flow.drain:
            self._delivery_count = flow.delivery_count
            self.credit = 0

    def _take_last_part(self, deliveries: Deliveries) -> Deliveries:
        """The last part of a message looks like a message: this takes it, and leaves the others."""
        first = self._assembly.first
        assert first is not None  # noqa: S101
        delivery_id = int(deliveries.delivery_ids[0])
        if delivery_id != first.delivery_id:
            self._assembly.drop()  # the rest never came: it was given up
            return deliveries
        payload = deliveries.data[int(deliveries.starts[0]) : int(deliveries.ends[0])].tobytes()
        self.take_transfer(Transfer(first.handle, delivery_id, settled=deliveries.is_settled), payload)
        return replace(
            deliveries,
            delivery_ids=deliveries.delivery_ids[1:],
            starts=deliveries.starts[1:],
            ends=deliveries.ends[1:],
        )

    def _count_received(self, count: int) -> bool:
        """Whether the peer may send so many; if not, the link fails."""
        self._taken_back -= max(count - self.credit, 0)
        self.credit = max(self.credit - count, 0)
        self._delivery_count = (self._delivery_count + count) % SERIAL_MODULUS
        if self._taken_back < 0:
            self._fail(conditions.TRANSFER_LIMIT_EXCEEDED, "more messages came than there was credit for")
        return self._taken_back >= 0
