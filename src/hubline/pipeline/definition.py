"""A pipeline as its author writes it: stages, and what is said of each. Nothing is opened or started here.

    pipeline = hubline.Pipeline("telemetry")

    @pipeline.stage(source="raw", sink="clean", consumer_group="ingest")
    def ingest(events):
        return events.where("body is not null")

Stages name datasets (hubs, tables, files), and a TOML file says what those are: so the same pipeline runs on a laptop
and in production. A decorator returns the function as it is, so that it can be tested by itself. What is wrong with a
stage is reported when the whole pipeline is checked, together with all other problems.
"""

from __future__ import annotations

import enum
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

from hubline.addresses import option_checks
from hubline.addresses.names import validate_hub_name
from hubline.addresses.option_checks import check_value, checked
from hubline.addresses.option_kinds import Named
from hubline.errors import ConfigError
from hubline.pipeline.stage_options import FrameStageOptions, StageOptions, check_names, option_problems
from hubline.secrets import shown_value
from hubline.text import sentences

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Unpack

    from pyspark.sql import SparkSession

Function = TypeVar("Function", bound=Callable[..., Any])


class StageKind(enum.StrEnum):
    """The decorator of a stage: what its function takes and returns."""

    FRAME = "stage"
    """It takes a DataFrame and returns one: called once, when the stage starts."""
    BATCHES = "batch_stage"
    """It takes an Arrow table of the events that a task has at hand, and returns a table of rows: called in tasks."""
    EVENTS = "event_stage"
    """It takes one event, and returns one row as a dictionary, or None: called in tasks."""


