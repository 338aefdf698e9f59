"""Runs a checked pipeline: one Spark session, a query or several for each stage, restarts, and a clean end.

    1. prepare   the checkpoint folder is this run's alone; hubs that are to be created are (preparation)
    2. session   Spark starts, or the one that was given is used
    3. build     every stage's query is analysed; what is wrong is reported, and nothing has started yet (stage_frame)
    4. run       queries side by side; one that fails is started again after a pause, the others continue (stage_run)
    5. end       gates close, batches in progress commit, partitions are released, queries stop (shutdown)

A first SIGINT or SIGTERM leads to 5. A second one does not wait for batches: the next run repeats them.
"""

from __future__ import annotations

import logging
import random
import signal
import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from hubline.errors import ConfigError, PipelineError, PipelineInvalid, Problem, StageFailed
from hubline.pipeline.checkpoint_folders import fit_to_queries
from hubline.pipeline.checks import CheckedPlan
from hubline.pipeline.config import validate_master
from hubline.pipeline.handler_frame import pickle_by_value
from hubline.pipeline.output_folders import claim
from hubline.pipeline.plan import Plan, PlannedStage
from hubline.pipeline.preparation import create_what_is_missing, gate_of, locked, owner_id_of
from hubline.pipeline.progress import View
from hubline.pipeline.shutdown import drain, signals_to
from hubline.pipeline.spark_errors import summarize_spark_error
from hubline.pipeline.stage_frame import Reading
from hubline.pipeline.stage_run import POLL_SECONDS, RunContext, StageRun, State
from hubline.pipeline.stage_source import StageSource
from hubline.pipeline.stop_gate import FarGate
from hubline.pipeline.views import GuardedView, LogView
from hubline.spark._jvm.errors import JAVA_GONE, SPARK_ERRORS
from hubline.spark._jvm.session import make_active, mute_loggers
from hubline.spark.compatibility import MICRO_BATCHES
from hubline.spark.folders import shares_files
from hubline.spark.sessions.remote import is_remote, is_server_gone, remote_session, validate_remote
from hubline.spark.sessions.session import session
from hubline.text import counted, sentences

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHOW_SECONDS: Final = 1.0

JAVA_ENDED: Final = (
    "Spark's Java process ended, and the run with it. Look for the reason in the lines above and in the system's log "
    "(often it lacks memory), then start the run again."
)
SERVER_ENDED: Final = (
    "the Spark Connect server ended, and the run with it; nothing is lost. Look for the reason in the server's log, "
    "start the server, then start the run again: it continues from its checkpoints."
)
CHECK_SERVER: Final = "start the server with start-connect-server.sh, or correct its address"

STOPPED: Final = "stopped SparkContext"
"""What Spark says when it gave up waiting for its master, a minute after it was started."""

RAISED_TWICE: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger", "py4j.clientserver")
"""PySpark logs what it raises as well, with all of the plan or with a traceback."""

LOG_LEVEL: Final = "spark.log.level"

FAILURE_LOGGERS: Final = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    MICRO_BATCHES,
)
"""They log what failed in a task: at each of its attempts, and of its query once more, hundreds of lines in all. The
run reports it in one line. People who set Spark's log level themselves get all of it."""

SETTINGS: Final[Mapping[str, str]] = {
    # Stages take turns at the cores: none waits for the whole batch of another.
    "spark.scheduler.mode": "FAIR",
    # The run has a view of its own.
    "spark.ui.showConsoleProgress": "false",
    # Spark's warnings are for the one who sets it up, and that is this program.
    LOG_LEVEL: "ERROR",
}
"""What a run's session gets beside what every one of hubline's has; the table [spark] wins."""


@dataclass(frozen=True, slots=True)
class Request:
    """How a checked plan is to run."""

    master: str | None = None
    once: bool = False
    remote: str | None = None
    """The address of a Spark Connect server, in place of a Spark of the run's own."""
    keep_spark_log: bool = False
    """Whether Spark, too, logs failed tasks: hundreds of lines for each, which belong in a file."""

    def __post_init__(self) -> None:
        if self.master is not None:
            validate_master(self.master)
        if self.remote is not None:
            validate_remote(self.remote)
            if self.master is not None:
                raise ConfigError("master and remote exclude each other: the server has a master. Leave one out.")


