"""What Spark knows of the micro-batch that a ``foreachBatch`` function is called with, and does not tell it.

A DataFrame that ``foreachBatch`` hands over is cut off from its plan. The query itself still has it: which ranges the
batch reads, and whether rows were moved between tasks on the way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame

from hubline.errors import ConfigError
from hubline.model.keys import GroupKey
from hubline.spark._jvm.plan import streams_read
from hubline.spark._jvm.query import RunningQuery
from hubline.spark.schema import SOURCE_SCHEMA
from hubline.spark.source.offsets import HUB_KEY, Gap, StreamOffset, gaps_in


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One batch of one source of hubline's, in a run of a query. ``is_narrow`` says that all rows of a partition are
    still in one task.

    Where the query has state, rows come of earlier batches, too, and ``state_of`` is the query's id. Spark runs a batch
    for its state alone when a watermark has moved: that one ``reads`` nothing, and its ``offset`` is that of the batch
    before it.
    """

    run_id: str
    offset: StreamOffset
    gaps: Mapping[str, Gap]
    is_narrow: bool
    state_of: str | None = None
    reads: bool = True

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
    def of(cls, frame: DataFrame) -> MicroBatch:
        """The one that the calling ``foreachBatch`` function was given, or a frame that it made of it."""
        query = RunningQuery(frame)
        if read := _of_hubs(query.offsets_read()):
            offset = StreamOffset.from_json(read[0])
            state_of = query.query_id if query.has_state() else None
            # Rows of a state are of earlier events, too, whose partitions may not be in this batch.
            is_narrow = state_of is None and not offset.is_split and query.is_in_one_task(frame)
            return cls(query.run_id, offset, gaps_in(read[0]), is_narrow, state_of)
        if known := _of_hubs(query.offsets_known()):
            return cls(query.run_id, StreamOffset.from_json(known[0]), {}, False, query.query_id, reads=False)
        raise ConfigError(
            "the query does not read a hub by format('eventhubs'). Use a SqlBatchWriter only for queries that read one."
        )


def _of_hubs(offsets: Iterable[dict[str, object]]) -> list[dict[str, object]]:
    """The offsets of hubline's own source: one, if the query reads a hub."""
    found = [offset for offset in offsets if HUB_KEY in offset]
    _require_one(len(found))
    return found


def require_one_hub(frame: DataFrame) -> None:
    """Refuses a query that reads hubs several times, before it starts."""
    hubs_columns = set(SOURCE_SCHEMA.names)
    _require_one(sum(columns >= hubs_columns for columns in streams_read(frame)))


def _require_one(readings: int) -> None:
    if readings > 1:
        raise ConfigError(
            f"the query reads hubs {readings} times by format('eventhubs'), in a join or a union: a "
            "SqlBatchWriter takes queries that read one hub once, since its checkpoint is that reading's. "
            "Write each stream by a query of its own; to write rows and dead letters of one stream, use "
            "the column _error."
        )
