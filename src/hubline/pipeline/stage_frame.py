"""What a stage's query is made of: the events, what the stage's function makes of them, and whether its sink takes it.

All of it is analysis: nothing is read yet but static tables.
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users have it
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from hubline.adapters import open_hub, open_store
from hubline.addresses.store_address import parse_store
from hubline.errors import ConfigError, HublineError, PipelineInvalid, Problem, SinkError
from hubline.model.keys import GroupKey
from hubline.pipeline.datasets import Dataset, FormatDataset, HubDataset, TableDataset
from hubline.pipeline.definition import Stage, StageKind
from hubline.pipeline.event_columns import EVENT_ID, REPLAYED, UNUSED, published, stored
from hubline.pipeline.handlers import TRACED as TRACED_BY
from hubline.pipeline.handlers import BatchHandler, EventHandler
from hubline.pipeline.loading import MODULE_PREFIX
from hubline.pipeline.planning import PlannedStage
from hubline.pipeline.spark_errors import summarize_spark_error
from hubline.pipeline.stage_source import GATE_OPTION, StageSource
from hubline.pipeline.stop_gate import Gate
from hubline.pipeline.writers import TRACED, options_of, table_sink
from hubline.sinks.sql_sink.sink import SqlSink as Database
from hubline.sinks.sql_sink.table_schema import Column
from hubline.spark._jvm.errors import SPARK_ERRORS
from hubline.spark._jvm.plan import attribute_of, makes_several_rows, moving_step
from hubline.spark._jvm.session import has_format
from hubline.spark.functions import event_id
from hubline.spark.json_parsing import ERROR_COLUMN
from hubline.spark.schema import SOURCE_SCHEMA
from hubline.spark.sink.row_layout import RowLayout

STATIC_ROWS_MAX: Final = 1_000_000
"""A table to join with goes through the driver's memory; a larger one is better read by a format of Spark's."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How a stage is read in this run, and the columns of the tables that exist, by dataset."""

    gate: Gate
    owner_id: str | None
    is_once: bool
    tables: Mapping[str, Sequence[Column]]


def build_frame(spark: SparkSession, stage: PlannedStage, reading: Reading) -> DataFrame:
    """What the stage writes. Raises PipelineInvalid with what is wrong with its function or its columns."""
    events = _all_events(spark, stage, reading)
    frame = _transformed(spark, stage, events)
    if isinstance(stage.sink, FormatDataset) and not has_format(spark, stage.sink.format):
        # Spark itself would find out at the start of the query.
        fix = "correct its name, or add its package to [spark]: spark.jars.packages"
        where = stage.sink.where
        raise PipelineInvalid([Problem(where.file, where.line, f"Spark has no format {stage.sink.format}", fix)])
    columns = [column.name for column in reading.tables.get(stage.sink.name, ())]
    problems = _problems(stage, frame, columns, given_ids={attribute_of(each, EVENT_ID) for each in events})
    if problems:
        raise PipelineInvalid(problems)
    return _as_taken(stage, frame, columns)


# Reading -----------------------------------------------------------------------------------------------------------


def _all_events(spark: SparkSession, stage: PlannedStage, reading: Reading) -> list[DataFrame]:
    problem = None
    try:
        return [_events(spark, stage, source, reading) for source in stage.sources]
    except (HublineError, *SPARK_ERRORS) as error:
        problem = Problem(stage.where.file, stage.where.line, f"stage {stage.name}: {summarize_spark_error(error)}")
    raise PipelineInvalid([problem])


def _events(spark: SparkSession, stage: PlannedStage, source: HubDataset, reading: Reading) -> DataFrame:
    options = {
        "hub": source.option,
        "consumerGroup": stage.options.consumer_group,
        "startingPosition": stage.options.starting_position,
        "maxEventsPerTrigger": str(stage.options.max_batch_size),
        "onDataLoss": stage.options.on_data_loss,
        GATE_OPTION: str(reading.gate.folder),
    }
    if stage.options.lookback is not None:
        options["lookback"] = stage.options.lookback
    match stage.options.checkpoint:
        case "every_batch":
            options |= _sharing(stage, reading)
        case "manual":
            options["startingPositions"] = json.dumps(_set_manually(stage, source))
        case "never":
            pass
    events = spark.readStream.format(StageSource.name()).options(**options).load()
    return events.withColumn(EVENT_ID, event_id(source.option))


