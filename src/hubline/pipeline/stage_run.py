"""A stage of a run, or one of its queries: it is started, watched, started again after a failure, and stopped."""

from __future__ import annotations

import enum
import logging
import random
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException

from hubline.addresses.store_address import parse_store
from hubline.errors import PipelineInvalid, Problem
from hubline.hubs.position_check import OF_ANOTHER_HUB
from hubline.pipeline.datasets import FormatDataset
from hubline.pipeline.plan import Plan, PlannedQuery, PlannedStage
from hubline.pipeline.progress import StageReport, Tally, View
from hubline.pipeline.spark_errors import summarize_failure, summarize_spark_error
from hubline.pipeline.stage_frame import Reading, build_frame
from hubline.pipeline.stop_gate import Gate
from hubline.pipeline.writers import Report, writer
from hubline.pipeline.written_file import WrittenFile
from hubline.retry import RetryPolicy
from hubline.secrets import redact
from hubline.spark._jvm.errors import JAVA_GONE, SPARK_ERRORS
from hubline.spark._jvm.query import progress_newest_first, require_streamable
from hubline.spark.folders import folder_of
from hubline.spark.sessions.remote import is_remote, is_server_gone
from hubline.text import counted

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("hubline.pipeline")

POLL_SECONDS: Final = 0.2
"""How often queries are looked after: a stop is noticed at once, and looking costs a call to Java."""
READY_SECONDS_MAX: Final = 60.0
"""How long the next stage waits for one that starts. Spark gives up a planning process that takes ten seconds to come
up, and several that start at once on a few cores would take longer."""
BACKOFF: Final = RetryPolicy(initial_backoff_seconds=1.0, max_backoff_seconds=30.0)


class State(enum.StrEnum):
    """What a stage does."""

    WAITING = "waiting"
    RUNNING = "running"
    RESTARTING = "restarting"
    FAILED = "failed"
    STOPPED = "stopped"
    DONE = "done"


@dataclass(frozen=True, slots=True)
class RunContext:
    """What all queries of a run have in common."""

    plan: Plan
    is_once: bool
    spark: SparkSession
    view: View
    rng: random.Random


