"""Bounded reading: the events of a range and no others, for tasks that were told what to read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from hubline.errors import HubUnavailable
from hubline.hubs.eventhubs.positions import invalid
from hubline.model import EventBatch, Position
from hubline.ports import Hub

# Events at once: as many as a receiver has on the way.
BATCH_COUNT_MAX: Final = 20_000
# The events of a range are there: what does not come within this time, while nothing else comes, was lost.
WAIT_SECONDS: Final = 60.0


async def read_range(
    hub: Hub, partition: str, *, group: str, after_sequence: int, last_sequence: int
) -> AsyncIterator[EventBatch]:
    """The events after ``after_sequence`` up to and with ``last_sequence``, in order.

    Reads without an epoch, and so disturbs no other reader. Raises PositionInvalid if the partition does not hold the
    whole range, HubUnavailable to read it again.
    """
    if after_sequence >= last_sequence:
        return
    there = await hub.describe_partition(partition)
    if last_sequence > there.last_sequence:
        raise invalid(hub.name, "beyond", Position.sequence(last_sequence, inclusive=True), there)
    receiver = await hub.open_receiver(partition, group=group, position=Position.sequence(after_sequence))
    try:
        while after_sequence < last_sequence:
            batch = await receiver.receive(
                count_max=min(last_sequence - after_sequence, BATCH_COUNT_MAX), wait_seconds=WAIT_SECONDS
            )
            if not len(batch):
                raise HubUnavailable(
                    f"partition {partition} of hub {hub.name} has sent nothing after {after_sequence} for "
                    f"{WAIT_SECONDS:g} s, though it holds events up to {there.last_sequence}",
                    hub=hub.name,
                    partition=partition,
                )
            after_sequence = batch.last_sequence
            yield batch
    finally:
        await receiver.close()