def _sharing(stage: PlannedStage, reading: Reading) -> dict[str, str]:
    load_balancing = stage.options.load_balancing
    if reading.is_once and load_balancing == "balanced":
        load_balancing = "greedy"  # the same share, at once: a run that ends must not wait for a cycle a partition
    owner = {"ownerId": f"{reading.owner_id}.{stage.name}"} if reading.owner_id else {}
    return {"store": stage.store or "", "loadBalancing": load_balancing, **owner}


def _set_manually(stage: PlannedStage, source: HubDataset) -> dict[str, str]:
    """Where each partition goes on, by the store; those without a checkpoint at the start."""
    store, hub = open_store(parse_store(stage.store or "")), open_hub(source.address)

    async def checkpoints() -> dict[str, str]:
        try:
            found = await store.list_checkpoints(GroupKey(hub.namespace, hub.name, stage.options.consumer_group))
        finally:
            await store.close()
            await hub.close()
        return {
            each.key.partition: "earliest" if each.last_sequence is None else f"sequence:{each.last_sequence}"
            for each in found
        }

    return {**asyncio.run(checkpoints()), "*": stage.options.starting_position}


# The function ------------------------------------------------------------------------------------------------------


def _transformed(spark: SparkSession, stage: PlannedStage, events: Sequence[DataFrame]) -> DataFrame:
    tables = _static_tables(spark, stage)
    problem = None
    try:
        if stage.stage.kind is StageKind.FRAME:
            frame = stage.stage.function(*events, **tables)
        else:
            frame = _handled(stage, events[0])
    except (HublineError, *SPARK_ERRORS) as error:
        problem = _raised(stage.stage, error, summarize_spark_error(error))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the function raises is reported with its line
        problem = _raised(stage.stage, error, f"{type(error).__name__} ({summarize_spark_error(error)})")
    else:
        if isinstance(frame, DataFrame) and frame.isStreaming:
            return frame
        what = f"stage {stage.name}: its function gives {_kind(frame)}"
        problem = Problem(stage.where.file, stage.where.line, what, "return the DataFrame that is made of the events")
    raise PipelineInvalid([problem])


def _kind(given: object) -> str:
    if isinstance(given, DataFrame):
        return "a DataFrame that is not a stream"
    return "nothing" if given is None else f"{type(given).__name__}"


def _raised(stage: Stage, error: BaseException, text: str) -> Problem:
    """Points at the line of the function, or of what it calls in the same file."""
    file = getattr(getattr(stage.function, "__code__", None), "co_filename", stage.where.file)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    line = (frames[-1].lineno if frames else None) or stage.where.line
    return Problem(file if frames else stage.where.file, line, f"stage {stage.name}: {text}", "correct the function")


def _handled(planned: PlannedStage, events: DataFrame) -> DataFrame:
    stage = planned.stage
    own = _columns(stage.schema or "")
    _require_binary_body(own)
    _require_spelt(own, events.columns)
    _require_own(planned, own.names)
    output = _output(own, events.schema, has_error=stage.kind is StageKind.EVENTS)
    own_arrow, output_arrow = (to_arrow_schema(schema, timezone="UTC") for schema in (own, output))
    kind = EventHandler if stage.kind is StageKind.EVENTS else BatchHandler
    _pickle_by_value(stage.function)
    return events.mapInArrow(kind(stage.name, stage.function, own_arrow, output_arrow), output)


def _columns(schema: str) -> StructType:
    try:
        own = StructType.fromDDL(schema)
    except PySparkException:
        own = None
    if isinstance(own, StructType):
        return own
    raise ConfigError(f"schema={schema!r} does not name columns: write 'id long, celsius double'")


