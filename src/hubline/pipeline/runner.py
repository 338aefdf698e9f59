"""Runs a checked pipeline: one Spark session, a query for each stage, restarts, and an end in good order.

    1. prepare   the state folder is this run's alone; hubs that shall be made are made
    2. session   Spark starts, or the one that was given is used
    3. build     every stage's query is analysed; what is wrong is told, and nothing has started yet
    4. run       stages side by side; one that fails is started again after a pause, the others go on
    5. end       gates close, batches in progress commit, partitions are released, queries stop

A first SIGINT or SIGTERM leads to 5; a second one does not wait for batches: what is cut short comes again.
"""

from __future__ import annotations

import asyncio
import enum
import hashlib
import logging
import random
import signal
import socket
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, BinaryIO, Final, TypeVar

from pyspark.errors import AnalysisException

from hubline.addresses.hub_address import LocalHubAddress
from hubline.addresses.store_address import SqliteAddress, parse_store
from hubline.errors import ConfigError, PipelineError, PipelineInvalid, Problem, StageFailed
from hubline.hubs.local import create_hub
from hubline.hubs.position_check import OF_ANOTHER_HUB
from hubline.pipeline.checks import CheckedPlan
from hubline.pipeline.config import validate_master
from hubline.pipeline.datasets import FormatDataset, HubDataset
from hubline.pipeline.output_folders import claim
from hubline.pipeline.planning import Plan, PlannedStage, local_folder
from hubline.pipeline.progress import StageReport, Tally, View
from hubline.pipeline.spark_errors import summarize_spark_error
from hubline.pipeline.stage_frame import Reading, build_frame
from hubline.pipeline.stage_source import Gate, StageSource
from hubline.pipeline.writers import writer
from hubline.retry import RetryPolicy
from hubline.spark._jvm.errors import JAVA_GONE, SPARK_ERRORS
from hubline.spark._jvm.hadoop_files import HadoopFolder
from hubline.spark._jvm.query import progress_newest_first, require_streamable
from hubline.spark._jvm.session import make_active, register
from hubline.spark.sessions.session import session
from hubline.spark.source.data_source import EventHubs
from hubline.spark.source.owned_partitions import STOP_SECONDS_MAX

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("hubline.pipeline")

T = TypeVar("T")

POLL_SECONDS: Final = 0.2
"""How often queries are looked after: a stop is noticed at once, and looking costs a call to Java."""
SHOW_SECONDS: Final = 1.0
DRAIN_SECONDS_MAX: Final = 60.0
"""How long a batch in progress is waited for at the end. Supervisors kill after 30 to 90 seconds."""
READY_SECONDS_MAX: Final = 60.0
"""How long the next stage waits for one that starts. Spark gives up a planning process that takes ten seconds to come
up, and several that start at once on a few cores would take longer."""
BACKOFF: Final = RetryPolicy(initial_backoff_seconds=1.0, max_backoff_seconds=30.0)

STOPPED: Final = "stopped SparkContext"
"""What Spark says when it gave up waiting for its master, a minute after it was started."""

