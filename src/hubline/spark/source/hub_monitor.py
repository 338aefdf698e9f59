"""What the partitions of a hub hold, known without asking the hub each time.

An idle query asks about a hundred times a second where the hub ends. It is answered from what the last look found; the
next look is taken in the background.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Final

from hubline.concurrency import map_bounded
from hubline.errors import HubError, HubUnavailable
from hubline.model.hubs import HubProperties, PartitionProperties
from hubline.retry import Backoff, RetryPolicy
from hubline.spark.source.position_lookup import Places
from hubline.spark.source.query_share import QueryShare
from hubline.text import sentences

log = logging.getLogger("hubline.spark")

# An event is seen this soon, where looking costs next to nothing.
LOOK_SECONDS_MIN: Final = 0.02
# Looking takes at most this part of the time: a hub that is far away, or has many partitions, is asked less often.
LOOK_SHARE_MAX: Final = 0.05
# And yet an event is seen this soon.
LOOK_SECONDS_MAX: Final = 2.0
# What is known is this old at most when a batch is planned from it. A look that takes longer is not waited for: one
# partition that does not answer does not hold the others back.
STALE_SECONDS: Final = 1.0
# Partitions that are asked about at once.
DESCRIBED_AT_ONCE: Final = 64
# Between two tries to reach a hub that could not be: one that is back is seen about as soon as an event is.
RETRY: Final = RetryPolicy(initial_backoff_seconds=0.5, max_backoff_seconds=LOOK_SECONDS_MAX)


class HubMonitor:
    """Looks at a hub, and at the partitions that are in the query's share. Lives on one event loop.

    ``outage_seconds`` is how long the hub may be out of reach.
    """

    def __init__(self, places: Places, share: QueryShare, *, outage_seconds: float) -> None:
        self._places = places
        self._share = share
        self._outage_seconds = outage_seconds
        self._hub: HubProperties | None = None
        self._partitions: dict[str, PartitionProperties] = {}
        self._looked_at = 0.0
        self._failing_since: float | None = None
        self._failed: HubError | None = None
        self._wanted = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Takes the first look, and tries again while the hub is out of reach. Raises if that lasts."""
        backoff = Backoff(RETRY)
        await self._look()
        while self._hub is None or not self._partitions.keys() >= set(self._share.partitions(self._hub.partition_ids)):
            self._check()
            await backoff.wait()
            await self._look()
        self._task = asyncio.create_task(self._run(), name="hubline-spark-watch")

    async def stop(self) -> None:
        tasks = [task for task in (self._task, self._looking) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    @property
    def partition_ids(self) -> tuple[str, ...]:
        """The query's partitions of which is known what they hold."""
        return tuple(partition for partition in self.hub.partition_ids if partition in self._partitions)

    @property
    def hub(self) -> HubProperties:
        assert self._hub is not None  # noqa: S101 - start() has seen it
        return self._hub

    @property
    def created(self) -> str:
        """When the hub was created, by which offsets know it from another one of the same name."""
        return self.hub.created_at.isoformat()

    async def latest(self) -> Mapping[str, PartitionProperties]:
        """What the partitions hold, as of a moment ago. While the hub is out of reach: as it was before.

        Raises what is wrong with the hub where waiting does not help, or has not helped for long enough.
        """
        self._wanted.set()
        if _now() - self._looked_at > STALE_SECONDS and self._failing_since is None:
            await asyncio.wait([self._current_look()], timeout=STALE_SECONDS)
        self._check()
        return self._partitions

    async def look(self) -> Mapping[str, PartitionProperties]:
        """What they hold now, as seen by a look that starts after this call."""
        if self._looking is not None:
            await asyncio.wait([self._looking])
        await asyncio.wait([self._current_look()])
        self._check()
        return self._partitions

    async def _run(self) -> None:
        backoff = Backoff(RETRY)
        while True:
            started_at = _now()
            await asyncio.wait([self._current_look()])
            took_seconds = _now() - started_at
            if self._failing_since is not None:
                await backoff.wait()
                continue
            backoff.reset()
            await asyncio.sleep(min(max(took_seconds / LOOK_SHARE_MAX, LOOK_SECONDS_MIN), LOOK_SECONDS_MAX))
            # Nobody asked since. A later caller takes a look of its own if this one is too old by then.
            await self._wanted.wait()
            self._wanted.clear()

    def _current_look(self) -> asyncio.Task[None]:
        """The look that is being taken, or a new one."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="hubline-spark-look")
        return self._looking

    async def _look(self) -> None:
        try:
            # The hub first: should it be re-created in between, the next look sees that before anything is read.
            self._hub = await self._places.hub()
            await self._look_at_partitions(self._share.partitions(self._hub.partition_ids))
        except HubUnavailable as error:
            self._note_outage(error)
        except HubError as error:
            self._failed = error
        else:
            self._failing_since = None
            self._failed = None
            self._looked_at = _now()

    async def _look_at_partitions(self, partitions: tuple[str, ...]) -> None:
        """Each by itself: one that cannot be seen now does not hide what the others hold."""

        async def look(partition: str) -> HubError | None:
            try:
                self._partitions[partition] = await self._places.described(partition)
            except HubError as error:
                return error
            return None

        errors = await map_bounded(look, partitions, max_concurrent=DESCRIBED_AT_ONCE)
        if failed := [error for error in errors if error is not None]:
            raise next((error for error in failed if not isinstance(error, HubUnavailable)), failed[0])

    def _note_outage(self, error: HubUnavailable) -> None:
        if self._failing_since is None:
            self._failing_since = _now()
            log.warning("hub_unavailable %s", error)
        elif _now() - self._failing_since >= self._outage_seconds:
            self._failed = HubUnavailable(
                sentences(
                    f"the hub could not be reached for {self._outage_seconds:g} s: {error}",
                    "start the query again when the hub is back, or increase the option operationTimeout",
                ),
                hub=error.hub,
                partition=error.partition,
            )

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed


def _now() -> float:
    return asyncio.get_running_loop().time()