def _require_binary_body(own: StructType) -> None:
    if any(field.name == "body" and not isinstance(field.dataType, BinaryType) for field in own):
        raise ConfigError("the body of an event is bytes: write 'body binary' in schema, and give text.encode()")


def _require_own(planned: PlannedStage, names: Sequence[str]) -> None:
    """By these columns of its event a row is known, and how far its partition is: what a person makes is neither."""
    taken = {"partition", "sequenceNumber", "offset"}
    if planned.stage.kind is StageKind.BATCHES and set(TRACED_BY) <= set(names):
        taken = {"offset"}  # rows that are not one for each event have to say of which they are
    if isinstance(planned.sink, TableDataset) and planned.drop_duplicates != "off":
        taken.add("properties")
    if wrong := [name for name in names if name in taken]:
        raise ConfigError(f"schema names {wrong[0]!r}, by which a row's event is known: give the column another name")


def _require_spelt(own: StructType, names: Sequence[str]) -> None:
    """Columns that differ in case alone are one to Spark, and it would not know which is meant."""
    spelt = {name.lower(): name for name in [*names, ERROR_COLUMN]}
    for name in own.names:
        if spelt.setdefault(name.lower(), name) != name:
            other = spelt[name.lower()]
            raise ConfigError(f"schema names {name!r}, beside {other!r}: spell it so, or give it another name")


def _output(own: StructType, events: StructType, *, has_error: bool) -> StructType:
    """The function's columns, those of the events that it does not give itself, and why an event failed.

    A function over events can raise of each; one over tables gives an error itself, or there is none.
    """
    names = set(own.names)
    kept = [field for field in events if field.name not in names and field.name not in UNUSED]
    error = [StructField(ERROR_COLUMN, StringType())] if has_error and ERROR_COLUMN not in names else []
    return StructType([*own, *kept, *error])


def _pickle_by_value(function: Callable[..., Any]) -> None:
    """Tasks cannot import the pipeline's file: what they need of it goes with them."""
    from pyspark import cloudpickle

    module = sys.modules.get(getattr(function, "__module__", ""))
    if module is not None and module.__name__.startswith(MODULE_PREFIX):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _static_tables(spark: SparkSession, stage: PlannedStage) -> dict[str, DataFrame]:
    """By the names of the function's parameters. Raises PipelineInvalid that points at the dataset."""
    tables = {}
    for name, dataset in stage.tables.items():
        problem = None
        try:
            tables[name] = _static(spark, dataset)
        except Exception as error:  # noqa: BLE001 - whatever a database or a format says of it
            what = (
                f"stage {stage.name}: dataset {dataset.name}, {dataset}, cannot be read: {summarize_spark_error(error)}"
            )
            problem = Problem(dataset.where.file, dataset.where.line, what)
        if problem is not None:
            raise PipelineInvalid([problem])
    return tables


def _static(spark: SparkSession, dataset: Dataset) -> DataFrame:
    """A dataset as a table that does not change while the stage runs."""
    match dataset:
        case HubDataset():
            return spark.read.format("eventhubs").option("hub", dataset.option).load()
        case TableDataset():
            return _static_table(spark, dataset)
        case FormatDataset():
            return spark.read.format(dataset.format).options(**options_of(dataset, spark)).load(dataset.path)


def _static_table(spark: SparkSession, dataset: TableDataset) -> DataFrame:
    database = Database(dataset.text, table=dataset.table)
    rows = database.read_table(max_rows=STATIC_ROWS_MAX + 1)
    database.close()
    if len(rows) > STATIC_ROWS_MAX:
        raise ConfigError(
            f"it has more than {STATIC_ROWS_MAX:,} rows, too many to go through the driver: export it, and write "
            f"[datasets.{dataset.name}] with a format of Spark's"
        )
    return spark.createDataFrame(rows)


# What the sink takes ----------------------------------------------------------------------------------------------


