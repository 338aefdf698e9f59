"""Nodes that answer requests: a client sends messages to them on one link and gets answers on another."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from hubline.amqp import conditions
from hubline.amqp.codec.message import Message, Properties, Value
from hubline.amqp.codec.performatives import Accepted, Attach, DeliveryState, Error, Rejected
from hubline.amqp.codec.types import Int
from hubline.amqp.transport.errors import AmqpClosed, AmqpDecodeError
from hubline.amqp.transport.link import Link
from hubline.amqp.transport.link import Message as Delivered
from hubline.amqp.transport.receiver_link import ReceiverLink
from hubline.amqp.transport.sender_link import SenderLink
from hubline.amqp.transport.transfer_runs import Deliveries

# Requests of one link that are being answered. Clients send one and wait.
REQUESTS_MAX: Final = 32

OK: Final = 200
ACCEPTED: Final = 202
BAD_REQUEST: Final = 400
UNAUTHORIZED: Final = 401
NOT_FOUND: Final = 404
UNAVAILABLE: Final = 503
INTERNAL_ERROR: Final = 500


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request gets back."""

    status: int
    description: str
    body: object = None
    condition: str | None = None

    def message(self, correlation_id: object) -> Message:
        # A client finds its request by the id, which has to come back with the type it had.
        return Message(
            Value(self.body),
            properties=Properties(correlation_id=correlation_id),
            application_properties={
                "status-code": Int(self.status),
                "statusCode": Int(self.status),
                "status-description": self.description,
                "statusDescription": self.description,
                **({"error-condition": self.condition, "errorCondition": self.condition} if self.condition else {}),
            },
        )


Answering: TypeAlias = Callable[[Message], Coroutine[object, object, Answer]]
Spawn: TypeAlias = Callable[[Coroutine[object, object, None]], asyncio.Task[None]]


def text_property(request: Message, name: str) -> str:
    """An application property of a request; empty if it has none of that name, or no text."""
    properties: Mapping[object, object] = request.application_properties or {}
    value = properties.get(name)
    return value if isinstance(value, str) else ""


class RequestNode:
    """The links of one session to one such node. A link handler."""

    def __init__(self, answering: Answering, spawn: Spawn) -> None:
        self._answering = answering
        self._spawn = spawn
        self._answer_links: list[SenderLink] = []
        self._in_progress: Counter[ReceiverLink] = Counter()

    def on_attached(self, link: Link, _attach: Attach) -> None:
        if isinstance(link, ReceiverLink):
            link.grant(REQUESTS_MAX)
        elif isinstance(link, SenderLink):
            self._answer_links.append(link)

    def on_deliveries(self, link: ReceiverLink, deliveries: Deliveries) -> None:
        spans = zip(deliveries.delivery_ids.tolist(), deliveries.starts.tolist(), deliveries.ends.tolist(), strict=True)
        for delivery_id, start, end in spans:
            payload = deliveries.data[start:end].tobytes()
            self.on_message(link, Delivered(delivery_id, 0, deliveries.is_settled, payload))

    def on_message(self, link: ReceiverLink, message: Delivered) -> None:
        self._in_progress[link] += 1
        try:
            request = Message.decode(message.payload)
        except AmqpDecodeError as error:
            link.settle(message.delivery_id, message.delivery_id, Rejected(Error(conditions.DECODE_ERROR, str(error))))
            self._finish(link)
            return
        if not message.is_settled:
            link.settle(message.delivery_id, message.delivery_id, Accepted())
        self._spawn(self._answer(link, request))

    def on_outcome(self, link: Link, delivery_id: int, state: DeliveryState | None) -> None:
        pass  # answers are sent settled

    def on_detached(self, link: Link, _error: Error | None) -> None:
        if link in self._answer_links:
            self._answer_links.remove(link)

    async def _answer(self, link: ReceiverLink, request: Message) -> None:
        try:
            answer = await self._answering(request)
            properties = request.properties or Properties()
            if to := self._answer_link(properties.reply_to):
                await to.sendable()
                to.send(answer.message(properties.message_id).encode(), settled=True)
        except AmqpClosed:
            pass  # who asked is gone
        finally:
            self._finish(link)

    def _answer_link(self, reply_to: str | None) -> SenderLink | None:
        """The link that the request names, by its name or its target; else the latest of the session."""
        for link in self._answer_links:
            target = link.remote.target if link.remote else None
            if reply_to and reply_to in (link.name, getattr(target, "address", None)):
                return link
        return self._answer_links[-1] if self._answer_links else None

    def _finish(self, link: ReceiverLink) -> None:
        left = self._in_progress.pop(link) - 1
        if left:
            self._in_progress[link] = left
        link.grant(REQUESTS_MAX - left)
