"""One place to send to: a link, what is on its way, and what the service says became of it."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Sequence
from typing import Final

from hubline.amqp import conditions
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
from hubline.amqp.events.encoder import Batch
from hubline.amqp.events.reference_decoder import BATCH_FORMAT
from hubline.amqp.transport.errors import AmqpClosed, AmqpError
from hubline.amqp.transport.link import Link
from hubline.amqp.transport.link import Message as Delivered
from hubline.amqp.transport.sender_link import SenderLink
from hubline.amqp.transport.session import Session
from hubline.amqp.transport.transfer_runs import Deliveries
from hubline.errors import HubError, HubUnavailable
from hubline.hubs.eventhubs.link_attach import attach
from hubline.hubs.eventhubs.service_connection import Service
from hubline.hubs.eventhubs.service_errors import Where, refused, translated
from hubline.retry import RetryPolicy

log = logging.getLogger("hubline.hubs")

# The service's limit, should it not tell one: that of its standard tier.
MESSAGE_BYTES_MAX: Final = 1024 * 1024
# The service acknowledges within a second or so, once it has the message.
OUTCOME_SECONDS: Final = 60.0
# A message that the service was too busy for was not kept, and is sent again so often. The SDKs wait 4 seconds: the
# service counts in seconds, and what comes back at once is turned away again.
BUSY: Final = RetryPolicy(max_attempts=4, initial_backoff_seconds=8.0, max_backoff_seconds=8.0)

_rng: Final = random.Random()  # noqa: S311 - it only spreads tries over time


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
            raise HubError("the sender is closed. Open another one.", hub=self.where.hub)
        if self._link is not None and not self._link.is_over:
            return
        name = f"hubline-{secrets.token_hex(8)}"
        source, target = Source(name), Target(self._address)

        def begin(session: Session) -> SenderLink:
            return session.attach_sender(name, source=source, target=target, handler=self)

        try:
            self._link = await attach(self._service, self.where, begin)
        except AmqpClosed as closed:
            raise refused(self.where, closed.error) from closed

    def _drop(self) -> None:
        if self._link is not None:
            self._link.detach()
            self._link.session.end()
        self._fail(None)

    async def _send_some(self, batches: Sequence[Batch]) -> None:
        for attempt in range(1, BUSY.max_attempts + 1):
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
            if attempt < BUSY.max_attempts:
                log.warning("server_busy %s messages=%d attempt=%d", self.where, len(left), attempt)
                await asyncio.sleep(BUSY.delay(attempt, _rng))
        raise HubUnavailable(
            f"{self.where} was too busy for {len(batches)} messages, {BUSY.max_attempts} times in a row. "
            "Send them later.",
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
                f"{self.where} did not acknowledge the events within {OUTCOME_SECONDS:g} s, and may or may not "
                "have stored them. Send them again if duplicates do no harm.",
                hub=self.where.hub,
                partition=self.where.partition,
            ) from None
        except AmqpError as error:
            raise translated(self.where, error) from error

    def _not_kept(self, state: DeliveryState | None) -> HubError:
        error = state.error if isinstance(state, Rejected) else None
        if error is not None and error.condition == conditions.MESSAGE_SIZE_EXCEEDED:
            return HubError(
                f"{self.where} refuses a message of at most {self.message_bytes_max:,} bytes as too large, "
                f"although it announced that size ({error.description}). Send smaller events, and report this "
                "as a bug of hubline.",
                hub=self.where.hub,
                partition=self.where.partition,
            )
        return refused(self.where, error)

    # What happens on the link

    def on_attached(self, link: Link, attach: Attach) -> None:
        pass  # the task that attached waits for it

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


def _is_retryable(state: DeliveryState | None) -> bool:
    """Whether the service did not keep the message, and would take it another time."""
    if isinstance(state, Rejected):
        return state.error is not None and state.error.condition == conditions.SERVER_BUSY
    return isinstance(state, Released | Modified)
