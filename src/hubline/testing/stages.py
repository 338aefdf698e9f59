"""``hubline.testing.run_stage``: one stage of a pipeline, run by Spark on a batch of events of a test.

The stage is planned, built and checked as in a run, and Spark runs its query as a stream. Only its ends are others: the
events come from a file in place of a hub, and what the query writes is kept in place of being written.
"""

from __future__ import annotations

import atexit
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from hubline.addresses.option_checks import checked
from hubline.addresses.option_kinds import Named
from hubline.errors import ConfigError, PipelineInvalid, Problem, StageFailed
from hubline.event_ids import origin_of
from hubline.model.dead_letters import DeadLetter
from hubline.model.events import NewEvent
from hubline.model.keys import GroupKey
from hubline.model.positions import Position
from hubline.pipeline.config import read_config
from hubline.pipeline.config_file import read_toml
from hubline.pipeline.datasets import FormatDataset, HubDataset, TableDataset
from hubline.pipeline.definition import Pipeline, Stage
from hubline.pipeline.event_columns import ADDED, EVENT_ID, published
from hubline.pipeline.loading import load
from hubline.pipeline.plan import PlannedStage
from hubline.pipeline.planning import build_plan
from hubline.pipeline.runner import FAILURE_LOGGERS
from hubline.pipeline.spark_errors import summarize_failure, summarize_spark_error
from hubline.pipeline.stage_frame import frame_of_events
from hubline.sinks import SqlSink
from hubline.spark._jvm.errors import SPARK_ERRORS
from hubline.spark._jvm.query import require_streamable
from hubline.spark._jvm.session import is_session_running, make_active, mute_loggers
from hubline.spark.arrow_columns import Layout, plain
from hubline.spark.functions import id_of
from hubline.spark.json_parsing import ERROR_COLUMN
from hubline.spark.schema import LOOKBACK_SCHEMA, SOURCE_SCHEMA
from hubline.spark.session_settings import temporary_settings
from hubline.spark.sessions.session import session
from hubline.spark.sql_sink.batch_rows import chosen, failed_events, have_failed
from hubline.spark.sql_sink.sink import columns_to_write
from hubline.testing.memory_hub import MemoryHub
from hubline.testing.simulation.virtual_loop import require_no_loop, run_virtual

_SESSION: Final[Mapping[str, object]] = {
    "spark.ui.enabled": False,
    "spark.ui.showConsoleProgress": False,
    "spark.log.level": "ERROR",
    # Compiled lightly: what runs for a minute does not earn back more. Options of the user's own stay.
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1",
}
"""Of the session that tests share, where none runs."""

_MASTER: Final = "local[1,1]"
"""A few events are one task's work, and a function that fails is not retried."""

_QUERY: Final[Mapping[str, str]] = {"spark.sql.shuffle.partitions": "1"}


@dataclass(frozen=True, slots=True)
class StageResult:
    """What a stage made of the events of a test.

    Attributes:
        rows: The rows that it would write, in order. Those of a table have the columns that the table would get; those
            of a hub have `body`, `partitionKey`, `properties` and `eventId`, as far as the stage keeps them.
        dead_letters: The events that it would store as dead letters, each with its `error_text`.
    """

    rows: list[dict[str, Any]]
    dead_letters: list[DeadLetter]


@checked
def run_stage(
    stage: Annotated[Callable[..., Any] | Path | str, Named("a stage's function, or the path of a pipeline's file")],
    events: Annotated[
        Sequence[NewEvent] | Mapping[str, Sequence[NewEvent]], Named("a list of events, such as ['{\"id\": 1}']")
    ],
    *,
    name: str | None = None,
    tables: Annotated[
        Mapping[str, Sequence[Mapping[str, Any]]] | None, Named("rows by dataset, such as {'devices': [{'id': 1}]}")
    ] = None,
    config: Path | str | None = None,
) -> StageResult:
    """Run one stage of a pipeline on the events of a test, and return what it would write.

    Spark runs the stage's query as a stream, with one batch that has all events. The columns are checked as
    `hubline run` checks them. No hub, table or store of the pipeline is opened, but for tables that the stage joins
    with, unless you pass their rows. The tests of a process share one Spark session: the one that runs already, or one
    that the first call starts.

    Args:
        stage: The function under the decorator, or the path of the pipeline's file.
        events: The events, as `hubline.new_events` takes them: bodies, or mappings with `body`, `partitionKey` and
            `properties`. For a stage of several sources, a mapping with the events of each.
        name: The name of the stage, where `stage` is a path. Not needed if the pipeline has one stage.
        tables: The rows of the tables that the stage joins with, by the name of the dataset. Others are read as the
            configuration says.
        config: The TOML file. Default: the pipeline's.

    Returns:
        The rows and the dead letters.

    Raises:
        PipelineInvalid: The pipeline, its configuration or the stage's columns are wrong, as in `hubline run`.
        StageFailed: The query failed. The text has the line of your function.
        ConfigError: The stage or an argument is not valid.

    Example:
        from telemetry import store

        def test_store():
            result = hubline.testing.run_stage(store, ['{"device": "d1", "celsius": 21.5}'])
            assert result.rows == [{"device": "d1", "celsius": 21.5}]
    """
    require_no_loop("run_stage")
    pipeline, chosen_stage = _found(stage, name)
    with tempfile.TemporaryDirectory(prefix="hubline-test-") as folder:
        planned = _planned(pipeline, chosen_stage, Path(folder), given=tables or {}, config=config)
        sources = _events_of(planned, events)
        spark = _spark()
        with temporary_settings(spark, _QUERY):
            streams = [
                _stream(spark, planned, source, sources[source.name], Path(folder)) for source in planned.sources
            ]
            try:
                frame = frame_of_events(spark, planned, streams)
                require_streamable(spark, frame, planned.options.output_mode)
            except AnalysisException as error:
                message = f"stage {planned.name}: {summarize_spark_error(error)}"
                problem = Problem(planned.where.file, planned.where.line, message, "correct the function")
            else:
                return _result(planned, _written(planned, frame, Path(folder) / "checkpoints"), spark)
    raise PipelineInvalid([problem])


