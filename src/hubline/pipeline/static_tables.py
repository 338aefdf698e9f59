"""Datasets that a stage joins with: read when it starts, as tables that do not change while it runs."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, SparkSession

from hubline.errors import ConfigError, PipelineInvalid, Problem
from hubline.pipeline.datasets import Dataset, FormatDataset, HubDataset, TableDataset
from hubline.pipeline.plan import PlannedStage
from hubline.pipeline.spark_errors import summarize_spark_error
from hubline.pipeline.writers import options_of
from hubline.sinks.sql_sink.sink import SqlSink

STATIC_ROWS_MAX: Final = 1_000_000
"""A table to join with goes through the driver's memory; a larger one is better read by a format of Spark's."""


def static_tables(spark: SparkSession, stage: PlannedStage) -> dict[str, DataFrame]:
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
            problem = Problem(dataset.where.file, dataset.where.line, what, "check what the dataset names")
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
    sink = SqlSink(dataset.text, table=dataset.table)
    rows = sink.database.read_table(max_rows=STATIC_ROWS_MAX + 1)
    sink.close()
    if len(rows) > STATIC_ROWS_MAX:
        raise ConfigError(
            f"it has more than {STATIC_ROWS_MAX:,} rows, too many to go through the driver. Export it, and write "
            f"[datasets.{dataset.name}] with a format of Spark's."
        )
    return spark.createDataFrame(rows)
