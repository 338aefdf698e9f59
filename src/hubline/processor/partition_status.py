"""What the parts of a partition's runner share: which partition it is, whether it may run, and what is asked of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from hubline.model.keys import PartitionKey
from hubline.model.ownership import ReleaseReason

LEASE_POLL_SECONDS = 0.1
"""How often a partition whose lease expired looks whether it was renewed after all, until it is closed as lost."""


class Reader(Protocol):
    """What tells how far a partition goes."""

    @property
    def last_sequence(self) -> int | None: ...


class PartitionStatus:
    """One partition under one lease. Made and changed on the processor's event loop; any thread may ask.

    Attributes:
        key: The partition.
        epoch: The epoch of the lease.
        is_current: Whether the lease still runs.
        loop: The event loop that the partition runs on.
        closing: Why the partition is to end; None while it is not.
        resumed: Set unless the partition is paused.
        reader: What reads the partition now, if anything does.
    """

    def __init__(self, key: PartitionKey, epoch: int, *, is_current: Callable[[], bool], is_paused: bool) -> None:
        self.key = key
        self.epoch = epoch
        self.is_current = is_current
        self.loop = asyncio.get_running_loop()
        self.closing: ReleaseReason | None = None
        self.resumed = asyncio.Event()
        self.reader: Reader | None = None
        self._close_requested = asyncio.Event()
        if not is_paused:
            self.resumed.set()

    @property
    def partition(self) -> str:
        return self.key.partition

    def is_closing(self) -> bool:
        return self.closing is not None

    @property
    def last_enqueued_sequence(self) -> int | None:
        return self.reader.last_sequence if self.reader else None

    def request_close(self, reason: ReleaseReason) -> None:
        """Asks it to end. A request to drain gives way to one that cannot wait."""
        if self.closing is None or (self.closing.drains and not reason.drains):
            self.closing = reason
        self._close_requested.set()
        if reason.drains:
            self.resumed.set()

    async def is_closed_within(self, seconds: float) -> bool:
        """Waits so long, unless it is asked to end before; returns whether it is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._close_requested.wait()
        return self.is_closing()

    async def until_current(self) -> None:
        """Waits while the lease is expired, as after a pause of the process: another processor may have it by now.

        Either it is renewed after all, or the task that waits is cancelled because the partition is lost.
        """
        while not self.is_current():  # noqa: ASYNC110 - time itself makes it untrue
            await asyncio.sleep(LEASE_POLL_SECONDS)
