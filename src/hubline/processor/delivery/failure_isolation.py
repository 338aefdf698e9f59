"""Which events make a batch fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from hubline.errors import HandlerFailed
from hubline.model.events import EventBatch

Attempt = Callable[[EventBatch, int], Awaitable[HandlerFailed | None]]
Blame = Callable[[EventBatch, HandlerFailed], Awaitable[None]]


async def isolate_failures(batch: EventBatch, failed: HandlerFailed, attempt: Attempt, blame: Blame) -> None:
    """Halves a batch that failed until the failing events are found, in order.

    Args:
        batch: The events that failed together.
        failed: How they failed.
        attempt: Called for each half, with the number of the attempt. Handles it once, and returns how it failed.
        blame: Called for each event that fails alone.
    """
    if len(batch) == 1:
        await blame(batch, failed)
        return
    for half in halves(batch):
        half_failed = await attempt(half, failed.attempts + 1)
        if half_failed is not None:
            await isolate_failures(half, half_failed, attempt, blame)


def halves(batch: EventBatch) -> tuple[EventBatch, EventBatch]:
    middle = len(batch) // 2
    return batch.slice(0, middle), batch.slice(middle)