# The stage ---------------------------------------------------------------------------------------------------------


def _found(given: Callable[..., Any] | Path | str, name: str | None) -> tuple[Pipeline, Stage]:
    if isinstance(given, Path | str):
        pipeline = load(Path(given))
        named = [stage for stage in pipeline.stages if name in (None, stage.name)]
        if len(named) == 1:
            return pipeline, named[0]
        known = ", ".join(stage.name for stage in pipeline.stages) or "none"
        raise ConfigError(
            f"run_stage: name={name!r} does not name one stage of {given}, which has {known}. Give the name of one."
        )
    defined = {id(each): each for each in getattr(given, "__globals__", {}).values() if isinstance(each, Pipeline)}
    for pipeline in defined.values():
        for stage in pipeline.stages:
            if stage.function is given and name in (None, stage.name):
                return pipeline, stage
    shown = getattr(given, "__name__", type(given).__name__)
    raise ConfigError(
        f"run_stage: {shown} is not a stage. Pass the function under @pipeline.stage(...), @pipeline.batch_stage(...) "
        "or @pipeline.event_stage(...), or the path of the pipeline's file."
    )


def _planned(
    pipeline: Pipeline,
    stage: Stage,
    folder: Path,
    *,
    given: Mapping[str, Sequence[Mapping[str, Any]]],
    config: Path | str | None,
) -> PlannedStage:
    """The stage as in a run, but with hubs and tables that are nobody's."""
    if unknown := given.keys() - set(stage.tables):
        raise ConfigError(
            f"run_stage: tables has {min(unknown)!r}, which the stage {stage.name} does not join with. "
            f"Leave it out: the stage's tables are {', '.join(stage.tables) or 'none'}."
        )
    path = Path(config) if config is not None else pipeline.config or pipeline.file.with_suffix(".toml")
    kept = set(stage.tables) - given.keys()
    read, problems = read_config(path, _overrides(path, pipeline, folder, kept), pipeline=pipeline.name)
    plan, found = build_plan(pipeline, read)
    if problems := problems + found:
        raise PipelineInvalid(problems)
    planned = next(each for each in plan.stages if each.name == stage.name)
    return replace(
        planned,
        tables={**planned.tables, **{name: _table(planned, name, rows, folder) for name, rows in given.items()}},
    )


def _overrides(path: Path, pipeline: Pipeline, folder: Path, kept: set[str]) -> dict[str, str]:
    """Settings by which no stage reads or writes what the configuration names: it need not even be there."""
    file, _ = read_toml(path, {})
    datasets, stages = (_tables_in(file.data.get(name)) for name in ("datasets", "stages"))
    used: set[object] = {name for stage in pipeline.stages for name in (*stage.sources, stage.sink, *stage.tables)}
    used |= {each.get("dead_letters") for each in (*(stage.options for stage in pipeline.stages), *stages.values())}
    overrides = {"run.spark_checkpoints": str(folder / "state"), "run.store": f"sqlite:///{folder}/store.db"}
    places: dict[str, str] = {}
    for name, table in datasets.items():
        if name not in used or name in kept:
            continue
        for key in ("hub", "url"):
            if isinstance(address := table.get(key), str):
                # Two names may stand for one hub, and do so still.
                place = places.setdefault(address, f"{folder}/{name}")
                overrides[f"datasets.{name}.{key}"] = f"local:{place}" if key == "hub" else f"sqlite:///{place}.db"
        if isinstance(table.get("url"), str) and isinstance(table.get("table"), str):
            overrides[f"datasets.{name}.create_if_missing"] = "true"
            overrides[f"datasets.{name}.table"] = table["table"].rpartition(".")[2]  # SQLite has no schemas
    return overrides


