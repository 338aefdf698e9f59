"""Sending: which events go where, in messages as large as the service takes, and what became of them."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from hubline.amqp.codec.performatives import (
    Accepted,
    Attach,
    DeliveryState,
    Error,
    Modified,
    Rejected,
    Released,
    Source,
    Target,
)
from hubline.amqp.events.encoder import Batch, encode_batches
from hubline.amqp.events.reference_decoder import BATCH_FORMAT
from hubline.amqp.transport.errors import AmqpError
from hubline.amqp.transport.link import AmqpClosed, Link
from hubline.amqp.transport.link import Message as Delivered
from hubline.amqp.transport.sender_link import SenderLink
from hubline.amqp.transport.transfer_runs import Deliveries
from hubline.errors import EventTooLarge, HubError, HubUnavailable
from hubline.hubs.argument_checks import require_one_target, require_outgoing
from hubline.hubs.eventhubs.service_connection import Service
from hubline.hubs.eventhubs.service_errors import (
    LINK_REDIRECT,
    MESSAGE_TOO_LARGE,
    SERVER_BUSY,
    Where,
    refused,
    translated,
)
from hubline.hubs.partition_hash import partition_indexes
from hubline.model.events import OUTGOING_SCHEMA

log = logging.getLogger("hubline.eventhubs")

# The service's limit, should it not tell one: that of its standard tier.
MESSAGE_BYTES_MAX: Final = 1024 * 1024

ATTACH_SECONDS: Final = 30.0
# The service acknowledges within a second or so, once it has the message.
OUTCOME_SECONDS: Final = 60.0
# Messages on their way at once, where their order does not count: enough to fill a connection, few enough to hold in
# memory. To a partition goes one at a time: behind a message that is turned away, others would be kept before it.
UNSETTLED_MAX: Final = 32
REDIRECTS_MAX: Final = 3

# A message that the service was too busy for was not kept, and is sent again so often.
BUSY_ATTEMPTS: Final = 4
# As the SDKs wait: the service counts in seconds, and what comes back at once is turned away again.
BUSY_SECONDS: Final = 4.0

PartitionIds = Callable[[], Awaitable[Sequence[str]]]


@dataclass(frozen=True, slots=True)
class Share:
    """Events that go to one place: a partition, or the whole hub, which then chooses by ``key`` or in turn.

    ``indexes`` are their places in what was sent.
    """

    partition: str | None
    events: pa.RecordBatch
    indexes: npt.NDArray[np.int64]
    key: str | None = None

    @property
    def is_ordered(self) -> bool:
        """Whether all of it goes to one partition."""
        return self.partition is not None or self.key is not None


class EventHubsSender:
    """Appends to the hub, as :class:`~hubline.ports.Sender` says. There is a link for each place that is sent to.

    A key for all events is given to the service, which chooses the partition. Where each event has its own key, the
    service's hash is computed here, so that those of one partition travel together and in order.

    What goes to one partition is kept whole where it fits into one message. If it takes several and one of them fails,
    those before it are kept and those after it are not sent.
    """

    def __init__(self, service: Service, hub: str, name: str, partition_ids: PartitionIds) -> None:
        self._service = service
        self._hub = hub
        self._name = name
        self._partition_ids = partition_ids
        self._links: dict[str | None, SendLink] = {}
        self._lock = asyncio.Lock()
        self._is_closed = False

    async def send(
        self, events: pa.RecordBatch, *, partition: str | None = None, partition_key: str | None = None
    ) -> None:
        if self._is_closed:
            raise HubError("the sender is closed: open another one", hub=self._hub)
        require_one_target(partition, partition_key)
        require_outgoing(events)
        async with self._lock:
            shares = await shared_out(events, partition, partition_key, self._partition_ids)
            links = [await self._link(share.partition) for share in shares]
        batches = self._encoded(shares, links)
        # What one partition refuses does not keep the others from being sent, as with several hubs. Each link takes one
        # call after the other; so calls for different partitions do not wait for each other's acknowledgements.
        sending = [
            link.send(part, unsettled_max=1 if share.is_ordered else UNSETTLED_MAX)
            for share, link, part in zip(shares, links, batches, strict=True)
        ]
        outcomes = await asyncio.gather(*sending, return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome

    async def close(self) -> None:
        self._is_closed = True
        for link in self._links.values():
            link.close()
        self._links.clear()

    def _encoded(self, shares: Sequence[Share], links: Sequence[SendLink]) -> list[list[Batch]]:
        """All messages, made before the first is sent: an event that is too large keeps back all."""
        encoded: list[list[Batch]] = []
        too_large: list[EventTooLarge] = []
        for share, link in zip(shares, links, strict=True):
            try:
                batches = encode_batches(
                    share.events, bytes_max=link.message_bytes_max, partition_key=share.key, hub=self._hub
                )
                encoded.append(list(batches))
            except EventTooLarge as error:
                too_large.append(_renumbered(error, int(share.indexes[error.index])))
        if too_large:
            raise min(too_large, key=lambda error: error.index)
        return encoded

    async def _link(self, partition: str | None) -> SendLink:
        link = self._links.get(partition)
        if link is None:
            address = self._name if partition is None else f"{self._name}/Partitions/{partition}"
            link = SendLink(self._service, Where(self._hub, partition), address)
            if partition is not None and partition not in await self._partition_ids():
                raise refused(link.where, Error("amqp:not-found", "the hub has no such partition"))
            self._links[partition] = link
        await link.open()
        return link


class SendLink:
    """A place to send to: messages go on a link until each is acknowledged, and on another one if it is lost."""

    def __init__(self, service: Service, where: Where, address: str) -> None:
        self.where = where
        self._service = service
        self._address = address
        self._link: SenderLink | None = None
        self._outcomes: dict[int, asyncio.Future[DeliveryState | None]] = {}
        self._lock = asyncio.Lock()
        self._is_closed = False

    @property
    def message_bytes_max(self) -> int:
        remote = self._link.remote if self._link else None
        return (remote.max_message_size if remote else None) or MESSAGE_BYTES_MAX

    async def open(self) -> None:
        """Attaches, unless the link is there. Raises what the service answers instead."""
        async with self._lock:
            await self._open()

    async def send(self, batches: Sequence[Batch], *, unsettled_max: int) -> None:
        """Sends so many at a time, and waits until all are kept. Raises what became of the first that was not.

        Calls are taken one after the other. What is on its way when the connection is lost may or may not have been
        kept; what comes after it is not sent.
        """
        async with self._lock:
            await self._open()  # an earlier call may have lost it
            for first in range(0, len(batches), unsettled_max):
                await self._send_some(batches[first : first + unsettled_max])

    def close(self) -> None:
        """For good. Calls that wait get an error."""
        self._is_closed = True
        self._drop()

    async def _open(self) -> None:
        if self._is_closed:
            raise HubError("the sender is closed: open another one", hub=self.where.hub)
        if self._link is not None and not self._link.is_over:
            return
        service = self._service
        for _ in range(REDIRECTS_MAX):
            try:
                self._link = await self._attached(service)
            except AmqpClosed as closed:
                if closed.error is None or closed.condition != LINK_REDIRECT:
                    raise refused(self.where, closed.error) from closed
                service = service.redirected(closed.error)
            else:
                return
        raise HubUnavailable(f"{self.where} was redirected again and again", hub=self.where.hub)

    def _drop(self) -> None:
        if self._link is not None:
            self._link.detach()
            self._link.session.end()
        self._fail(None)

    async def _send_some(self, batches: Sequence[Batch]) -> None:
        for attempt in range(1, BUSY_ATTEMPTS + 1):
            states = await self._sent(batches)
            # After one that was not kept, those behind it may have been: sending all of the rest again would double
            # them, so each is judged by itself.
            left = [batch for batch, state in zip(batches, states, strict=True) if _is_retryable(state)]
            for state in states:
                if not isinstance(state, Accepted) and not _is_retryable(state):
                    raise self._not_kept(state)
            if not left:
                return
            batches = left
            if attempt < BUSY_ATTEMPTS:
                log.warning("server_busy %s messages=%d attempt=%d", self.where, len(left), attempt)
                await asyncio.sleep(BUSY_SECONDS * random.uniform(1, 1.5))  # noqa: S311
        raise HubUnavailable(
            f"{self.where} was too busy for {len(batches)} messages, {BUSY_ATTEMPTS} times in a row: send them later",
            hub=self.where.hub,
            partition=self.where.partition,
        )

    async def _sent(self, batches: Sequence[Batch]) -> list[DeliveryState | None]:
        assert self._link is not None  # noqa: S101  (opened before)
        loop = asyncio.get_running_loop()
        waiting: list[asyncio.Future[DeliveryState | None]] = []
        try:
            async with asyncio.timeout(OUTCOME_SECONDS):
                for batch in batches:
                    await self._link.sendable()
                    outcome: asyncio.Future[DeliveryState | None] = loop.create_future()
                    tag = secrets.token_bytes(8)
                    self._outcomes[self._link.next_delivery_id] = outcome
                    self._link.send(batch.payload, message_format=BATCH_FORMAT, tag=tag)
                    waiting.append(outcome)
                return list(await asyncio.gather(*waiting))
        except TimeoutError:
            self._drop()
            raise HubUnavailable(
                f"{self.where} did not acknowledge within {OUTCOME_SECONDS:g} s what was sent: "
                "it may or may not have been kept",
                hub=self.where.hub,
                partition=self.where.partition,
            ) from None
        except AmqpError as error:
            raise translated(self.where, error) from error

    async def _attached(self, service: Service) -> SenderLink:
        session = await service.session()
        name = f"hubline-{secrets.token_hex(8)}"
        link = session.attach_sender(name, source=Source(name), target=Target(self._address), handler=self)
        try:
            async with asyncio.timeout(ATTACH_SECONDS):
                await link.attached()
        except TimeoutError:
            session.end()
            raise HubUnavailable(f"{self.where} did not answer in time", hub=self.where.hub) from None
        except BaseException:
            session.end()
            raise
        return link

    def _not_kept(self, state: DeliveryState | None) -> HubError:
        error = state.error if isinstance(state, Rejected) else None
        if error is not None and error.condition == MESSAGE_TOO_LARGE:
            return HubError(
                f"{self.where} refuses a message of at most {self.message_bytes_max:,} bytes as too large, which it "
                f"said it would take: {error.description}",
                hub=self.where.hub,
                partition=self.where.partition,
            )
        return refused(self.where, error)

    # What happens on the link

    def on_attached(self, link: Link, attach: Attach) -> None:
        pass  # whoever attached waits for it

    def on_deliveries(self, link: Link, deliveries: Deliveries) -> None:
        pass  # nothing comes on a link to send on

    def on_message(self, link: Link, message: Delivered) -> None:
        pass

    def on_outcome(self, link: Link, delivery_id: int, state: DeliveryState | None) -> None:  # noqa: ARG002
        outcome = self._outcomes.pop(delivery_id, None)
        if outcome is not None and not outcome.done():
            outcome.set_result(state)

    def on_detached(self, link: Link, error: Error | None) -> None:  # noqa: ARG002
        self._fail(error)

    def _fail(self, error: Error | None) -> None:
        outcomes, self._outcomes = self._outcomes, {}
        for outcome in outcomes.values():
            if not outcome.done():
                outcome.set_exception(AmqpClosed(f"the link to {self._address}", error))
                outcome.exception()  # it may be that nobody waits any more


async def shared_out(
    events: pa.RecordBatch, partition: str | None, key: str | None, partition_ids: PartitionIds
) -> list[Share]:
    """Which events go where."""
    everything = np.arange(len(events))
    if not len(events):
        return []
    if partition is not None:
        return [Share(partition, events, everything)]
    if key is not None:
        return [Share(None, _without_keys(events), everything, key)]
    keys = events.column("partitionKey")
    if keys.null_count == len(keys):
        return [Share(None, events, everything)]
    has_key = keys.is_valid().to_numpy(zero_copy_only=False)
    ids = await partition_ids()
    targets = np.full(len(events), -1, np.int64)
    targets[has_key] = partition_indexes(keys.drop_null(), len(ids))
    return [
        _part(events, np.flatnonzero(targets == target), None if target < 0 else ids[target])
        for target in np.unique(targets).tolist()
    ]


def _is_retryable(state: DeliveryState | None) -> bool:
    """Whether the service did not keep the message, and would take it another time."""
    if isinstance(state, Rejected):
        return state.error is not None and state.error.condition == SERVER_BUSY
    return isinstance(state, Released | Modified)


def _part(events: pa.RecordBatch, indexes: npt.NDArray[np.int64], partition: str | None) -> Share:
    return Share(partition, events if len(indexes) == len(events) else events.take(pa.array(indexes)), indexes)


def _without_keys(events: pa.RecordBatch) -> pa.RecordBatch:
    """The events without keys of their own: that of the whole message counts."""
    field = OUTGOING_SCHEMA.field("partitionKey")
    return events.set_column(events.schema.get_field_index("partitionKey"), field, pa.nulls(len(events), field.type))


def _renumbered(error: EventTooLarge, index: int) -> EventTooLarge:
    return EventTooLarge(
        f"event {index} has {error.bytes_count:,} bytes (body, key and properties): hub {error.hub} takes at most "
        f"{error.bytes_max:,}. Nothing was sent: split the event",
        hub=error.hub,
        index=index,
        bytes_count=error.bytes_count,
        bytes_max=error.bytes_max,
    )
