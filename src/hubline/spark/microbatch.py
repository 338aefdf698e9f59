"""What Spark knows of the micro-batch that a ``foreachBatch`` function is called with, and does not tell it.

A DataFrame that ``foreachBatch`` hands over is cut off from its plan. The query itself still has it: which ranges the
batch reads, and whether rows were moved between tasks on the way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame

from hubline.errors import ConfigError
from hubline.model import GroupKey
from hubline.spark.offsets import HUB_KEY, Gap, StreamOffset, gaps_in

NO_DATA_BATCHES: Final = "spark.sql.streaming.noDataMicroBatches.enabled"
"""Whether Spark runs batches that read nothing, for windows that a watermark has ended: no range tells them apart."""

_SCAN: Final = "MicroBatchScanExec"
# Better one too many than one too few: rows that were moved and passed for narrow would be lost.
_SHUFFLE: Final = re.compile("(?<!Broadcast)Exchange")
_ADAPTIVE: Final = "AdaptiveSparkPlanExec"  # hides the plan that it changes as it goes


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One batch of one source of hubline's. ``is_narrow`` says that all rows of a partition are still in one task."""

    offset: StreamOffset
    gaps: Mapping[str, Gap]
    is_narrow: bool

    @property
    def moved(self) -> set[str]:
        """The partitions that are further after this batch."""
        entries = self.offset.entries
        return {partition for partition, entry in entries.items() if entry.end > entry.new_start} | self.gaps.keys()

    @property
    def group(self) -> GroupKey:
        """Whose progress this is: the hub and the consumer group that the stream reads."""
        if self.offset.group is None:
            raise ConfigError(
                "the query's checkpoint folder is of an earlier hubline, which did not note hub and group in it: let "
                "the query finish its last batch with that one, or start with a new folder"
            )
        return self.offset.group

    @classmethod
    def of(cls, frame: DataFrame) -> MicroBatch:
        """The one that the calling ``foreachBatch`` function was given, or a frame that it made of it."""
        execution = _execution(frame)
        plan = execution.lastExecution().executedPlan()
        offsets = [offset for offset in _end_offsets(plan) if HUB_KEY in offset]
        if not offsets:
            raise ConfigError(
                "the batch reads no hub: Spark runs one for its state alone when a watermark has moved, and a SqlSink "
                f"cannot tell whether the database has its rows. Switch such batches off, {NO_DATA_BATCHES}=false: "
                "their rows come with the next batch that has events"
            )
        if len(offsets) > 1:
            raise ConfigError(
                f"the query reads {len(offsets)} hubs by format('eventhubs'): a SqlSink takes queries that read one, "
                "since its checkpoint is that hub's. Write each stream by a query of its own"
            )
        offset = StreamOffset.from_json(offsets[0])
        own_plan = frame._jdf.queryExecution().executedPlan()  # noqa: SLF001 (Spark has no public way)
        return cls(
            offset,
            gaps_in(offsets[0]),
            not offset.is_split and not any(_SHUFFLE.search(each.toString()) for each in (plan, own_plan)),
        )


def _execution(frame: DataFrame) -> Any:
    """The query that the calling thread works for, in the JVM."""
    session = frame.sparkSession
    if not hasattr(session, "_jsparkSession"):
        raise ConfigError(
            "a SqlSink works in the driver's own process: use it in a classic session, not by Spark Connect"
        )
    query_id = session.sparkContext.getLocalProperty("sql.streaming.queryId")
    if query_id is None:
        raise ConfigError("a SqlSink is for streams: df.writeStream.foreachBatch(sink)")
    # Spark has no public way: what is handed over belongs to a copy of the session, which knows no queries.
    java, state = session.sparkContext._jvm.java, session._jsparkSession.sharedState()  # type: ignore[union-attr]  # noqa: SLF001
    return state.activeStreamingQueries().get(java.util.UUID.fromString(query_id))


def _end_offsets(plan: Any) -> Iterator[dict[str, object]]:
    leaves = plan.collectLeaves()
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        kind = leaf.getClass().getSimpleName()
        if kind == _ADAPTIVE:
            yield from _end_offsets(leaf.inputPlan())
        elif kind == _SCAN:
            yield json.loads(leaf.end().json())
