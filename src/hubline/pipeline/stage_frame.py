"""What a stage's query is made of: the events, what the stage's function makes of them, and whether its sink takes it.

All of it is analysis: nothing is read yet but static tables.
"""

from __future__ import annotations

import asyncio
import json
import linecache
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users have it

from hubline.adapters import open_hub, open_store
from hubline.addresses.store_address import parse_store
from hubline.coordination.strategies import Fixed, load_balancing_text, parse_load_balancing
from hubline.errors import HublineError, PipelineInvalid, Problem
from hubline.model.keys import GroupKey
from hubline.model.ownership import Checkpoint
from hubline.pipeline.backfill import pinned_ends
from hubline.pipeline.datasets import HubDataset, TableDataset
from hubline.pipeline.definition import Stage, StageKind
from hubline.pipeline.event_columns import EVENT_ID, REPLAYED, published, stored
from hubline.pipeline.handler_frame import handled
from hubline.pipeline.output_checks import output_problems
from hubline.pipeline.plan import PlannedQuery, PlannedStage
from hubline.pipeline.spark_errors import summarize_spark_error
from hubline.pipeline.stage_source import (
    AVAILABLE_NOW_OPTION,
    ENDS_OPTION,
    GATE_OPTION,
    ONCE_OPTION,
    SHARE_OPTION,
    StageSource,
)
from hubline.pipeline.static_tables import static_tables
from hubline.pipeline.stop_gate import Gate
from hubline.secrets import redact
from hubline.sinks.sql_sink.table_schema import Column
from hubline.spark._jvm.errors import SPARK_ERRORS
from hubline.spark.functions import event_id
from hubline.tracebacks import frames_of


@dataclass(frozen=True, slots=True)
class Reading:
    """How a query reads in this run, and the columns of the tables that exist, by dataset."""

    gate: Gate
    owner_id: str | None
    is_once: bool
    is_available_now: bool
    tables: Mapping[str, Sequence[Column]]
    note: Callable[[str], None]
    """Takes a line for the people who watch the run."""


def build_frame(spark: SparkSession, query: PlannedQuery, reading: Reading) -> DataFrame:
    """What the query writes. Raises PipelineInvalid with what is wrong with the stage's function or its columns."""
    stage = query.stage
    columns = [column.name for column in reading.tables.get(stage.sink.name, ())]
    return frame_of_events(spark, stage, _all_events(spark, query, reading), columns)


def frame_of_events(
    spark: SparkSession, stage: PlannedStage, events: Sequence[DataFrame], columns: Sequence[str] = ()
) -> DataFrame:
    """What the stage writes of these events, one stream for each source. `columns` are those that its table has."""
    frame = _transformed(spark, stage, events)
    if problems := output_problems(stage, frame, columns):
        raise PipelineInvalid(problems)
    return _as_taken(stage, frame, columns)


# Reading -----------------------------------------------------------------------------------------------------------


def _all_events(spark: SparkSession, query: PlannedQuery, reading: Reading) -> list[DataFrame]:
    stage = query.stage
    problem = None
    try:
        return [_events(spark, query, source, reading) for source in stage.sources]
    except (HublineError, *SPARK_ERRORS) as error:
        message = f"stage {stage.name}: {summarize_spark_error(error)}"
        fix = "" if isinstance(error, HublineError) else "correct the stage's options"  # ours say what to do
        problem = Problem(stage.where.file, stage.where.line, message, fix)
    raise PipelineInvalid([problem])


def _events(spark: SparkSession, query: PlannedQuery, source: HubDataset, reading: Reading) -> DataFrame:
    stage = query.stage
    options = {
        "hub": source.option,
        "consumerGroup": stage.options.consumer_group,
        "startingPosition": stage.options.starting_position,
        "maxEventsPerTrigger": str(stage.options.max_batch_size),
        "onDataLoss": stage.options.on_data_loss,
        GATE_OPTION: str(reading.gate.folder),
        SHARE_OPTION: str(query.share),
        ONCE_OPTION: str(reading.is_once),
        AVAILABLE_NOW_OPTION: str(reading.is_available_now),
    }
    if stage.options.lookback is not None:
        options["lookback"] = stage.options.lookback
    if stage.ending_position is not None:
        options[ENDS_OPTION] = json.dumps(pinned_ends(stage, source, note=reading.note))
    match stage.options.checkpoint:
        case "every_batch":
            options |= _sharing(query, reading)
        case "manual":
            options["startingPositions"] = json.dumps(_set_manually(stage, source))
        case "never" if stage.options.has_owners:
            options |= {**_sharing(query, reading), "checkpoint": "never"}
        case "never":
            pass
    events = spark.readStream.format(StageSource.name()).options(**options).load()
    return events.withColumn(EVENT_ID, event_id(source.option))


