"""Requests and their answers: two links to a node of the service, such as ``$cbs`` or ``$management``."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from typing import Final

from hubline.amqp.codec.decode import Bytes
from hubline.amqp.codec.message import Map, Message, Properties, Value
from hubline.amqp.codec.performatives import (
    Accepted,
    Attach,
    DeliveryState,
    Error,
    Source,
    Target,
)
from hubline.amqp.transport.errors import AmqpClosed
from hubline.amqp.transport.link import Link
from hubline.amqp.transport.link import Message as Delivered
from hubline.amqp.transport.receiver_link import ReceiverLink
from hubline.amqp.transport.session import Session
from hubline.amqp.transport.transfer_runs import Deliveries

# More answers than are ever on their way at once: as many partitions as are asked about together, and some.
ANSWERS_MAX: Final = 100

# The service answers within a second or so; what takes this long was lost.
ANSWER_SECONDS: Final = 30.0


class Requests:
    """Asks one node. Any number of tasks may ask at once; answers are matched by the id of their request."""

    def __init__(self, session: Session, node: str) -> None:
        self._session = session
        self._node = node
        self._ids = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[Message]] = {}
        self._reply_to = f"{node}-{secrets.token_hex(8)}"
        self._sender = session.attach_sender(
            f"{self._reply_to}-requests", source=Source(self._reply_to), target=Target(node), handler=self
        )
        self._receiver = session.attach_receiver(
            f"{self._reply_to}-answers", source=Source(node), target=Target(self._reply_to), handler=self
        )

    @property
    def is_over(self) -> bool:
        return self._sender.is_over or self._receiver.is_over

    async def ask(self, body: object, parameters: Map) -> Message:
        """The answer. Raises AmqpClosed if the link ends before it comes, TimeoutError if it does not come."""
        async with asyncio.timeout(ANSWER_SECONDS):
            await self._receiver.attached()
            await self._sender.sendable()
            request_id = str(next(self._ids))
            answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
            self._waiting[request_id] = answer
            try:
                message = Message(
                    Value(body),
                    properties=Properties(message_id=request_id, reply_to=self._reply_to),
                    application_properties=parameters,
                )
                self._sender.send(message.encode(), settled=True)
                return await answer
            finally:
                del self._waiting[request_id]

    def close(self) -> None:
        self._sender.detach()
        self._receiver.detach()
        self._fail(None)

    # What happens on the links

    def on_attached(self, link: Link, attach: Attach) -> None:  # noqa: ARG002
        if isinstance(link, ReceiverLink):
            link.grant(ANSWERS_MAX)

    def on_deliveries(self, link: ReceiverLink, deliveries: Deliveries) -> None:
        spans = zip(deliveries.starts.tolist(), deliveries.ends.tolist(), strict=True)
        for start, end in spans:
            self._take(deliveries.data[start:end].tobytes())
        if not deliveries.is_settled:
            link.settle(int(deliveries.delivery_ids[0]), int(deliveries.delivery_ids[-1]), Accepted())
        link.grant(ANSWERS_MAX)

    def on_message(self, link: ReceiverLink, message: Delivered) -> None:
        self._take(message.payload)
        if not message.is_settled:
            link.settle(message.delivery_id, message.delivery_id, Accepted())
        link.grant(ANSWERS_MAX)

    def on_outcome(self, link: Link, delivery_id: int, state: DeliveryState | None) -> None:
        pass  # requests are sent settled

    def on_detached(self, link: Link, error: Error | None) -> None:  # noqa: ARG002
        self._fail(error)

    def _take(self, payload: Bytes) -> None:
        message = Message.decode(payload)
        request_id = message.properties.correlation_id if message.properties else None
        answer = self._waiting.get(request_id) if isinstance(request_id, str) else None
        if answer is not None and not answer.done():
            answer.set_result(message)

    def _fail(self, error: Error | None) -> None:
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(AmqpClosed(f"the link to {self._node}", error))


def status_of(answer: Message) -> tuple[int, str]:
    """The status and its description: the service spells them in two ways."""
    parameters = answer.application_properties or {}
    status = parameters.get("status-code", parameters.get("statusCode"))
    description = parameters.get("status-description", parameters.get("statusDescription"))
    return (status if isinstance(status, int) else 0), str(description or "no reason given")