def run(checked: CheckedPlan, request: Request, *, spark: SparkSession | None = None, view: View | None = None) -> bool:
    """Runs until a signal, or with `once` until all is done; whether it came to that end by itself.

    Raises PipelineInvalid before anything runs, StageFailed where a stage failed too often.
    """
    view = view or LogView()
    plan = checked.plan
    with ExitStack() as stack:
        stack.enter_context(locked(plan))
        create_what_is_missing(plan, view)
        is_own = spark is None
        if spark is None:
            spark = _session(plan, request, view)
        running = PipelineRun(checked, request, spark, view)
        # Until Spark has stopped: a call to Java that a signal interrupts leaves nothing that could be stopped well.
        stack.enter_context(running.stopped_by_signals())
        if is_own:
            stack.callback(_stop_session, spark)
        stack.callback(running.close)
        try:
            running.build()
            return running.run()
        except JAVA_GONE:
            if running.output_closed:
                raise
            gone = JAVA_ENDED
        except SPARK_ERRORS as error:
            if not is_remote(spark) or not is_server_gone(error):
                raise
            gone = SERVER_ENDED
        # Nothing can be stopped in order any more. Leases expire, or the next run takes its partitions back.
        raise PipelineError(gone)


def _session(plan: Plan, request: Request, view: View) -> SparkSession:
    if request.remote is not None:
        view.note("connecting to Spark ...")
        try:
            return remote_session(request.remote, plan.name, plan.run.spark)
        except SPARK_ERRORS as error:
            reason = summarize_spark_error(error)
        raise PipelineError(sentences(f"Spark Connect: no session at {_host(request.remote)}: {reason}", CHECK_SERVER))
    view.note("starting Spark ...")
    settings = {**SETTINGS, **plan.run.spark}
    try:
        spark = session(plan.name, master=request.master or plan.run.master, **settings)
        if not request.keep_spark_log and LOG_LEVEL not in plan.run.spark:
            mute_loggers(spark, FAILURE_LOGGERS)
        return spark
    except (*SPARK_ERRORS, *JAVA_GONE) as error:
        reason = summarize_spark_error(error)
    if STOPPED in reason:
        reason = "its master does not answer"
    fix = "check the master, and the settings in [spark]"
    raise PipelineError(sentences(f"Spark did not start: {reason}", fix))


def _host(remote: str) -> str:
    """A server's address without its parameters, of which one is a token."""
    return remote.partition(";")[0].rstrip("/")


def _stop_session(spark: SparkSession) -> None:
    gone = SPARK_ERRORS if is_remote(spark) else ()
    with suppress(*JAVA_GONE, *gone), warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        spark.stop()