RAISED_TWICE: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""PySpark logs what it raises as well, with all of the plan."""

WARNINGS: Final = (": failed", ": data loss")
"""What a run tells that people want to know of, also where they watch nothing."""

SETTINGS: Final[Mapping[str, str]] = {
    # Stages take turns at the cores: none waits for the whole batch of another.
    "spark.scheduler.mode": "FAIR",
    # The run has a view of its own.
    "spark.ui.showConsoleProgress": "false",
    # What Spark warns of concerns whoever set it up, and that is this program.
    "spark.log.level": "ERROR",
}
"""What a run's session gets beside what every one of hubline's has; the table [spark] wins."""


@dataclass(frozen=True, slots=True)
class Request:
    """How a checked plan is to run."""

    master: str | None = None
    once: bool = False

    def __post_init__(self) -> None:
        if self.master is not None:
            validate_master(self.master)


class State(enum.StrEnum):
    """What a stage does."""

    WAITING = "waiting"
    RUNNING = "running"
    RESTARTING = "restarting"
    FAILED = "failed"
    STOPPED = "stopped"
    DONE = "done"


class LogView:
    """For runs that nobody watches: what happens is logged."""

    def show(self, reports: Sequence[StageReport]) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        # Without any set-up of logging, Python shows warnings.
        log.log(logging.WARNING if any(each in text for each in WARNINGS) else logging.INFO, text)


def run(checked: CheckedPlan, request: Request, *, spark: SparkSession | None = None, view: View | None = None) -> bool:
    """Runs until it is told to stop, or with ``once`` until all is done; whether it came to that end by itself.

    Raises PipelineInvalid before anything runs, StageFailed where a stage failed too often.
    """
    view = view or LogView()
    plan = checked.plan
    with ExitStack() as stack:
        stack.enter_context(locked(plan))
        _prepare(plan, view)
        is_own = spark is None
        if spark is None:
            view.note("starting Spark ...")
            spark = _session(plan, request)
        running = _Run(checked, request, spark, view)
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
        # Nothing can be stopped in order any more. Leases run out, or the next run takes its partitions back.
        raise PipelineError("Spark's Java process ended, and the run with it: find out why, and start it again")


def _session(plan: Plan, request: Request) -> SparkSession:
    settings = {**SETTINGS, **plan.run.spark}
    try:
        return session(plan.name, master=request.master or plan.run.master, **settings)
    except (*SPARK_ERRORS, *JAVA_GONE) as error:
        reason = summarize_spark_error(error)
    if STOPPED in reason:
        reason = "its master does not answer"
    raise PipelineError(f"Spark did not start: {reason}. Check the master, and the settings in [spark]")


def _stop_session(spark: SparkSession) -> None:
    with suppress(*JAVA_GONE), warnings.catch_warnings(action="ignore", category=RuntimeWarning):
        spark.stop()


# Before ------------------------------------------------------------------------------------------------------------


@contextmanager
def locked(plan: Plan) -> Iterator[None]:
    """The state folder, for this run alone: two runs in one folder would write over each other's batches."""
    folder = local_folder(plan.run.spark_checkpoints)
    if folder is None:
        yield
        return
    import fcntl

    with _lock_file(folder) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # The store that is made where none is named lies in the folder: another folder would read all of it again.
            store = " and name a store for both (--set run.store=URL)" if plan.default_store else ""
            raise ConfigError(
                f"another run uses the folder {folder}: stop it, or give this one a folder of its own "
                f"(--set run.spark_checkpoints=PATH){store}; instances share their work through the store"
            ) from None
        yield


def _lock_file(folder: Path) -> BinaryIO:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return (folder / ".lock").open("wb")
    except OSError as error:
        reason = error.strerror or type(error).__name__
    raise ConfigError(
        f"the folder {folder} cannot be written to ({reason}): give this user the right, or name another folder "
        "(--set run.spark_checkpoints=PATH)"
    )


def _prepare(plan: Plan, view: View) -> None:
    """Makes what the plan said it would: folders of databases, and hubs."""
    for stage in plan.stages:
        store = parse_store(stage.store) if stage.store else None
        if isinstance(store, SqliteAddress):
            store.path.parent.mkdir(parents=True, exist_ok=True)
    datasets = [dataset for stage in plan.stages for dataset in (*stage.sources, stage.sink, stage.dead_letters)]
    hubs = {dataset.name: dataset for dataset in datasets if isinstance(dataset, HubDataset)}
    for dataset in [hub for hub in hubs.values() if hub.create_if_missing]:
        address = dataset.address
        if isinstance(address, LocalHubAddress) and not (address.root / address.name).exists():
            asyncio.run(create_hub(address.root, address.name, partitions=dataset.partitions, exist_ok=True))
            view.note(f"created hub {dataset} with {dataset.partitions} partitions")


def _owner_id(plan: Plan) -> str | None:
    """The same after a crash, so that partitions are taken back at once. By the lock, nobody else has it."""
    folder = local_folder(plan.run.spark_checkpoints)
    if folder is None:
        return None
    mark = hashlib.sha256(str(folder).encode()).hexdigest()[:8]
    return f"{plan.name}@{socket.gethostname()[:40]}-{mark}"


def _gate(plan: Plan, stage: PlannedStage) -> Gate:
    """Within the state folder, where that is on this machine: nobody tidies up there while the run goes on."""
    folder = local_folder(plan.run.spark_checkpoints)
    return Gate(folder / f".gate-{stage.name}" if folder else Path(tempfile.mkdtemp(prefix="hubline-gate-")))


