"""Stores of four methods, as users write them: records are dictionaries, as the official Python SDK has them."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, cast

from hubline.ports import CheckpointStore
from hubline.testing.simulation.faults import RemoteStore, Weather
from hubline.testing.simulation.virtual_loop import SimProcess

Record = dict[str, Any]


class DictionaryStore:
    """In memory, and never waits. ``now`` is its clock, ``failing`` what a method raises; ``calls`` counts them."""

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.now = now
        self.ownerships: dict[tuple[str, ...], Record] = {}
        self.checkpoints: dict[tuple[str, ...], Record] = {}
        self.written: list[Record] = []
        self.failing: dict[str, Exception] = {}
        self.calls: Counter[str] = Counter()
        self._etags = itertools.count(1)

    async def list_ownership(self, namespace: str, hub: str, group: str) -> list[Record]:
        self._count("list_ownership")
        return [dict(one) for key, one in self.ownerships.items() if key[:3] == (namespace, hub, group)]

    async def claim_ownership(self, ownership_list: Iterable[Record]) -> list[Record]:
        self._count("claim_ownership")
        won = []
        for claim in ownership_list:
            key = _key_of(claim)
            if self.ownerships.get(key, {}).get("etag") == claim.get("etag"):
                modified = datetime.fromtimestamp(self.now(), UTC)
                self.ownerships[key] = {**claim, "etag": str(next(self._etags)), "last_modified_time": modified}
                won.append(dict(self.ownerships[key]))
        return won

    async def list_checkpoints(self, namespace: str, hub: str, group: str) -> list[Record]:
        self._count("list_checkpoints")
        return [dict(one) for key, one in self.checkpoints.items() if key[:3] == (namespace, hub, group)]

    async def update_checkpoint(self, checkpoint: Record) -> None:
        self._count("update_checkpoint")
        self.checkpoints[_key_of(checkpoint)] = dict(checkpoint)
        self.written.append(dict(checkpoint))

    def _count(self, method: str) -> None:
        self.calls[method] += 1
        if error := self.failing.get(method, self.failing.get("*")):
            raise error


class RemoteFourMethods(RemoteStore):
    """A process's connection to a store of four methods that never waits: late, and with lost answers."""

    def __init__(self, process: SimProcess, store: DictionaryStore, weather: Weather) -> None:
        super().__init__(process, cast("CheckpointStore", store), weather)
        self._four = store

    async def list_ownership(self, namespace: str, hub: str, group: str) -> list[Record]:  # type: ignore[override]
        return await self._call(lambda: self._four.list_ownership(namespace, hub, group))

    async def claim_ownership(self, ownership_list: Iterable[Record]) -> list[Record]:  # type: ignore[override]
        claims = [dict(one) for one in ownership_list]
        return await self._call(lambda: self._four.claim_ownership(claims))

    async def list_checkpoints(self, namespace: str, hub: str, group: str) -> list[Record]:  # type: ignore[override]
        return await self._call(lambda: self._four.list_checkpoints(namespace, hub, group))

    async def update_checkpoint(self, checkpoint: Record) -> None:  # type: ignore[override]
        await self._call(lambda: self._four.update_checkpoint(dict(checkpoint)))


def _key_of(record: Record) -> tuple[str, ...]:
    return tuple(
        record[name] for name in ("fully_qualified_namespace", "eventhub_name", "consumer_group", "partition_id")
    )
