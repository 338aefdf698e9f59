"""When a query that ends by itself has its share of the partitions: all that it will get."""

from __future__ import annotations

import asyncio
import random
from typing import Final

from hubline.coordination.snapshot import Snapshot
from hubline.coordination.strategies import Plan, Strategy

# How much younger than the first look at it a lease is that was renewed since: stores count in whole seconds, too.
RENEWAL_SEEN_SECONDS: Final = 2.5


class SettledStrategy:
    """A strategy as it is, that also says when there was nothing left to do, and nothing to wait for."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy
        self._seen_at: dict[tuple[str, int], float] = {}
        self.is_settled = asyncio.Event()

    @property
    def max_partitions(self) -> int | None:
        return self._strategy.max_partitions

    def plan(self, snapshot: Snapshot, rng: random.Random) -> Plan:
        plan = self._strategy.plan(snapshot, rng)
        if plan.is_idle and not self._awaits(snapshot, asyncio.get_running_loop().time()):
            self.is_settled.set()
        return plan

    def _awaits(self, snapshot: Snapshot, now: float) -> bool:
        """Whether a partition may still come: it was requested, or its owner was not seen to renew it, and may be dead.

        Then its lease expires. An owner that lives renews it meanwhile, and reads it, too.
        """
        limit = self.max_partitions
        if limit is not None and len(snapshot.held) >= limit:
            return False
        me = snapshot.me.owner_id
        records = snapshot.living_records.items()
        others = {(partition, record.epoch): record for partition, record in records if record.owner_id != me}
        self._seen_at = {lease: self._seen_at.get(lease, now) for lease in others}
        is_renewed = (o.age_seconds + RENEWAL_SEEN_SECONDS < now - self._seen_at[lease] for lease, o in others.items())
        is_asked = (
            o.requested_by == me and o.request_age_seconds < snapshot.handover_timeout_seconds for o in others.values()
        )
        return any(is_asked) or not all(is_renewed)