# The run -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _StageRun:
    """One stage of a run, and its query."""

    stage: PlannedStage
    gate: Gate
    frame: DataFrame | None = None
    query: StreamingQuery | None = None
    state: State = State.WAITING
    tally: Tally = field(default_factory=Tally)
    failures: int = 0
    """In a row: a batch that is done and gets further starts the count anew."""
    restarts: int = 0
    restart_at: float = 0.0
    started_at: float = 0.0
    error: str = ""

    @property
    def is_over(self) -> bool:
        return self.state in (State.DONE, State.FAILED, State.STOPPED)

    def report(self, now: float) -> StageReport:
        tally = self.tally
        return StageReport(
            self.stage.name,
            self.state.value,
            events=tally.events,
            events_per_second=tally.rate(now) if self.state is State.RUNNING else 0.0,
            lag_events=tally.lag_events,
            batch_seconds=tally.batch_seconds,
            batches=tally.batches,
            rows=tally.written.rows,
            dead_letters=tally.written.dead_letters,
            duplicates=tally.written.duplicates,
            lost_events=tally.lost_events,
            restarts=self.restarts,
            error=self.error,
        )


class GuardedView:
    """A view, until nobody reads it any more: then the run ends, as by a signal, and tells no more."""

    def __init__(self, view: View, stopping: threading.Event) -> None:
        self._view = view
        self._stopping = stopping
        self.gone: BrokenPipeError | None = None

    def show(self, reports: Sequence[StageReport]) -> None:
        self._tell(self._view.show, reports)

    def note(self, text: str) -> None:
        self._tell(self._view.note, text)

    def _tell(self, tell: Callable[[T], None], what: T) -> None:
        if self.gone is None:
            try:
                tell(what)
            except BrokenPipeError as error:
                self.gone = error
                self._stopping.set()


