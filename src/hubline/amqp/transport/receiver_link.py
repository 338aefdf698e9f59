"""The receiving end of a link."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hubline.amqp import conditions
from hubline.amqp.codec.decode import Bytes
from hubline.amqp.codec.performatives import (
    RECEIVER,
    Attach,
    DeliveryState,
    Disposition,
    Error,
    Flow,
    Rejected,
    Transfer,
)
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
        deliveries = self._fitting(deliveries)
        if not self.is_over and len(deliveries):
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
        self._assembly.add(payload, bytes_max=self.message_bytes_max)
        if self.is_over or transfer.more:
            return  # if it is over, it was too much of all links together
        if self._is_too_large(len(self._assembly)):
            self._refuse_assembled(is_settled=bool(transfer.settled))
        else:
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

    def _fitting(self, deliveries: Deliveries) -> Deliveries:
        """Those that are not too large. The others are refused."""
        if not self.message_bytes_max:
            return deliveries
        sizes = deliveries.ends - deliveries.starts
        if not self._is_too_large(int(sizes.max())):
            return deliveries
        fits = sizes <= self.message_bytes_max
        for index in np.flatnonzero(~fits).tolist():
            self._refuse_message(
                int(deliveries.delivery_ids[index]), int(sizes[index]), is_settled=deliveries.is_settled
            )
        return replace(
            deliveries,
            delivery_ids=deliveries.delivery_ids[fits],
            starts=deliveries.starts[fits],
            ends=deliveries.ends[fits],
        )

    def _is_too_large(self, bytes_count: int) -> bool:
        return 0 < self.message_bytes_max < bytes_count

    def _refuse_assembled(self, *, is_settled: bool) -> None:
        """Refuses a message of several parts once all have come: the SDK for Rust takes no answer before that."""
        first, bytes_count = self._assembly.first, len(self._assembly)
        assert first is not None  # noqa: S101
        self._assembly.drop()
        self._refuse_message(first.delivery_id or 0, bytes_count, is_settled=is_settled or bool(first.settled))

    def _refuse_message(self, delivery_id: int, bytes_count: int, *, is_settled: bool) -> None:
        """Tells the peer that a message is too large, in the service's words, and takes others as before.

        A settled message has no answer, so it ends the link instead: no message is lost in silence.
        """
        if self.is_over:
            return
        text = (
            f"The received message (delivery-id:{delivery_id}, size:{bytes_count} bytes) exceeds the limit "
            f"({self.message_bytes_max} bytes) currently allowed on the link."
        )
        if is_settled:
            self._fail(conditions.MESSAGE_SIZE_EXCEEDED, text)
        else:
            self.settle(delivery_id, delivery_id, Rejected(Error(conditions.MESSAGE_SIZE_EXCEEDED, text)))
            self.grant(self.credit + 1)  # no handler hears of it, which would give the credit back

    def _count_received(self, count: int) -> bool:
        """Whether the peer may send so many; if not, the link fails."""
        self._taken_back -= max(count - self.credit, 0)
        self.credit = max(self.credit - count, 0)
        self._delivery_count = (self._delivery_count + count) % SERIAL_MODULUS
        if self._taken_back < 0:
            self._fail(conditions.TRANSFER_LIMIT_EXCEEDED, "more messages came than there was credit for")
        return self._taken_back >= 0
