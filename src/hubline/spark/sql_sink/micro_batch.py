"""What is known of the micro-batch that a ``foreachBatch`` function is called with.

A DataFrame that ``foreachBatch`` hands over is cut off from its plan. Which events the batch reads stands in the
query's own log of offsets; whether rows are moved between tasks on the way was asked before the query started.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hubline.errors import ConfigError
from hubline.model.keys import GroupKey
from hubline.spark.checkpoint_location import CheckpointLocation, Read
from hubline.spark.query_plan import QueryPlan
from hubline.spark.source.offsets import HUB_KEY, Gap, StreamOffset, gaps_in


@dataclass(frozen=True, slots=True)
class QueryShape:
    """What is known of a query before it starts, and holds for all its batches. It can be pickled.

    Attributes:
        columns: The columns of its rows.
        computed: The columns of events that it computes itself.
        stays_in_task: Whether it is proved that all rows of a partition stay in the task that read it.
        has_state: Whether rows can come of earlier batches, too.
    """

    columns: tuple[str, ...]
    computed: frozenset[str]
    stays_in_task: bool
    has_state: bool

    @classmethod
    def of(cls, plan: QueryPlan, names: Iterable[str]) -> QueryShape:
        """`names` are the columns by which events are known."""
        return cls(plan.columns, frozenset(plan.computed(names)), plan.stays_in_task, plan.has_state)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One batch of one source of hubline's. ``is_narrow`` says that all rows of a partition are
    still in one task.

    Where the query has state, rows come of earlier batches, too, and ``state_of`` is the query's id. Spark runs a batch
    for its state alone when a watermark has moved: that one ``reads`` nothing, and its ``offset`` is that of the batch
    before it.
    """

    offset: StreamOffset
    gaps: Mapping[str, Gap]
    is_narrow: bool
    state_of: str | None = None
    reads: bool = True
    computed: frozenset[str] = frozenset()
    """The columns of events that the query computes itself."""

    @property
    def moved(self) -> set[str]:
        """The partitions that are further after this batch."""
        if not self.reads:
            return set()
        entries = self.offset.entries
        return {partition for partition, entry in entries.items() if entry.end > entry.new_start} | self.gaps.keys()

    @property
    def group(self) -> GroupKey:
        """Whose progress this is: the hub and the consumer group that the stream reads."""
        if self.offset.group is None:
            raise ConfigError(
                "the query's last batch was planned by another connector, which did not write the consumer "
                "group into its offsets. Let that connector finish the batch, or start with a new checkpoint "
                "location."
            )
        return self.offset.group

    @classmethod
    def logged(cls, location: CheckpointLocation, read: Read, batch_id: int, shape: QueryShape) -> MicroBatch:
        """The one that the query's own log of offsets says is running."""
        location.require_running(read, batch_id)
        ends = _of_hubs(location.offsets(read, batch_id))
        if not ends:
            raise ConfigError(
                "the query does not read a hub by format('eventhubs'). Use a SqlBatchWriter only for queries that read "
                "one."
            )
        query_id = location.query_id(read) if shape.has_state else ""
        # Spark logs the same end once more for a batch that it runs for the query's state alone.
        reads = not (shape.has_state and batch_id and _of_hubs(location.offsets(read, batch_id - 1)) == ends)
        offset = StreamOffset.from_json(ends[0])
        is_narrow = shape.stays_in_task and reads and not offset.is_split
        gaps = gaps_in(ends[0]) if reads else {}
        return cls(offset, gaps, is_narrow, query_id or None, reads, shape.computed)


def _of_hubs(offsets: Iterable[object]) -> list[dict[str, object]]:
    """The offsets of hubline's own source: one, if the query reads a hub."""
    found = [offset for offset in offsets if isinstance(offset, dict) and HUB_KEY in offset]
    _require_one(len(found))
    return found


def require_one_hub(plan: QueryPlan) -> None:
    """Refuses a query that reads hubs several times, before it starts."""
    _require_one(plan.hubs_read)


def _require_one(readings: int) -> None:
    if readings > 1:
        raise ConfigError(
            f"the query reads hubs {readings} times by format('eventhubs'), in a join or a union: a "
            "SqlBatchWriter takes queries that read one hub once, since its checkpoint is that reading's. "
            "Write each stream by a query of its own; to write rows and dead letters of one stream, use "
            "the column _error."
        )