@contextmanager
def signals_to(handler: Callable[[int, FrameType | None], object], *numbers: signal.Signals) -> Iterator[None]:
    """Within it the handler gets these signals. Whoever runs something in a thread has signals of their own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, other in before.items():
            signal.signal(number, other)


class _Run:
    """The stages of a run. Everything happens in the caller's thread; signals only set events."""

    def __init__(self, checked: CheckedPlan, request: Request, spark: SparkSession, view: View) -> None:
        plan = self._plan = checked.plan
        self._tables = checked.tables
        self._request = request
        self._spark = spark
        self._stages = {stage.name: _StageRun(stage, _gate(plan, stage)) for stage in plan.stages}
        self._stopping = threading.Event()
        self._view = GuardedView(view, self._stopping)
        self._is_forced = False
        self._shown_at = 0.0
        self._rng = random.Random()  # noqa: S311 - spreads restarts, guards nothing

    def build(self) -> None:
        """Analyses all stages. Raises PipelineInvalid with the problems of all of them."""
        self._prepare_spark()
        for name in RAISED_TWICE:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        problems: list[Problem] = []
        owner_id = _owner_id(self._plan)
        for each in self._stages.values():
            if self._stopping.is_set():
                return
            self._view.note(f"{each.stage.name}: checking its columns")
            try:
                reading = Reading(each.gate, owner_id, self._request.once, self._tables)
                each.frame = build_frame(self._spark, each.stage, reading)
                self._require_streamable(each.stage, each.frame)
            except PipelineInvalid as error:
                problems += error.problems
            except AnalysisException as error:
                problems.append(_problem(each.stage, error))
        problems = problems or [found for each in self._stages.values() if (found := claim(self._spark, each.stage))]
        if problems:
            raise PipelineInvalid(problems)

    def run(self) -> bool:
        groups = self._plan.levels if self._request.once else [tuple(self._stages)]
        try:
            for names in groups:
                self._run_together([self._stages[name] for name in names])
                if self._stopping.is_set():
                    break
        finally:
            self._end()
            self._show(is_last=True)
        if self._view.gone is not None:
            raise self._view.gone
        failed = [each for each in self._stages.values() if each.state is State.FAILED]
        if failed:
            raise StageFailed(
                "\n".join(
                    f"stage {each.stage.name} failed {_counted(each.failures, 'time')}: {each.error}" for each in failed
                ),
                stage=failed[0].stage.name,
            )
        return not self._stopping.is_set()

    @property
    def output_closed(self) -> bool:
        """Whether whoever read what the run tells went away."""
        return self._view.gone is not None

    def close(self) -> None:
        for each in self._stages.values():
            each.gate.remove()

    def stopped_by_signals(self) -> AbstractContextManager[None]:
        """SIGINT and SIGTERM end the run in good order; a second one does not wait for batches."""
        return signals_to(self._on_signal, signal.SIGINT, signal.SIGTERM)

    def _on_signal(self, *_: object) -> None:
        self._is_forced = self._stopping.is_set()
        self._stopping.set()

    # Starting

    def _prepare_spark(self) -> None:
        # By the thread's session Spark finds sources: one that was given need not be the thread's yet.
        make_active(self._spark)
        register(self._spark, EventHubs, StageSource)  # a session of somebody's own may know neither
        # What lies beside the pipeline's file can be imported in tasks on this machine, as it can be here.
        self._spark.sparkContext.environment["PYTHONPATH"] = str(self._plan.file.resolve().parent)

    def _require_streamable(self, stage: PlannedStage, frame: DataFrame) -> None:
        """What Spark itself asks of a query when it starts: by then, other stages would have begun."""
        if self._spark.conf.get("spark.sql.streaming.unsupportedOperationCheck") == "true":
            require_streamable(self._spark, frame, stage.options.output_mode)

    def _start(self, each: _StageRun, *, is_first: bool) -> None:
        stage = each.stage
        if stage.is_new_each_start or (is_first and stage.is_new_each_run):
            HadoopFolder(self._spark, stage.folder).remove()
        assert each.frame is not None  # noqa: S101 - all were built before the first is started
        self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", stage.name)
        writing = writer(stage, each.frame, each.tally.add_written).queryName(self._query_name(stage))
        writing = writing.option("checkpointLocation", stage.folder)
        if self._request.once:
            writing = writing.trigger(availableNow=True)
        else:
            writing = writing.trigger(processingTime=f"{stage.options.trigger_interval} milliseconds")
        each.gate.open()
        each.started_at = time.monotonic()
        each.query = writing.start()
        each.state = State.RUNNING
        self._view.note(f"{stage.name}: started")

    def _query_name(self, stage: PlannedStage) -> str:
        if isinstance(stage.sink, FormatDataset) and stage.sink.format == "memory":
            return stage.sink.name  # Spark makes a table of this name
        return f"{self._plan.name}.{stage.name}"

    # Looking after

    def _run_together(self, group: Sequence[_StageRun]) -> None:
        while not self._stopping.is_set() and not all(each.is_over for each in group):
            if not self._request.once and any(each.state is State.FAILED for each in group):
                return  # nobody runs half a pipeline without knowing it: the others end in good order
            for each in group:
                self._look_after(each)
            self._show()
            self._stopping.wait(POLL_SECONDS)

    def _look_after(self, each: _StageRun) -> None:
        now = time.monotonic()
        if (
            each.state in (State.WAITING, State.RESTARTING)
            and now >= each.restart_at
            and not self._is_one_starting(now)
        ):
            is_first = each.state is State.WAITING
            each.restarts += not is_first
            self._try_to_start(each, is_first=is_first)
        if each.state is not State.RUNNING or each.query is None or each.query.isActive:
            return
        self._take_progress(each)
        if (error := each.query.exception()) is None:
            each.state = State.DONE if self._request.once else State.STOPPED
            self._view.note(f"{each.stage.name}: {each.state}")
        else:
            self._failed(each, error)

    def _is_one_starting(self, now: float) -> bool:
        return any(
            each.state is State.RUNNING and not each.gate.is_ready and now - each.started_at < READY_SECONDS_MAX
            for each in self._stages.values()
        )

    def _try_to_start(self, each: _StageRun, *, is_first: bool) -> None:
        problem = None
        try:
            self._start(each, is_first=is_first)
        except AnalysisException as error:
            # It would fail the same way again: what Spark finds wrong with the query itself.
            if any(other.query is not None for other in self._stages.values()):
                self._failed(each, error, is_final=True)
            else:
                problem = _problem(each.stage, error)
        except SPARK_ERRORS as error:
            self._failed(each, error)
        if problem is not None:
            raise PipelineInvalid([problem])

    def _failed(self, each: _StageRun, error: Exception, *, is_final: bool = False) -> None:
        each.failures += 1
        each.error = summarize_spark_error(error)
        each.tally.lag_events = None  # it grows from now on, and nobody looks
        # Of the source's error, Spark leaves the text alone.
        if OF_ANOTHER_HUB in each.error:  # it stays so, however often the stage is started
            each.error += f". {_start_over(each.stage)}"
            is_final = True
        if is_final or each.failures > self._plan.run.max_restarts:
            each.state = State.FAILED
            restarts = _counted(each.restarts, "restart")
            self._view.note(f"{each.stage.name}: failed for good, after {restarts}: {each.error}")
            return
        delay = BACKOFF.delay(each.failures, self._rng)
        each.state, each.restart_at = State.RESTARTING, time.monotonic() + delay
        self._view.note(f"{each.stage.name}: failed, starts again in {delay:.1f} s: {each.error}")

    def _take_progress(self, each: _StageRun) -> None:
        if each.query is None:
            return
        if each.tally.add(progress_newest_first(each.query), time.monotonic()):
            each.failures, each.error = 0, ""
        for jump in each.tally.take_unreported_losses():
            self._view.note(f"{each.stage.name}: data loss: {jump}")

    def _show(self, *, is_last: bool = False) -> None:
        now = time.monotonic()
        if now - self._shown_at < SHOW_SECONDS and not is_last:
            return
        self._shown_at = now
        for each in self._stages.values():
            if each.state is State.RUNNING:
                self._take_progress(each)
        self._view.show([each.report(now) for each in self._stages.values()])

    # The end

    def _end(self) -> None:
        """Lets batches in progress end, and stops. Whatever is still running after a while is cut short."""
        active = [each for each in self._stages.values() if each.query is not None and each.query.isActive]
        if active:
            names = ", ".join(each.stage.name for each in active)
            self._view.note(f"stopping {names}: batches in progress commit first; a second signal does not wait")
        for each in active:
            each.gate.close()
        deadline = time.monotonic() + DRAIN_SECONDS_MAX
        while active:
            is_late = self._is_forced or time.monotonic() >= deadline
            for each in [each for each in active if is_late or _is_at_rest(each)]:
                active.remove(each)
                self._stop(each, is_cut=not _is_at_rest(each))
            time.sleep(POLL_SECONDS if active else 0)
        deadline = time.monotonic() + STOP_SECONDS_MAX
        gates = [each.gate for each in self._stages.values() if each.query is not None]
        while not (self._is_forced or time.monotonic() >= deadline or all(gate.is_left for gate in gates)):
            time.sleep(POLL_SECONDS)
        for each in self._stages.values():
            each.state = each.state if each.is_over else State.STOPPED

    def _stop(self, each: _StageRun, *, is_cut: bool) -> None:
        assert each.query is not None  # noqa: S101 - only those that have one are stopped
        self._take_progress(each)
        if not is_cut and each.query.isActive:  # one that failed meanwhile has not done its batch
            each.gate.mark_done()
        try:
            each.query.stop()
        except SPARK_ERRORS as error:
            log.warning("stop_failed stage=%s %s", each.stage.name, summarize_spark_error(error))
        each.state = State.STOPPED
        cut = ": its batch was cut short, and comes again" if is_cut else ""
        self._view.note(f"{each.stage.name}: stopped{cut}")


def _problem(stage: PlannedStage, error: AnalysisException) -> Problem:
    """What Spark finds wrong with a stage's query."""
    return Problem(stage.where.file, stage.where.line, f"stage {stage.name}: {summarize_spark_error(error)}")


def _start_over(stage: PlannedStage) -> str:
    """How to let a stage forget a hub that was deleted."""
    forget = f"remove {stage.folder}"
    if stage.store is not None:
        hub, group, store = stage.sources[0], stage.options.consumer_group, parse_store(stage.store)
        forget += f", and its checkpoints: hubline checkpoints reset {hub} --group '{group}' --store {store}"
    return f"To let the stage read this hub from its start, {forget}"


def _is_at_rest(each: _StageRun) -> bool:
    """Whether no batch is in progress: the source said so, the query ended, or it waits for a trigger far away."""
    if each.query is None or not each.query.isActive or each.gate.is_idle:
        return True
    return not each.query.status["isTriggerActive"] and each.stage.options.trigger_interval > 1000 * POLL_SECONDS


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
