"""What Spark knows of the micro-batch that a ``foreachBatch`` function is called with, and does not tell it.

A DataFrame that ``foreachBatch`` hands over is cut off from its plan. The query itself still has it: which ranges the
batch reads, and whether rows were moved between tasks on the way.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame

from hubline.errors import ConfigError
from hubline.model.keys import GroupKey
from hubline.spark.schema import SOURCE_SCHEMA
from hubline.spark.source.offsets import HUB_KEY, Gap, StreamOffset, gaps_in

_STREAM: Final = "StreamingRelationV2"
_SCAN: Final = "MicroBatchScanExec"
# Better one too many than one too few: rows that were moved and passed for narrow would be lost.
_SPREAD: Final = re.compile(r"(?<!Broadcast)Exchange|CartesianProduct|^[\W\d]*Union\b", re.MULTILINE)
_BROADCAST: Final = "BroadcastExchange"
# The steps of a plan that keep state, each on a line of its own.
_STATE: Final = re.compile(
    r"^\W*\w*(?:StateStore|WithState|Streaming(?:SymmetricHashJoin|Deduplicate|GlobalLimit))", re.MULTILINE
)
# What hides a plan: the one that it changes as it goes, and the one that made what is kept.
_ADAPTIVE: Final = "AdaptiveSparkPlanExec"
_KEPT: Final = "InMemoryTableScanExec"
_ROWS: Final = "RDDScanExec"


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
                "the query's checkpoint folder is of an earlier hubline, which did not note hub and group in it: let "
                "the query finish its last batch with that one, or start with a new folder"
            )
        return self.offset.group

    @classmethod
    def of(cls, frame: DataFrame) -> MicroBatch:
        """The one that the calling ``foreachBatch`` function was given, or a frame that it made of it."""
        execution = execution_of(frame)
        run_id = execution.runId().toString()
        last = execution.lastExecution()
        plan = last.executedPlan()
        if read := _of_hubs(_end_offsets(plan)):
            offset = StreamOffset.from_json(read[0])
            own_plan = frame._jdf.queryExecution().executedPlan()  # noqa: SLF001 (Spark has no public way)
            steps = plan.toString()
            rows_id = last.toRdd().id()
            is_spread = _is_spread(plan, steps, rows_id) or _is_spread(own_plan, own_plan.toString(), rows_id)
            # Rows that were somewhere in between, such as in the driver, are in whatever task they came to.
            is_own = _rows_scanned(_leaves(own_plan)).count(rows_id) == 1
            state_of = execution.id().toString() if _STATE.search(steps) else None
            # Rows of a state are of earlier events, too, whose partitions may not be in this batch.
            is_narrow = is_own and state_of is None and not (offset.is_split or is_spread)
            return cls(run_id, offset, gaps_in(read[0]), is_narrow, state_of)
        if known := _of_hubs(_known_offsets(execution)):
            return cls(run_id, StreamOffset.from_json(known[0]), {}, False, execution.id().toString(), reads=False)
        raise ConfigError("the query reads no hub by format('eventhubs'): a SqlBatchWriter takes queries that read one")


def _of_hubs(offsets: Iterable[dict[str, object]]) -> list[dict[str, object]]:
    """The offsets of hubline's own source: one, if the query reads a hub."""
    found = [offset for offset in offsets if HUB_KEY in offset]
    _require_one(len(found))
    return found


def require_one_hub(plan: Any) -> None:
    """Refuses an analysed query that reads hubs several times, before it starts."""
    streams = [leaf for kind, leaf in _leaves(plan) if kind == _STREAM]
    hubs_columns = set(SOURCE_SCHEMA.names)
    _require_one(sum({column.name() for column in each_of(each.output())} >= hubs_columns for each in streams))


def _require_one(readings: int) -> None:
    if readings > 1:
        raise ConfigError(
            f"the query reads hubs {readings} times by format('eventhubs'), in a join or a union: a SqlBatchWriter "
            "takes queries that read one hub once, since its checkpoint is that reading's. Write each stream by a "
            "query of its own; rows and dead letters of one stream can be told apart by _error"
        )


def execution_of(frame: DataFrame) -> Any:
    """The query that the calling thread works for, in the JVM."""
    session = frame.sparkSession
    if not hasattr(session, "_jsparkSession"):
        raise ConfigError(
            "a SqlBatchWriter works in the driver's own process: use it in a classic session, not by Spark Connect"
        )
    query_id = session.sparkContext.getLocalProperty("sql.streaming.queryId")
    if query_id is None:
        raise ConfigError("a SqlBatchWriter is for streams: df.writeStream.foreachBatch(sink)")
    # Spark has no public way: what is handed over belongs to a copy of the session, which knows no queries.
    java, state = session.sparkContext._jvm.java, session._jsparkSession.sharedState()  # type: ignore[union-attr]  # noqa: SLF001
    return state.activeStreamingQueries().get(java.util.UUID.fromString(query_id))


def _end_offsets(plan: Any) -> list[dict[str, object]]:
    return [json.loads(leaf.end().json()) for kind, leaf in _leaves(plan) if kind == _SCAN]


def _rows_scanned(leaves: Iterable[tuple[str, Any]]) -> list[int]:
    """The numbers of the sets of rows that are among what a plan begins with: those of a batch are one."""
    return [leaf.rdd().id() for kind, leaf in leaves if kind == _ROWS]


def _is_spread(plan: Any, steps: str, rows_id: int) -> bool:
    """Whether the batch's rows of one task may come to several: moved, or sent to all to be joined with."""
    if _SPREAD.search(steps):
        return True
    if _BROADCAST not in steps:
        return False
    sent = [leaf for step in steps_of(plan) if kind_of(step).startswith(_BROADCAST) for leaf in _leaves(step)]
    return rows_id in _rows_scanned(sent) or any(kind == _SCAN for kind, _ in sent)


def analyzed(frame: DataFrame) -> Any:
    """A frame's plan as Spark understood it, before it is made any faster."""
    return frame._jdf.queryExecution().analyzed()  # noqa: SLF001 (Spark has no public way)


def steps_of(plan: Any) -> Iterator[Any]:
    """The steps of a plan, logical or physical, from its end."""
    yield plan
    # Of what Spark changes as it goes the first plan has the steps; the one before that has no exchanges yet.
    inner = [plan.initialPlan()] if kind_of(plan) == _ADAPTIVE else each_of(plan.children())
    for child in inner:
        yield from steps_of(child)


def each_of(sequence: Any) -> Iterator[Any]:
    """The elements of a sequence of Java's."""
    return (sequence.apply(number) for number in range(sequence.size()))


def kind_of(step: Any) -> str:
    """What a step of a plan is."""
    return str(step.getClass().getSimpleName())


def _leaves(plan: Any) -> Iterator[tuple[str, Any]]:
    """What the plan begins with, each with its kind."""
    for leaf in each_of(plan.collectLeaves()):
        kind = kind_of(leaf)
        if kind == _ADAPTIVE:
            yield from _leaves(leaf.inputPlan())
        elif kind == _KEPT:
            yield from _leaves(leaf.relation().cachedPlan())
        else:
            yield kind, leaf


def _known_offsets(execution: Any) -> Iterator[dict[str, object]]:
    """Where the sources stand, whether the batch reads them or not."""
    offsets = execution.availableOffsets().valuesIterator()
    while offsets.hasNext():
        yield json.loads(offsets.next().json())