@dataclass(frozen=True, slots=True)
class Where:
    """A line of a file, for people."""

    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a pipeline, as it was written. Its options are not checked yet.

    Attributes:
        name: The name of the stage.
        kind: What its function takes: see `StageKind`.
        function: The function.
        where: The file and line of the definition.
        sources: The datasets that it reads.
        sink: The dataset that it writes.
        options: The options, as they were given.
        schema: The columns of the rows that the function returns, where it works on batches. Default: None.
    """

    name: str
    kind: StageKind
    function: Callable[..., Any]
    where: Where
    sources: tuple[str, ...]
    sink: str
    options: Mapping[str, object]
    schema: str | None = None

    @property
    def tables(self) -> tuple[str, ...]:
        """The datasets that the function takes as static tables: its parameters after the streams."""
        if self.kind is not StageKind.FRAME:
            return ()
        try:
            parameters = list(inspect.signature(self.function).parameters.values())[len(self.sources) :]
        except (TypeError, ValueError):
            return ()  # not a function: the checks report it
        return tuple(each.name for each in parameters if each.default is each.empty and each.kind in _NAMED)


_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Pipeline:
    """Define stages that run side by side on Spark, each from a hub to a hub, a table or any format that Spark writes.

    Stages name datasets. A TOML file beside the pipeline's file, with the same name, says which hub, table or folder
    each dataset is. Run the pipeline with `hubline run FILE`, `python FILE` or spark-submit.

    Args:
        name: The name of the pipeline. It becomes part of folders and of the names of Spark's queries.
        config: The TOML file. Default: the one beside the pipeline's file, with the same name.

    Raises:
        ConfigError: The name is not valid.

    Example:
        pipeline = hubline.Pipeline("telemetry")

        @pipeline.stage(source="raw", sink="readings", consumer_group="store")
        def store(events):
            return hubline.spark.parse_json(events, "device string, celsius double")

        if __name__ == "__main__":
            pipeline.run()
    """

    @checked
    def __init__(self, name: str, *, config: Path | str | None = None) -> None:
        self.name = _checked_name(name)
        self.where = _caller()
        self.config = Path(config) if config is not None else None
        self._stages: list[Stage] = []

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r}, {', '.join(stage.name for stage in self._stages) or 'no stages'})"

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages, in the order in which they were written."""
        return tuple(self._stages)

    @property
    def file(self) -> Path:
        """The file that the pipeline was written in."""
        return Path(self.where.file)

    def stage(
        self, *, source: str | Sequence[str], sink: str, **options: Unpack[FrameStageOptions]
    ) -> Callable[[Function], Function]:
        """Add a stage whose function takes the events as a streaming DataFrame, and returns what is to be written.

        Use it wherever Spark's own functions suffice: it is the fastest kind of stage. The function is called once
        for each query, when the stage starts. Its further parameters are datasets: each is read as a static DataFrame,
        to join with.

        Args:
            source: The dataset to read, a hub. Of several, each is a DataFrame of its own.
            sink: The dataset to write: a hub, a table, or a format of Spark's.
            **options: The options of the stage; every decorator takes these, but for `output_mode`.

                consumer_group: Default: `"$Default"`. Two stages that read one hub need two groups.
                load_balancing: How instances share the partitions: `hubline.Balanced()`, `hubline.Greedy()`,
                    `hubline.Fixed(n)` or `"all"`. Default: `"greedy"`.
                queries: How many queries of Spark's share the instance's partitions, each at its own pace: a commit
                    that is blocked holds up the partitions of its own query alone. For stages whose rows each come
                    of one event. Default: 1.
                starting_position: Where partitions without a checkpoint start, such as `"latest"` or `"time:-24h"`.
                    Default: `"earliest"`.
                max_batch_size: The most events in a batch of a query, over all its partitions. Default: 1,000,000.
                trigger_interval: The least time from the start of one batch to the next, such as `"5s"`.
                    Default: `"200ms"`.
                checkpoint: When progress is stored: `"every_batch"`; `"manual"`, only by `hubline checkpoints set`;
                    or `"never"`, so that every start begins at `starting_position`. Default: `"every_batch"`.
                lookback: How much to replay at each start, such as `"24h"`: its rows have `replayed` true, and are
                    not published again. Default: None.
                on_data_loss: What to do where events are gone before the stage read them: `"fail"`, or continue at
                    the `"earliest"` or `"latest"` event. Default: `"fail"`.
                dead_letters: The dataset, a hub, for rows with an `_error`. A table keeps them in its own database.
                    Default: None.
                drop_duplicates: How a table knows events that an earlier stage published twice: `"any_order"`, by all
                    ids of seven days; `"ordered"`, by the highest of each origin; `"off"`; or `"auto"`, which is
                    `"any_order"` where a stage of this pipeline writes what this one reads. Default: `"auto"`.
                event_ids: Whether what is published to a hub must carry an event ID. Aggregates have none: pass
                    False. Default: True.
                name: The name of the stage. Default: the function's.
                output_mode: Spark's output mode: `"append"`, `"update"` or `"complete"`. Default: `"append"`.

        Returns:
            A decorator that returns the function as it is.

        Raises:
            ConfigError: An option is unknown, or its value is not valid. While `hubline` imports the file, it collects
                values that are not valid instead, and reports them together with all other problems.

        Example:
            @pipeline.stage(source="raw", sink="clean", consumer_group="ingest", load_balancing=hubline.Balanced())
            def ingest(events):
                return events.where("body is not null")
        """
        return self._decorator(StageKind.FRAME, source, sink, options)

    def batch_stage(
        self, *, source: str, sink: str, schema: str, **options: Unpack[StageOptions]
    ) -> Callable[[Function], Function]:
        """Add a stage whose function takes events of one partition as a `pyarrow.Table`, and returns a table.

        Use it for code over columns that is not Spark's. The function is called in tasks, for a few thousand events at
        a time. Where it returns as many rows as it was given, in their order, each keeps the identity of its event;
        else the table must have the columns `partition`, `sequenceNumber` and `eventId` itself. Rows with an `_error`
        are dead letters. An exception of the function fails the stage.

        Args:
            source: The dataset to read, a hub.
            sink: The dataset to write: a hub, a table, or a format of Spark's.
            schema: The columns that the function returns, such as `"id long, celsius double"`.
            **options: As those of `stage`, without `output_mode`.

        Returns:
            A decorator that returns the function as it is.

        Raises:
            ConfigError: An option is unknown, or its value is not valid.

        Example:
            @pipeline.batch_stage(source="raw", sink="sizes", schema="bytes long")
            def sizes(events):
                return pa.table({"bytes": pc.binary_length(events["body"])})
        """
        return self._decorator(StageKind.BATCHES, source, sink, options, schema)

    def event_stage(
        self, *, source: str, sink: str, schema: str, **options: Unpack[StageOptions]
    ) -> Callable[[Function], Function]:
        """Add a stage whose function takes one `hubline.Event`, and returns its row as a dictionary.

        Use it where each event needs Python of its own; it is the slowest kind of stage. The function is called in
        tasks. None leaves the event out. An event whose function raises, or whose row does not fit or has an `_error`,
        becomes a dead letter, and no other does.

        Args:
            source: The dataset to read, a hub.
            sink: The dataset to write: a hub, a table, or a format of Spark's.
            schema: The columns that the function returns, such as `"id long, celsius double"`.
            **options: As those of `stage`, without `output_mode`.

        Returns:
            A decorator that returns the function as it is.

        Raises:
            ConfigError: An option is unknown, or its value is not valid.

        Example:
            @pipeline.event_stage(source="raw", sink="readings", schema="id long, celsius double")
            def reading(event):
                return json.loads(event.body)
        """
        return self._decorator(StageKind.EVENTS, source, sink, options, schema)

    @checked
    def run(
        self,
        *,
        stages: Sequence[str] = (),
        master: str | None = None,
        once: bool = False,
        overrides: Mapping[str, str] | None = None,
        config: Path | str | None = None,
        spark: SparkSession | None = None,
    ) -> None:
        """Check everything, and run until SIGINT or SIGTERM; with `once`, until all that is there is processed.

        It does what `hubline run` does, without its view: for `python FILE` and spark-submit.

        Args:
            stages: The names of the stages to run. Default: all.
            master: Where Spark runs, such as `"local[4]"`. Default: that of the TOML file, or this machine.
            once: Process what is there, stage after stage, and return.
            overrides: Values that replace those of the TOML file, as `--set` does:
                `{"datasets.raw.hub": "local:./data/raw"}`.
            config: The TOML file. Default: the pipeline's.
            spark: A session of your own, which keeps running. Default: one is started, and stopped at the end.

        Raises:
            PipelineInvalid: The checks found problems. Nothing was started.
            StageFailed: A stage failed too often.
            ConfigError: The file runs its pipeline while it is imported, or another run uses its folder.
        """
        if _is_loading.get():
            raise ConfigError(
                "the file runs its pipeline when it is imported. Put that under if __name__ == '__main__':, "
                "and hubline run can import it."
            )
        from hubline.pipeline.checks import check_pipeline
        from hubline.pipeline.runner import Request, run

        plan = check_pipeline(self, config=config, overrides=overrides or {}, stages=stages)
        run(plan, Request(master=master, once=once), spark=spark)

    def _decorator(
        self,
        kind: StageKind,
        source: str | Sequence[str],
        sink: str,
        options: Mapping[str, Any],
        schema: str | None = None,
    ) -> Callable[[Function], Function]:
        where = _caller()
        known = FrameStageOptions if kind is StageKind.FRAME else StageOptions
        check_names(kind, options, known.__annotations__)
        sources = (source,) if isinstance(source, str) or not isinstance(source, Sequence) else tuple(source)
        if not sources or not all(_is_text(each) for each in (*sources, sink)):
            wrong = next(each for each in (*(sources or (source,)), sink) if not _is_text(each))
            raise ConfigError(
                "source and sink must be names of datasets. Write for instance source='raw', sink='readings', "
                f"not {shown_value(wrong)}."
            )
        name = options.get("name")
        if name is not None and not _is_text(name):
            raise ConfigError(sentences(f"name: it must be text in quotes, not {shown_value(name)}"))
        if kind is not StageKind.FRAME and not _is_loading.get():
            check_value("schema", Annotated[str, Named("text such as 'id long, celsius double'")], schema)
        if not _is_loading.get():  # else planning reports them, together with all other problems
            for option, problem in option_problems(options):
                raise ConfigError(sentences(f"{option}: {problem}"))

        def add(function: Function) -> Function:
            named = str(name or getattr(function, "__name__", "stage"))
            self._stages.append(Stage(named, kind, function, where, sources, sink, dict(options), schema))
            return function

        return add


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _checked_name(name: str) -> str:
    """It becomes part of folders and of names of queries, as a hub's does."""
    try:
        return validate_hub_name(name)
    except ConfigError as error:
        text = str(error).replace("the hub name", "the pipeline's name")
    raise ConfigError(text)


def _caller() -> Where:
    """The line of the file that called into this module."""
    frame = sys._getframe(1)  # noqa: SLF001 - there is no other way to point at a line of a decorator
    while frame.f_back is not None and frame.f_code.co_filename in (__file__, option_checks.__file__):
        frame = frame.f_back
    return Where(frame.f_code.co_filename, frame.f_lineno)


_is_loading: Final = ContextVar("_is_loading", default=False)


@contextmanager
def loading() -> Iterator[None]:
    """While this thread imports a file for its pipeline alone: running it is refused."""
    token = _is_loading.set(True)
    try:
        yield
    finally:
        _is_loading.reset(token)
