"""Running queries: where their sources stand, what they report, and the batch that a function is called with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from hubline.errors import ConfigError
from hubline.spark._jvm.plan import Step, analyzed, executed, steps_of
from hubline.spark._jvm.row_movement import SCAN, has_state, is_spread, rows_scanned


class RunningQuery:
    """The query whose micro-batch the calling `foreachBatch` function was given."""

    def __init__(self, frame: DataFrame) -> None:
        self._execution = _execution(frame)
        self._last = self._execution.lastExecution()

    @property
    def query_id(self) -> str:
        """The same for all runs of the query."""
        return str(self._execution.id().toString())

    @property
    def run_id(self) -> str:
        return str(self._execution.runId().toString())

    @cached_property
    def _plan(self) -> Step:
        return steps_of(self._last.executedPlan())

    @property
    def analyzed(self) -> Any:
        """The batch's plan as Spark understood it."""
        return self._last.analyzed()

    def offsets_read(self) -> list[dict[str, object]]:
        """The ends of what the batch reads, of each source."""
        return [json.loads(leaf.node.end().json()) for leaf in self._plan.leaves if leaf.kind == SCAN]

    def offsets_known(self) -> list[dict[str, object]]:
        """Where the sources stand, whether the batch reads them or not."""
        return list(self._offsets_known())

    def has_state(self) -> bool:
        """Whether rows can come of earlier batches, too."""
        return has_state(self._plan)

    def is_in_one_task(self, frame: DataFrame) -> bool:
        """Whether all rows of a task that read them are still in one task, in a frame that was made of the batch."""
        rows_id, plan = self._last.toRdd().id(), steps_of(executed(frame))
        # Rows that were somewhere in between, such as in the driver, are in whatever task they came to.
        is_own = rows_scanned(plan).count(rows_id) == 1
        return is_own and not (is_spread(self._plan, rows_id) or is_spread(plan, rows_id))

    def _offsets_known(self) -> Iterator[dict[str, object]]:
        offsets = self._execution.availableOffsets().valuesIterator()
        while offsets.hasNext():
            yield json.loads(offsets.next().json())


def _execution(frame: DataFrame) -> Any:
    """The query that the calling thread works for."""
    session = frame.sparkSession
    if not hasattr(session, "_jsparkSession"):
        raise ConfigError(
            "a SqlBatchWriter works in the driver's own process. Use it in a classic session, not with Spark Connect."
        )
    query_id = session.sparkContext.getLocalProperty("sql.streaming.queryId")
    if query_id is None:
        raise ConfigError("a SqlBatchWriter is for streams. Write df.writeStream.foreachBatch(sink).")
    # What is handed over belongs to a copy of the session, which knows no queries.
    jvm: Any = session.sparkContext._jvm
    state = session._jsparkSession.sharedState()
    return state.activeStreamingQueries().get(jvm.java.util.UUID.fromString(query_id))


def progress_newest_first(query: StreamingQuery) -> Iterator[dict[str, Any]]:
    """What a query reports of its batches, one at a time: reading all that Spark keeps takes 0.1 s."""
    recent = query._jsq.recentProgress()  # PySpark reads all of them, field by field
    for number in reversed(range(len(recent))):
        yield json.loads(recent[number].json())


def require_streamable(spark: SparkSession, frame: DataFrame, output_mode: str) -> None:
    """What Spark itself asks of a query when it starts. Raises `SPARK_ERRORS`."""
    jvm: Any = spark.sparkContext._jvm
    mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, output_mode.capitalize())()
    jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(analyzed(frame), mode)