def _tables_in(data: object) -> dict[str, dict[str, Any]]:
    """The tables in a table of the file. What is something else is reported where the file is read."""
    return {name: each for name, each in data.items() if isinstance(each, dict)} if isinstance(data, dict) else {}


def _table(planned: PlannedStage, name: str, rows: Sequence[Mapping[str, Any]], folder: Path) -> FormatDataset:
    file = folder / f"{name}.parquet"
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), file)
    where = planned.tables[name].where
    return FormatDataset(name, where, where, "parquet", str(file))


# The events --------------------------------------------------------------------------------------------------------


def _events_of(
    planned: PlannedStage, events: Sequence[NewEvent] | Mapping[str, Sequence[NewEvent]]
) -> Mapping[str, Sequence[NewEvent]]:
    names = [source.name for source in planned.sources]
    if not isinstance(events, Mapping):
        events = {names[0]: events} if len(names) == 1 else {}
    if events.keys() != set(names):
        raise ConfigError(
            f"run_stage: the stage {planned.name} reads {', '.join(names)}. Pass events={{"
            f"{', '.join(f'{name!r}: [...]' for name in names)}}}."
        )
    return events


def _stream(
    spark: SparkSession, planned: PlannedStage, source: HubDataset, events: Sequence[NewEvent], folder: Path
) -> DataFrame:
    """The events as a query gets them from a hub: the same columns, in a stream that ends."""
    schema = SOURCE_SCHEMA if planned.options.lookback is None else LOOKBACK_SCHEMA
    hub = MemoryHub(1, name=source.name)
    hub.append_events("0", events)

    async def received() -> pa.RecordBatch:
        receiver = await hub.open_receiver("0", group="", position=Position.earliest())
        return Layout(schema).arranged(await receiver.receive(max_count=max(1, len(events)), wait_seconds=0))

    async def origin() -> str:
        return origin_of(await hub.describe())

    of_source = folder / "events" / source.name
    of_source.mkdir(parents=True)
    pq.write_table(pa.Table.from_batches([run_virtual(received)]), of_source / "events.parquet")
    stream = spark.readStream.schema(schema).parquet(str(of_source))
    return stream.withColumn(EVENT_ID, id_of(run_virtual(origin)))


# The query ---------------------------------------------------------------------------------------------------------


def _spark() -> SparkSession:
    if is_session_running():
        spark = SparkSession.builder.getOrCreate()
    else:
        spark = session("hubline-tests", master=_MASTER, **_SESSION)
        mute_loggers(spark, FAILURE_LOGGERS)
        atexit.register(spark.stop)
    make_active(spark)
    # Functions that Spark calls in processes of its own find there what the test finds.
    spark.sparkContext.environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    return spark


def _written(planned: PlannedStage, frame: DataFrame, checkpoints: Path) -> list[pa.Table]:
    """What the query gives its sink, batch by batch: after that of the events, one for a watermark that has moved."""
    batches: list[pa.Table] = []
    writing = frame.writeStream.outputMode(planned.options.output_mode).trigger(availableNow=True)
    writing = writing.option("checkpointLocation", str(checkpoints))
    failure = ""
    try:
        writing.foreachBatch(lambda batch, _: batches.append(plain(batch.toArrow()))).start().awaitTermination()
    except SPARK_ERRORS as error:
        failure = summarize_failure(error)
    if failure:
        raise StageFailed(
            f"stage {planned.name} failed: {failure}. Correct the function, or the events.", stage=planned.name
        )
    return batches[-1:] if planned.options.output_mode == "complete" else batches


def _result(planned: PlannedStage, batches: Sequence[pa.Table], spark: SparkSession) -> StageResult:
    if not batches:
        return StageResult([], [])
    given = pa.concat_tables(batches)
    failed = have_failed(given)
    source = planned.sources[0]
    group = GroupKey("memory", source.name, planned.options.consumer_group)
    dead_letters = failed_events(group, chosen(given, failed))
    rows = chosen(given, ~failed)
    match planned.sink:
        case TableDataset() as table:
            sink = SqlSink(table.text, table=table.table)
            rows = rows.select(columns_to_write(sink, rows.column_names, ADDED))
            sink.close()
        case HubDataset() if planned.dead_letters is not None:
            rows = published(spark.createDataFrame(rows), has_ids=planned.options.event_ids).toArrow()
        case _ if ERROR_COLUMN in rows.column_names:
            rows = rows.drop_columns([ERROR_COLUMN])
    return StageResult(rows.to_pylist(maps_as_pydicts="strict"), dead_letters)