def _sharing(query: PlannedQuery, reading: Reading) -> dict[str, str]:
    stage = query.stage
    load_balancing = stage.options.load_balancing
    if reading.is_once and load_balancing == "balanced":
        load_balancing = "greedy"  # the same share, at once: a run that ends must not wait for a cycle a partition
    elif isinstance(fixed := parse_load_balancing(load_balancing), Fixed):
        load_balancing = load_balancing_text(replace(fixed, count=fixed.count // query.share.count))
    owner = {"ownerId": f"{reading.owner_id}.{stage.name}"} if reading.owner_id else {}
    return {"store": stage.store or "", "loadBalancing": load_balancing, **owner}


def _set_manually(stage: PlannedStage, source: HubDataset) -> dict[str, str]:
    """Where each partition continues, by the store; those without a checkpoint at the start."""
    store, hub = open_store(parse_store(stage.store or "")), open_hub(source.address)

    async def checkpoints() -> dict[str, str]:
        try:
            found = await store.list_checkpoints(GroupKey(hub.namespace, hub.name, stage.options.consumer_group))
        finally:
            await store.close()
            await hub.close()
        return {each.key.partition: start_after(each) for each in found}

    return {**asyncio.run(checkpoints()), "*": stage.options.starting_position}


def start_after(checkpoint: Checkpoint) -> str:
    """Where a stage continues after a checkpoint that somebody set, as the source takes it."""
    if checkpoint == Checkpoint.before_first(checkpoint.key):
        return "earliest"
    return str(checkpoint.resume) if checkpoint.last_sequence is None else f"sequence:{checkpoint.last_sequence}"


# The function ------------------------------------------------------------------------------------------------------


def _transformed(spark: SparkSession, stage: PlannedStage, events: Sequence[DataFrame]) -> DataFrame:
    tables = static_tables(spark, stage)
    problem = None
    try:
        if stage.stage.kind is StageKind.FRAME:
            frame = stage.stage.function(*events, **tables)
        else:
            frame = handled(stage, events[0])
    except (HublineError, *SPARK_ERRORS) as error:
        problem = _raised(stage.stage, error, summarize_spark_error(error))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the function raises is reported with its line
        problem = _raised(stage.stage, error, f"{type(error).__name__} ({summarize_spark_error(error)})")
    else:
        if isinstance(frame, DataFrame) and frame.isStreaming:
            return frame
        what = f"stage {stage.name}: its function returned {_kind(frame)}"
        problem = Problem(stage.where.file, stage.where.line, what, "return the DataFrame that you make of the events")
    raise PipelineInvalid([problem])


def _kind(given: object) -> str:
    if isinstance(given, DataFrame):
        return "a DataFrame that is not a stream"
    return "nothing" if given is None else f"{type(given).__name__}"


def _raised(stage: Stage, error: BaseException, text: str) -> Problem:
    """Points at the line of the function, or of the user's own code that it calls."""
    users = [frame for frame in frames_of(error) if frame.is_users]
    file, line = (users[-1].file, users[-1].line) if users else (stage.where.file, stage.where.line)
    code = redact(linecache.getline(file, line).strip()) if users else ""
    return Problem(file, line, f"stage {stage.name}: {text}", "correct the function", code, error)


# The rows ---------------------------------------------------------------------------------------------------------


def _as_taken(stage: PlannedStage, frame: DataFrame, columns: Sequence[str]) -> DataFrame:
    """The rows without those that were published before, and without columns that the sink does not take."""
    if stage.options.lookback is not None:
        frame = frame.where(~F.coalesce(F.col(REPLAYED), F.lit(False)))
    match stage.sink:
        case HubDataset() if stage.dead_letters is None:
            return published(frame, has_ids=stage.options.event_ids)
        case TableDataset():
            return stored(frame, columns)
        case _:
            return frame.drop(REPLAYED) if stage.options.lookback is not None else frame