def _problems(stage: PlannedStage, frame: DataFrame, columns: Sequence[str], *, given_ids: set[str]) -> list[Problem]:
    wrong = []
    if stage.options.lookback is not None and REPLAYED not in frame.columns:
        wrong.append((
            f"it drops the column {REPLAYED}, which tells what was published before",
            f"keep it; of rows that are aggregated, it is F.bool_and('{REPLAYED}').alias('{REPLAYED}')",
        ))  # fmt: skip
    if ERROR_COLUMN in frame.columns and stage.dead_letters is None and not isinstance(stage.sink, TableDataset):
        wrong.append((
            f"it has rows with an {ERROR_COLUMN}, and nowhere to keep dead letters",
            "name a hub for them, dead_letters='DATASET', or drop the column",
        ))  # fmt: skip
    if stage.options.drop_duplicates in ("ordered", "any_order") and (missing := set(TRACED) - set(frame.columns)):
        wrong.append((
            f"it drops the column {min(missing)}, by which duplicates are known",
            "keep it, or leave drop_duplicates out",
        ))  # fmt: skip
    match stage.sink:
        case HubDataset():
            wrong += _hub_problems(stage, frame, given_ids)
        case TableDataset() as dataset:
            wrong += _table_problems(stage, dataset, frame, columns)
        case FormatDataset():
            pass
    where = stage.where
    return [Problem(where.file, where.line, f"stage {stage.name}: {what}", fix) for what, fix in wrong]


def _hub_problems(stage: PlannedStage, frame: DataFrame, given_ids: set[str]) -> list[tuple[str, str]]:
    wrong = []
    if stage.options.event_ids and EVENT_ID not in frame.columns:
        wrong.append((
            f"it drops the column {EVENT_ID}, by which duplicates are known",
            "keep it; rows that are made of many events have none: say event_ids=False, and they go without",
        ))  # fmt: skip
    elif stage.options.event_ids and makes_several_rows(frame) and attribute_of(frame, EVENT_ID) in given_ids:
        wrong.append((
            f"it makes several rows of an event (explode), all with one {EVENT_ID}: they would pass for duplicates",
            f"number them: .withColumn('{EVENT_ID}', hubline.pipeline.output_id(F.col('pos'))), after F.posexplode",
        ))  # fmt: skip
    elif stage.is_read_in_order and (moving := moving_step(frame)):
        wrong.append((
            f"it moves rows between tasks ({moving}): their ids come out of order, and a stage that reads them counts "
            "on order (drop_duplicates='ordered')",
            "say drop_duplicates='any_order' there",
        ))  # fmt: skip
    try:
        RowLayout(published(stage, frame).schema)
    except ConfigError as error:
        wrong.append((str(error), ""))
    return wrong


def _table_problems(
    stage: PlannedStage, dataset: TableDataset, frame: DataFrame, of_table: Sequence[str]
) -> list[tuple[str, str]]:
    rows = stored(frame, of_table)
    if not set(rows.columns) - (set(SOURCE_SCHEMA.names) - set(of_table)) - {ERROR_COLUMN}:
        fix = "add columns of its own; those of events are written where the table has columns of the same names"
        return [("it gives no column for the table", fix)]
    spelt = {name.lower(): name for name in frame.columns if name in (EVENT_ID, *SOURCE_SCHEMA.names)}
    empty = [(name, spelt[name.lower()]) for name in of_table if name not in frame.columns and name.lower() in spelt]
    wrong = [
        (
            f"the table has a column {name}, and events have {own}: it would stay empty",
            f'quote its name when you make the table, "{own}", or rename the column of the events',
        )
        for name, own in empty
    ]
    try:
        sink = table_sink(stage, dataset, rows.columns, "batch")
        sink.check(rows.schema)
        sink.check_query(rows)
    except (ConfigError, SinkError) as error:
        wrong.append((" ".join(str(error).split()), ""))
    return wrong


def _as_taken(stage: PlannedStage, frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """The rows without those that were published before, and without columns that the sink does not take."""
    if stage.options.lookback is not None:
        frame = frame.where(~F.coalesce(F.col(REPLAYED), F.lit(False)))
    match stage.sink:
        case HubDataset() if stage.dead_letters is None:
            return published(stage, frame)
        case TableDataset():
            return stored(frame, columns)
        case _:
            return frame.drop(REPLAYED) if stage.options.lookback is not None else frame
