"""The senders of clients: links on which the emulator takes events, at ``HUB`` and ``HUB/Partitions/ID``."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from hubline.amqp import conditions
from hubline.amqp.codec.performatives import Accepted, Attach, DeliveryState, Error, Rejected
from hubline.amqp.events.decoder import SentDecoder
from hubline.amqp.transport.link import Link, Message
from hubline.amqp.transport.receiver_link import ReceiverLink
from hubline.amqp.transport.transfer_runs import Deliveries
from hubline.emulator.errors import error_of
from hubline.emulator.requests import Spawn
from hubline.errors import HublineError, HubUnavailable
from hubline.ports import Sender, SharingSender, Unsent

# As the service has it.
MESSAGE_BYTES_MAX: Final = 1024 * 1024

# Messages on their way, beside the bound in bytes of the connection: a client never waits for credit.
CREDIT: Final = 1000

# Messages that came while others were written are written together, up to this: a sync of the disk serves them all.
GROUP_BYTES_MAX: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    """The events of one message, waiting to be appended."""

    delivery_id: int
    is_settled: bool
    events: pa.RecordBatch
    bytes_count: int


class ClientSender:
    """A sender of one client: takes the events that it sends to a hub or a partition. A link handler.

    A message is accepted once its events are durable, and rejected with the reason if they cannot be.
    """

    def __init__(self, sender: Sender, *, partition: str | None, spawn: Spawn) -> None:
        self._sender = sender
        self._partition = partition
        self._spawn = spawn
        self._decoder = SentDecoder()
        self._waiting: deque[_Sent] = deque()
        self.appending: asyncio.Task[None] | None = None
        """Ends when everything that came is answered."""

    def on_attached(self, link: Link, _attach: Attach) -> None:
        assert isinstance(link, ReceiverLink)  # noqa: S101 (clients send on it)
        link.grant(CREDIT)

    def on_deliveries(self, link: ReceiverLink, deliveries: Deliveries) -> None:
        spans = zip(deliveries.delivery_ids.tolist(), deliveries.starts.tolist(), deliveries.ends.tolist(), strict=True)
        for delivery_id, start, end in spans:
            payload = deliveries.data[start:end].tobytes()
            self.on_message(link, Message(delivery_id, 0, deliveries.is_settled, payload))

    def on_message(self, link: ReceiverLink, message: Message) -> None:
        try:
            events = self._decoder.decode(message.payload, message.message_format)
        except HublineError as error:
            _reject(link, message.delivery_id, message.delivery_id, error)
            self._top_up(link)
            return
        sent = _Sent(message.delivery_id, message.is_settled, events, len(message.payload))
        link.session.connection.input_limits.hold(sent.bytes_count)
        self._waiting.append(sent)
        if self.appending is None:
            self.appending = self._spawn(self._append_all(link))

    def on_outcome(self, link: Link, delivery_id: int, state: DeliveryState | None) -> None: ...

    def on_detached(self, _link: Link, _error: Error | None) -> None:
        # What came is still appended: a settled message asks for no answer.
        if self.appending is None:
            self._spawn(self._close())

    async def _append_all(self, link: ReceiverLink) -> None:
        try:
            while self._waiting:
                group = self._next_group()
                try:
                    await self._append(link, group)
                finally:
                    link.session.connection.input_limits.release(sum(sent.bytes_count for sent in group))
                self._top_up(link)
        except Exception:
            link.detach(Error(conditions.INTERNAL_ERROR, "the link cannot continue, because of an error of the server"))
            raise
        finally:
            self.appending = None
            if link.is_over:
                await self._close()

    async def _close(self) -> None:
        with suppress(HublineError):
            await self._sender.close()

    def _next_group(self) -> list[_Sent]:
        group = [self._waiting.popleft()]
        left_bytes = GROUP_BYTES_MAX - group[0].bytes_count if isinstance(self._sender, SharingSender) else 0
        while self._waiting and self._waiting[0].bytes_count <= left_bytes:
            group.append(self._waiting.popleft())
            left_bytes -= group[-1].bytes_count
        return group

    async def _append(self, link: ReceiverLink, group: list[_Sent]) -> None:
        events = group[0].events if len(group) == 1 else pa.concat_batches([sent.events for sent in group])
        try:
            failed, begun = _failed(group, await self._send(events))
        except HublineError as error:
            failed, begun = dict.fromkeys(group, error), set()  # nothing is kept
        _accept(link, [sent.delivery_id for sent in group if sent not in failed and not sent.is_settled])
        for sent, reason in failed.items():
            # Another of the group may be to blame. Of what is begun a part is kept, which must not be kept twice.
            if len(group) > 1 and sent not in begun and not isinstance(reason, HubUnavailable):
                await self._append(link, [sent])
            elif not sent.is_settled:
                _reject(link, sent.delivery_id, sent.delivery_id, reason)

    async def _send(self, events: pa.RecordBatch) -> list[Unsent]:
        if isinstance(self._sender, SharingSender):
            return await self._sender.send_shares(events, partition=self._partition)
        await self._sender.send(events, partition=self._partition)
        return []

    def _top_up(self, link: ReceiverLink) -> None:
        if link.credit < CREDIT // 2:
            link.grant(CREDIT)


def _failed(group: list[_Sent], unsent: list[Unsent]) -> tuple[dict[_Sent, HublineError], set[_Sent]]:
    """The messages that were not kept as a whole, with the reason; and those of them of which a part was."""
    ends = np.cumsum([len(sent.events) for sent in group])
    failed: dict[_Sent, HublineError] = {}
    lost_counts = np.zeros(len(group), np.int64)
    for each in unsent:
        counts = np.bincount(np.searchsorted(ends, each.places, side="right"), minlength=len(group))
        lost_counts += counts
        for index in np.flatnonzero(counts).tolist():
            failed.setdefault(group[index], each.error)
    begun = {sent for sent, lost_count in zip(group, lost_counts, strict=True) if 0 < lost_count < len(sent.events)}
    return failed, begun


def _accept(link: ReceiverLink, delivery_ids: list[int]) -> None:
    """Settles consecutive messages by one word."""
    start = 0
    for index in range(1, len(delivery_ids) + 1):
        if index == len(delivery_ids) or delivery_ids[index] != delivery_ids[index - 1] + 1:
            link.settle(delivery_ids[start], delivery_ids[index - 1], Accepted())
            start = index


def _reject(link: ReceiverLink, first: int, last: int, error: HublineError) -> None:
    link.settle(first, last, Rejected(error_of(error)))