class StageRun:
    """A query of a stage. `failures` counts those in a row: a batch that gets further begins again at 0."""

    def __init__(self, planned: PlannedQuery, gate: Gate, context: RunContext) -> None:
        self.planned = planned
        self.stage = planned.stage
        self.gate = gate
        self.query: StreamingQuery | None = None
        self.state = State.WAITING
        self.failures = 0
        self.error = ""
        self._context = context
        self._frame: DataFrame | None = None
        self._tally = Tally()
        self._written = WrittenFile(gate.folder / "written")
        self._restarts = 0
        self._restart_at = 0.0
        self._started_at = 0.0
        self._rest: _Rest | None = None

    @property
    def name(self) -> str:
        return self.planned.label

    @property
    def is_over(self) -> bool:
        return self.state in (State.DONE, State.FAILED, State.STOPPED)

    @property
    def is_active(self) -> bool:
        return self.query is not None and self.query.isActive

    @property
    def is_available_now(self) -> bool:
        """Whether Spark ends its query: the run does not see when nothing is left."""
        return self._context.is_once and not self.gate.is_in_sight

    def is_due(self, now: float) -> bool:
        """Whether its query is to be started now, for the first time or again."""
        return self.state in (State.WAITING, State.RESTARTING) and now >= self._restart_at

    def is_starting(self, now: float) -> bool:
        """Whether its query was started, and plans nothing yet."""
        is_new = now - self._started_at < READY_SECONDS_MAX
        return self.state is State.RUNNING and not self.gate.is_ready and is_new

    @property
    def is_at_rest(self) -> bool:
        """Whether no batch is in progress: the source said so, the query ended, or its trigger is far away."""
        if self.query is None or not self.query.isActive or self.gate.is_idle:
            return True
        return not self.query.status["isTriggerActive"] and self.stage.options.trigger_interval > 1000 * POLL_SECONDS

    def report(self, now: float) -> StageReport:
        tally = self._tally
        return StageReport(
            self.stage.name,
            self.state.value,
            query="" if self.planned.share.is_alone else str(self.planned.share),
            events=tally.events,
            events_per_second=tally.rate(now) if self.state is State.RUNNING else 0.0,
            lag_events=tally.lag_events,
            batch_seconds=tally.batch_seconds,
            batches=tally.batches,
            rows=tally.written.rows,
            dead_letters=tally.written.dead_letters,
            duplicates=tally.written.duplicates,
            lost_events=tally.lost_events,
            restarts=self._restarts,
            error=self.error,
        )

    # Starting

    def build(self, reading: Reading) -> None:
        """Analyses its query. Raises PipelineInvalid with all that is wrong with it."""
        self.note("checking its columns")
        problem = None
        try:
            self._frame = build_frame(self._context.spark, self.planned, reading)
            self._require_streamable(self._frame)
        except AnalysisException as error:
            problem = self._problem(error)
        if problem is not None:
            raise PipelineInvalid([problem])

    def start(self, *, is_alone: bool) -> None:
        """Starts its query, for the first time or again. What Spark refuses is a failure.

        Raises PipelineInvalid where Spark finds the query itself wrong and `is_alone`: no other was started yet.
        """
        is_first = self.state is State.WAITING
        self._restarts += not is_first
        problem = None
        try:
            self._start(is_first=is_first)
        except AnalysisException as error:
            if is_alone:
                problem = self._problem(error)
            else:
                self._fail(error, is_final=True)  # it would fail the same way again
        except SPARK_ERRORS as error:
            if is_remote(self._context.spark) and is_server_gone(error):
                raise  # no stage can be started again
            self._fail(error)
        if problem is not None:
            raise PipelineInvalid([problem])

    def _require_streamable(self, frame: DataFrame) -> None:
        """What Spark itself asks of a query when it starts: by then, other stages would have begun.

        A server of Spark Connect says it no sooner."""
        spark = self._context.spark
        if not is_remote(spark) and spark.conf.get("spark.sql.streaming.unsupportedOperationCheck") == "true":
            require_streamable(spark, frame, self.stage.options.output_mode)

    def _start(self, *, is_first: bool) -> None:
        stage, spark = self.stage, self._context.spark
        if stage.is_new_each_start or (is_first and stage.is_new_each_run):
            folder_of(spark, self.planned.folder).remove()
        assert self._frame is not None  # noqa: S101 - all were built before the first is started
        self._written = WrittenFile(self._written.path)
        report: Report = self._tally.add_written
        if is_remote(spark):  # where a process of the server's calls what writes
            report = self._written
        else:
            spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.planned.id)
        writing = writer(stage, self._frame, self.planned.folder, report).queryName(self._query_name)
        if self.is_available_now:
            writing = writing.trigger(availableNow=True)
        else:
            # Not by availableNow: of that, Spark 4.0 and 4.1 tell a Python source nothing, and run one batch.
            interval = 0 if self._context.is_once else stage.options.trigger_interval
            writing = writing.trigger(processingTime=f"{interval} milliseconds")
        self.gate.open()
        self._rest = None
        self._started_at = time.monotonic()
        self.query = writing.start()
        self.state = State.RUNNING
        self.note("started")

    @property
    def _query_name(self) -> str:
        sink = self.stage.sink
        if isinstance(sink, FormatDataset) and sink.format == "memory":
            return sink.name  # Spark makes a table of this name
        return f"{self._context.plan.name}.{self.planned.id}"

    # Watching

    def poll(self) -> None:
        """Notices that its query has ended, or has nothing left to do."""
        for text in self.gate.take_notes():
            self.note(text)
        if self.state is not State.RUNNING or self.query is None:
            return
        if self.query.isActive:
            if self._context.is_once and self.gate.is_in_sight:
                if self.gate.is_idle:
                    self._finish(self.query)
                else:
                    self._rest = None  # it was at rest, and a partition came from another instance
            return
        self.take_progress()
        if (error := self.query.exception()) is None:
            self.state = State.DONE if self._context.is_once else State.STOPPED
            self.note(self.state)
        else:
            self._fail(error)

    def _finish(self, query: StreamingQuery) -> None:
        """Ends its query, which has read all that there was at its start, as soon as Spark has nothing left to do."""
        if self._rest is None:
            self._rest = _Rest(query)
            self._rest.start()
        self._rest.join(POLL_SECONDS)
        if self._rest.is_reached:
            self._end_query(query, is_cut=False)
            self.state = State.DONE
            self.note(self.state)

    def take_progress(self) -> None:
        """Adds up what its query reports."""
        if self.query is None:
            return
        for written in self._written.take():
            self._tally.add_written(written)
        if self._tally.add(progress_newest_first(self.query), time.monotonic()):
            self.failures, self.error = 0, ""
        for loss in self._tally.take_unreported_losses():
            self.note(f"data loss: {loss}")

    def _fail(self, error: Exception, *, is_final: bool = False) -> None:
        self.failures += 1
        self.error = summarize_failure(error)
        log.debug("stage_failed stage=%s %s", self.name, redact(str(error)))
        self._tally.lag_events = None  # it grows from now on, and nobody looks
        # Of the source's error, Spark leaves the text alone.
        if OF_ANOTHER_HUB in self.error:  # it stays so, however often the stage is started
            self.error += f". {_start_over(self.stage)}"
            is_final = True
        if is_final or self.failures > self._context.plan.run.max_restarts:
            self.state = State.FAILED
            self.note(f"failed for good, after {counted(self._restarts, 'restart')}: {self.error}")
            return
        delay = BACKOFF.delay(self.failures, self._context.rng)
        self.state, self._restart_at = State.RESTARTING, time.monotonic() + delay
        self.note(f"failed, starts again in {delay:.1f} s: {self.error}")

    # Stopping

    def stop(self, *, is_cut: bool) -> None:
        """Stops its query, which is at rest, or whose batch is cut short."""
        assert self.query is not None  # noqa: S101 - only those that have one are stopped
        self._end_query(self.query, is_cut=is_cut)
        self.state = State.STOPPED
        self.note(f"stopped{': its batch was cut short, and the next run repeats it' if is_cut else ''}")

    def _end_query(self, query: StreamingQuery, *, is_cut: bool) -> None:
        self.take_progress()
        if not is_cut and query.isActive:  # one that failed meanwhile has not done its batch
            self.gate.mark_done()
        try:
            query.stop()
        except SPARK_ERRORS as error:
            log.warning("stop_failed stage=%s %s", self.name, summarize_spark_error(error))

    def note(self, text: str) -> None:
        """Shows a line about it to the people who watch the run."""
        self._context.view.note(f"{self.name}: {text}")

    def _problem(self, error: AnalysisException) -> Problem:
        where = self.stage.where
        message = f"stage {self.name}: {summarize_spark_error(error)}"
        return Problem(where.file, where.line, message, "correct the stage's function or options")


class _Rest(threading.Thread):
    """Waits until a query has nothing left to do: after the last event, Spark may run batches for state."""

    def __init__(self, query: StreamingQuery) -> None:
        super().__init__(daemon=True)
        self.is_reached = False
        self._query = query

    def run(self) -> None:
        with suppress(*SPARK_ERRORS, *JAVA_GONE):  # one that fails ends, and that is seen
            self._query.processAllAvailable()
            self.is_reached = True


def _start_over(stage: PlannedStage) -> str:
    """How to let a stage forget a hub that was deleted."""
    forget = f"remove {stage.folder}"
    if stage.store is not None and stage.options.checkpoint != "never":
        hub, group, store = stage.sources[0], stage.options.consumer_group, parse_store(stage.store)
        forget += f", and its checkpoints: hubline checkpoints reset {hub} --group '{group}' --store {store}"
    return f"To let the stage read this hub from its start, {forget}"
