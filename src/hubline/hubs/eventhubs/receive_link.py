"""The link of a receiver: how it is asked for, and what a refusal means."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from hubline.amqp import conditions, service_names
from hubline.amqp.codec.performatives import RECEIVER, SEND_SETTLED, Attach, Error, Source, Target
from hubline.amqp.codec.types import Described, Symbol
from hubline.amqp.transport.errors import AmqpClosed
from hubline.amqp.transport.link import LinkHandler
from hubline.amqp.transport.receiver_link import ReceiverLink
from hubline.amqp.transport.session import Session
from hubline.errors import HubError, HubUnavailable
from hubline.hubs.eventhubs.link_attach import attach
from hubline.hubs.eventhubs.service_connection import Service
from hubline.hubs.eventhubs.service_errors import POSITION_REFUSED, Where, reader_refused, refused
from hubline.hubs.eventhubs.start_position import Progress
from hubline.model.hubs import PartitionProperties

_FILTER: Final = Symbol(service_names.SELECTOR)
_EPOCH: Final = Symbol(service_names.EPOCH)
_NAME: Final = Symbol(service_names.RECEIVER_NAME)
_CAPABILITIES: Final = (service_names.GEOREPLICATION,)
# Each message then describes the partition's newest event too, in 160 bytes. An owner is asked how far behind it is;
# those who read a range, or look at some events, are not.
_OWNER_CAPABILITIES: Final = (*_CAPABILITIES, service_names.RUNTIME_METRICS)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a receiver reads, and as whom."""

    where: Where
    address: str
    group: str
    partition: str
    epoch: int | None
    progress: Progress
    describe: Callable[[], Awaitable[PartitionProperties]]


async def open_receive_link(service: Service, reading: Reading, handler: LinkHandler) -> ReceiverLink:
    """A link on which the events come. Raises what the service answers instead."""
    name = f"hubline-{secrets.token_hex(8)}"
    properties: dict[object, object] = {_NAME: name}
    is_owner = reading.epoch is not None
    if is_owner:
        properties[_EPOCH] = reading.epoch
    details = Attach(
        name,
        0,
        RECEIVER,
        snd_settle_mode=SEND_SETTLED,
        desired_capabilities=_OWNER_CAPABILITIES if is_owner else _CAPABILITIES,
        properties=properties,
    )
    source = Source(reading.address, filter={_FILTER: Described(_FILTER, reading.progress.start.selector)})

    def begin(session: Session) -> ReceiverLink:
        return session.attach_receiver(name, source=source, target=Target(name), handler=handler, details=details)

    try:
        return await attach(service, reading.where, begin)
    except AmqpClosed as closed:
        raise refusal(reading, closed.error) from closed


def refusal(reading: Reading, error: Error | None) -> HubError:
    """Why the service does not open the link, or closed it."""
    if error is not None and error.condition == conditions.STOLEN:
        return reader_refused(reading.where, reading.epoch, error)
    if error is not None and error.condition in POSITION_REFUSED:
        return reading.progress.refuse("beyond" if reading.progress.is_proven else "foreign")
    if error is not None and error.condition == conditions.NOT_FOUND:
        return HubError(
            f"{reading.where} has no consumer group {reading.group}. Create it, or read in one that is there "
            f"({error.description}).",
            hub=reading.where.hub,
            partition=reading.partition,
        )
    if error is not None and error.condition == conditions.RESOURCE_LIMIT_EXCEEDED:
        return HubUnavailable(
            f"{reading.where} has as many readers without an epoch in this group as it takes. "
            "Close one, or read with an epoch.",
            hub=reading.where.hub,
            partition=reading.partition,
        )
    return refused(reading.where, error)
