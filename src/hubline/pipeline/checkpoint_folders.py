"""Spark's own checkpoints of a stage, when the number of its queries changes: then each query has other partitions.

A batch that Spark has written down for the former ones would be run again beside the query that has them now. So all of
the stage's checkpoints in Spark are removed, and its queries continue where the store says.

Dying in between, the next start removes them again: the number is written last.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession

from hubline.errors import Problem
from hubline.pipeline.plan import PlannedStage
from hubline.pipeline.spark_errors import summarize_spark_error
from hubline.spark._jvm.errors import SPARK_ERRORS
from hubline.spark.folders import folder_of

NUMBER: Final = "_queries"
"""The file with the number, in the stage's folder. There is none for one query."""


def fit_to_queries(spark: SparkSession, stage: PlannedStage) -> Problem | None:
    """Removes the stage's folder if it is of another number of queries. What is wrong where it cannot be used."""
    number = str(stage.options.queries)
    try:
        folder = folder_of(spark, stage.folder)
        if number != (folder.text(NUMBER) or "1"):
            folder.remove()
            if number != "1":
                folder.create(NUMBER, number)
        return None
    except (OSError, *SPARK_ERRORS) as error:
        what = (
            f"stage {stage.name}: its checkpoint folder {stage.folder} cannot be used: {summarize_spark_error(error)}"
        )
    return Problem(stage.where.file, stage.where.line, what, "name another folder: --set run.spark_checkpoints=PATH")