class PipelineRun:
    """The queries of a run. Everything happens in the caller's thread; signals only set events."""

    def __init__(self, checked: CheckedPlan, request: Request, spark: SparkSession, view: View) -> None:
        plan = self._plan = checked.plan
        self._tables = checked.tables
        self._is_once = request.once
        self._spark = spark
        self._stopping = threading.Event()
        self._is_forced = False
        self._view = GuardedView(view, self._stopping)
        rng = random.Random()  # noqa: S311 - spreads restarts, guards nothing
        context = RunContext(plan, request.once, spark, self._view, rng)
        queries = [query for stage in plan.stages for query in stage.queries]
        gates = [gate_of(plan, query) for query in queries]
        if is_remote(spark) and not shares_files(spark, gates[0].folder):
            gates = [FarGate(gate.folder) for gate in gates]
        self._queries = [StageRun(query, gate, context) for query, gate in zip(queries, gates, strict=True)]
        self._shown_at = 0.0

    def build(self) -> None:
        """Analyses all stages. Raises PipelineInvalid with the problems of all of them."""
        self._prepare_spark()
        for name in RAISED_TWICE:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        problems: list[Problem] = []
        owner_id = owner_id_of(self._plan)
        for each in self._queries:
            if self._stopping.is_set():
                return
            try:
                each.build(Reading(each.gate, owner_id, self._is_once, each.is_available_now, self._tables, each.note))
            except PipelineInvalid as error:
                problems += [found for found in error.problems if found not in problems]
        problems = problems or [found for stage in self._plan.stages if (found := self._folder_problem(stage))]
        if problems:
            raise PipelineInvalid(problems)

    def _folder_problem(self, stage: PlannedStage) -> Problem | None:
        return claim(self._spark, stage) or fit_to_queries(self._spark, stage)

    def run(self) -> bool:
        groups = self._plan.levels if self._is_once else [tuple(stage.name for stage in self._plan.stages)]
        try:
            for names in groups:
                self._run_together([each for each in self._queries if each.stage.name in names])
                if self._stopping.is_set():
                    break
        finally:
            self._end()
            self._show(is_last=True)
        if self._view.closed_by is not None:
            raise self._view.closed_by
        failed = [each for each in self._queries if each.state is State.FAILED]
        if failed:
            lines = [
                sentences(
                    f"stage {each.name} failed {counted(each.failures, 'time')}: {each.error}",
                    "fix the cause, then start the run again: it continues from its checkpoints",
                )
                for each in failed
            ]
            raise StageFailed("\n".join(lines), stage=failed[0].stage.name)
        return not self._stopping.is_set()

    @property
    def output_closed(self) -> bool:
        """Whether the reader of what the run reports went away."""
        return self._view.is_closed

    def close(self) -> None:
        for each in self._queries:
            each.gate.remove()

    def stopped_by_signals(self) -> AbstractContextManager[None]:
        """SIGINT and SIGTERM end the run cleanly; a second one does not wait for batches."""
        return signals_to(self._on_signal, signal.SIGINT, signal.SIGTERM)

    def _on_signal(self, *_: object) -> None:
        self._is_forced = self._stopping.is_set()
        self._stopping.set()

    def _prepare_spark(self) -> None:
        if is_remote(self._spark):
            self._spark.dataSource.register(StageSource)
            # What lies beside the pipeline's file is not there: it goes with the functions that use it. What is added
            # to the session does not reach its streams.
            pickle_by_value(self._plan.file.resolve().parent)
            return
        # By the thread's session Spark finds sources: one that was given need not be the thread's yet.
        make_active(self._spark)
        self._spark.dataSource.register(StageSource)
        # What lies beside the pipeline's file can be imported in tasks on this machine, as it can be here.
        self._spark.sparkContext.environment["PYTHONPATH"] = str(self._plan.file.resolve().parent)

    def _run_together(self, group: Sequence[StageRun]) -> None:
        while not self._stopping.is_set() and not all(each.is_over for each in group):
            if not self._is_once and any(each.state is State.FAILED for each in group):
                return  # nobody runs half a pipeline without knowing it: the others end cleanly
            for each in group:
                self._start_if_due(each)
                each.poll()
            self._show()
            self._stopping.wait(POLL_SECONDS)

    def _start_if_due(self, each: StageRun) -> None:
        now = time.monotonic()
        if each.is_due(now) and not any(other.is_starting(now) for other in self._queries):
            each.start(is_alone=all(other.query is None for other in self._queries))

    def _show(self, *, is_last: bool = False) -> None:
        now = time.monotonic()
        if now - self._shown_at < SHOW_SECONDS and not is_last:
            return
        self._shown_at = now
        for each in self._queries:
            if each.state is State.RUNNING:
                each.take_progress()
        self._view.show([each.report(now) for each in self._queries])

    def _end(self) -> None:
        if names := ", ".join(each.name for each in self._queries if each.is_active):
            self._view.note(f"stopping {names}: batches in progress commit first; a second signal does not wait")
        drain(self._queries, is_forced=lambda: self._is_forced)
