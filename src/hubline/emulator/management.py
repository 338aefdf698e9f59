"""``$management``: what hubs there are, and what their partitions hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from hubline.amqp import conditions
from hubline.amqp.codec.message import Message
from hubline.amqp.codec.types import Array, Int, Timestamp
from hubline.amqp.service_names import HUB_TYPE, LAST_ENQUEUED, LAST_OFFSET, LAST_SEQUENCE, MANAGEMENT, PARTITION_TYPE
from hubline.emulator.errors import error_of
from hubline.emulator.hubs import Hubs
from hubline.emulator.requests import (
    BAD_REQUEST,
    INTERNAL_ERROR,
    NOT_FOUND,
    OK,
    UNAUTHORIZED,
    UNAVAILABLE,
    Answer,
    text_property,
)
from hubline.errors import HublineError, HubNotFound, HubUnavailable, PartitionNotFound
from hubline.model.hubs import HubProperties, PartitionProperties
from hubline.ports import Hub

# What the service says of a partition that never had an event: its offset, and the first moment of .NET's calendar.
NO_OFFSET: Final = "-1"
NO_TIME: Final = datetime(1, 1, 1, tzinfo=UTC)

# Of a hub that is not replicated to other regions. The SDK for Rust takes no answer without the epochs.
NO_REPLICATION_EPOCH: Final = -1

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


class ManagementNode:
    """Answers READ requests. ``is_allowed`` tells whether a request with a token may look at a hub.

    Requests without a token over $cbs are allowed: the SDK for Java has the token in each request instead.
    """

    def __init__(self, hubs: Hubs, is_allowed: Callable[[str, Sequence[str]], bool]) -> None:
        self._hubs = hubs
        self._is_allowed = is_allowed

    async def answer(self, request: Message) -> Answer:
        operation, kind = text_property(request, "operation"), text_property(request, "type")
        if operation != "READ" or kind not in (HUB_TYPE, PARTITION_TYPE):
            return Answer(BAD_REQUEST, f"only READ of {HUB_TYPE} and {PARTITION_TYPE} is supported here")
        name = text_property(request, "name")
        # A token for the hub covers this, and so does one for its management alone, which some clients put.
        if not self._is_allowed(text_property(request, "security_token"), [name, MANAGEMENT]):
            return Answer(
                UNAUTHORIZED, "no token was put for this hub over $cbs", condition=conditions.UNAUTHORIZED_ACCESS
            )
        try:
            hub = await self._hubs.find(name)
            if hub is None:
                return Answer(NOT_FOUND, f"there is no hub {name[:64]!r} here", condition=conditions.NOT_FOUND)
            if kind == HUB_TYPE:
                return Answer(OK, "OK", hub_value(await hub.describe()))
            return await _read_partition(hub, request)
        except HublineError as error:
            return _failed(error)


async def _read_partition(hub: Hub, request: Message) -> Answer:
    partition = text_property(request, "partition")
    return Answer(OK, "OK", partition_value(hub.name, await hub.describe_partition(partition)))


def _failed(error: HublineError) -> Answer:
    status = INTERNAL_ERROR
    if isinstance(error, HubNotFound | PartitionNotFound):
        status = NOT_FOUND
    elif isinstance(error, HubUnavailable):
        status = UNAVAILABLE
    refusal = error_of(error)
    return Answer(status, refusal.description or "", condition=refusal.condition)


def hub_value(hub: HubProperties) -> dict[str, object]:
    return {
        "name": hub.name,
        "type": HUB_TYPE,
        "created_at": timestamp(hub.created_at),
        "partition_count": Int(len(hub.partition_ids)),
        "partition_ids": Array(hub.partition_ids),
        "georeplication_factor": Int(1),
    }


def partition_value(hub: str, partition: PartitionProperties) -> dict[str, object]:
    return {
        "name": hub,
        "type": PARTITION_TYPE,
        "partition": partition.partition,
        "begin_sequence_number": partition.begin_sequence,
        "begin_sequence_number_epoch": Int(NO_REPLICATION_EPOCH),
        LAST_SEQUENCE: partition.last_sequence,
        f"{LAST_SEQUENCE}_epoch": Int(NO_REPLICATION_EPOCH),
        LAST_OFFSET: partition.last_offset or NO_OFFSET,
        LAST_ENQUEUED: timestamp(partition.last_enqueued_time or NO_TIME),
        "is_partition_empty": partition.is_empty,
    }


def timestamp(time: datetime) -> Timestamp:
    return Timestamp((time - _EPOCH) // _MILLISECOND)
