"""Whether a stage's sink takes what its function gives, before the query starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyspark.sql import DataFrame

from hubline.errors import ConfigError, Problem, SinkError, StoreError
from hubline.pipeline.datasets import FormatDataset, HubDataset, TableDataset
from hubline.pipeline.event_columns import EVENT_ID, REPLAYED, published, stored
from hubline.pipeline.plan import PlannedStage
from hubline.pipeline.writers import TRACED, table_sink
from hubline.spark.formats import has_format
from hubline.spark.json_parsing import ERROR_COLUMN
from hubline.spark.query_plan import QueryPlan
from hubline.spark.query_steps import losing_step, state_over_partitions
from hubline.spark.schema import SOURCE_SCHEMA
from hubline.spark.sink.row_layout import RowLayout


def output_problems(stage: PlannedStage, frame: DataFrame, columns: Sequence[str]) -> list[Problem]:
    """What keeps the sink from taking the frame.

    Args:
        stage: The stage.
        frame: What its function gives.
        columns: The columns of the table that it writes; none where there is no table yet.
    """
    sink = stage.sink
    if isinstance(sink, FormatDataset) and not has_format(frame.sparkSession, sink.format):
        # Spark itself would find out at the start of the query.
        fix = "correct its name, or add its package to [spark]: spark.jars.packages"
        return [Problem(sink.where.file, sink.where.line, f"Spark has no format {sink.format}", fix)]
    wrong = []
    if stage.options.lookback is not None and REPLAYED not in frame.columns:
        wrong.append((
            f"it drops the column {REPLAYED}, which says what was published before",
            f"keep it; of rows that are aggregated, it is F.bool_and('{REPLAYED}').alias('{REPLAYED}')",
        ))  # fmt: skip
    if ERROR_COLUMN in frame.columns and stage.dead_letters is None and not isinstance(stage.sink, TableDataset):
        wrong.append((
            f"it has rows with an {ERROR_COLUMN}, but the stage has no place for dead letters",
            "name a hub for them with dead_letters='DATASET', or drop the column",
        ))  # fmt: skip
    if stage.options.drop_duplicates in ("ordered", "any_order") and (missing := set(TRACED) - set(frame.columns)):
        wrong.append((
            f"it drops the column {min(missing)}, by which duplicates are known",
            "keep it, or leave drop_duplicates out",
        ))  # fmt: skip
    plan = QueryPlan.of(frame)
    if stage.options.queries > 1 and (moving := plan.moving_step):
        wrong.append((
            f"queries={stage.options.queries} share its partitions, and its function brings rows of several together "
            f"({moving}): each query would only have those of its own",
            "leave queries out, or let each row come of one event; a static table is joined as F.broadcast(table)",
        ))  # fmt: skip
    wrong += _failure_problems(plan)
    if stage.is_shared_by_default and (mixing := state_over_partitions(plan.root)):
        wrong.append((
            f"its function keeps state of events of several partitions ({mixing}), and other instances may own some of "
            "them: each would only have the events of its own",
            "write load_balancing='all', with which one instance reads all partitions and others stand by, or "
            "load_balancing='greedy' if all events of a group are in one partition",
        ))  # fmt: skip
    if isinstance(sink, HubDataset):
        wrong += _hub_problems(stage, frame, plan)
    elif isinstance(sink, TableDataset):
        wrong += _table_problems(stage, sink, frame, columns)
    where = stage.where
    return [Problem(where.file, where.line, f"stage {stage.name}: {what}", fix) for what, fix in wrong]


def _failure_problems(plan: QueryPlan) -> Iterator[tuple[str, str]]:
    if losing := losing_step(plan.root):
        yield (
            f"it drops rows with an {ERROR_COLUMN} ({losing}): their events become neither rows nor dead letters",
            f'keep them, as where("{ERROR_COLUMN} IS NOT NULL OR ...") does, or write '
            f"where('{ERROR_COLUMN} IS NULL') before that to drop them by choice",
        )


def _hub_problems(stage: PlannedStage, frame: DataFrame, plan: QueryPlan) -> list[tuple[str, str]]:
    wrong = []
    if stage.options.event_ids and EVENT_ID not in frame.columns:
        wrong.append((
            f"it drops the column {EVENT_ID}, by which duplicates are known",
            "keep it, or write event_ids=False if each row is made of many events",
        ))  # fmt: skip
    elif stage.options.event_ids and plan.makes_several_rows and plan.is_first_computed(EVENT_ID):
        wrong.append((
            f"it makes several rows of an event (explode), all with one {EVENT_ID}, so they would be "
            "dropped as duplicates",
            f"number them: .withColumn('{EVENT_ID}', hubline.pipeline.output_id(F.col('pos'))), after F.posexplode",
        ))  # fmt: skip
    elif stage.is_read_in_order and (moving := plan.moving_step):
        wrong.append((
            f"it moves rows between tasks ({moving}), so their IDs come out of order, and a stage that "
            "reads them counts on order (drop_duplicates='ordered')",
            "write drop_duplicates='any_order' there",
        ))  # fmt: skip
    try:
        RowLayout(published(frame, has_ids=stage.options.event_ids).schema)
    except ConfigError as error:
        wrong.append((str(error), ""))
    return wrong


def _table_problems(
    stage: PlannedStage, dataset: TableDataset, frame: DataFrame, of_table: Sequence[str]
) -> list[tuple[str, str]]:
    rows = stored(frame, of_table)
    if not set(rows.columns) - (set(SOURCE_SCHEMA.names) - set(of_table)) - {ERROR_COLUMN}:
        fix = "add columns to the rows; columns of events are written only if the table has columns of the same names"
        return [("it gives no column for the table", fix)]
    spelt = {name.lower(): name for name in frame.columns if name in (EVENT_ID, *SOURCE_SCHEMA.names)}
    empty = [(name, spelt[name.lower()]) for name in of_table if name not in frame.columns and name.lower() in spelt]
    wrong = [
        (
            f"the table has a column {name}, but events have {own}, so it would stay empty",
            f'quote its name when you create the table, "{own}", or rename the column of the events',
        )
        for name, own in empty
    ]
    try:
        sink = table_sink(stage, dataset, rows.columns, "batch")
        sink.check(rows.schema)
        sink.check_query(rows)
    except (ConfigError, SinkError) as error:
        wrong.append((" ".join(str(error).split()), ""))
    except StoreError as error:  # it was there when the pipeline was checked
        wrong.append((f"the database of dataset {dataset.name} cannot be used: {error}", ""))
    return wrong
