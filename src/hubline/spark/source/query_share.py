"""Several queries that share the partitions of a hub, so that each goes at its own pace.

Query 2 of 4 has every fourth partition of the hub, from the second one on. Which partitions those are depends on the
hub alone, so queries of one program never meet in a partition, and one that is started again takes none from another.

Each query is a consumer of its own in the group. It shares its partitions with the same query of other programs, whose
owner ids end as its own does: among those alone the shares are even. Leases decide, as everywhere, who reads a
partition: programs with different numbers of queries do not read one twice either.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from hubline.coordination.snapshot import Snapshot
from hubline.coordination.strategies import Plan, Strategy
from hubline.spark.source.offsets import in_order

_ENDING: Final = re.compile(r"\.[0-9]+of[0-9]+$")


@dataclass(frozen=True, slots=True)
class QueryShare:
    """The share of query ``number``, counted from 1, of ``count``. One query alone has all partitions."""

    number: int = 1
    count: int = 1

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> QueryShare:
        """Reads what ``str`` writes."""
        number, _, count = text.partition("/")
        return cls(int(number), int(count))

    @classmethod
    def of_all(cls, count: int) -> tuple[QueryShare, ...]:
        return tuple(cls(number, count) for number in range(1, count + 1))

    @property
    def is_alone(self) -> bool:
        return self.count == 1

    def partitions(self, of_hub: Sequence[str]) -> tuple[str, ...]:
        """The query's own. Partitions that are added to the hub come last, and move no other."""
        return tuple(in_order(of_hub)[self.number - 1 :: self.count])

    def owner_id(self, owner_id: str) -> str:
        return owner_id + self._ending

    def strategy(self, strategy: Strategy) -> Strategy:
        """The strategy, for the query's own partitions."""
        return _AmongItsKind(strategy, self._ending)

    @property
    def _ending(self) -> str:
        return "" if self.is_alone else f".{self.number}of{self.count}"


@dataclass(frozen=True, slots=True)
class _AmongItsKind:
    """A strategy that shares partitions with the consumers whose ids end like this one's.

    What others own, such as a program with another number of queries, is left to them: they share other partitions,
    too, and would be dealt some of these that they do not look for.
    """

    inner: Strategy
    ending: str

    @property
    def max_partitions(self) -> int | None:
        return self.inner.max_partitions

    def plan(self, snapshot: Snapshot, rng: random.Random) -> Plan:
        owners = {partition: record.owner_id for partition, record in snapshot.living_records.items()}
        shared = [each for each in snapshot.partitions if self._is_of_its_kind(owners.get(each, self.ending))]
        members = [member for member in snapshot.members if self._is_of_its_kind(member.owner_id)]
        return self.inner.plan(replace(snapshot, partitions=shared, members=members), rng)

    def _is_of_its_kind(self, owner_id: str) -> bool:
        found = _ENDING.search(owner_id)
        return (found[0] if found else "") == self.ending
