"""Calls of a hub with a time limit."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from hubline.concurrency import TimeLimit
from hubline.errors import HubUnavailable
from hubline.model.hubs import PartitionProperties
from hubline.model.positions import Position, PositionKind
from hubline.ports import Hub

T = TypeVar("T")


async def within(timeout_seconds: float, call: Awaitable[T], *, what: str) -> T:
    """A call of a hub, with a limit on its time: one that hangs ends as if the hub could not be reached."""
    try:
        with TimeLimit(timeout_seconds):
            return await call
    except TimeoutError:
        raise HubUnavailable(
            f"the hub did not {what} within {timeout_seconds:g} s. Try again, and check the network."
        ) from None


async def describe_partition(hub: Hub, partition: str, *, timeout_seconds: float) -> PartitionProperties:
    """The partition's properties. Raises HubUnavailable if the hub does not answer in time."""
    return await within(timeout_seconds, hub.describe_partition(partition), what=f"describe partition {partition}")


async def pinned(hub: Hub, partition: str, position: Position, *, seconds_max: float) -> Position:
    """The same place, by sequence number where it was "the end": opened again later, "the end" would skip events."""
    if position.kind is not PositionKind.LATEST:
        return position
    properties = await describe_partition(hub, partition, timeout_seconds=seconds_max)
    return Position.sequence(properties.last_sequence, inclusive=position.inclusive and not properties.is_empty)
