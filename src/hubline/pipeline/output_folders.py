"""Folders of files that Spark writes as a stream: each belongs to one stage, with one checkpoint folder.

Spark's files remember which batches they have by number alone. A query that counts its batches from 0 (another stage's,
another instance's, one whose checkpoint folder was lost) finds its numbers taken: Spark leaves its rows out in silence,
while checkpoints move on. So a folder is marked with whose it is before anything is written to it, and others are
refused.
"""

from __future__ import annotations

import uuid
from typing import Final

from pyspark.sql import SparkSession

from hubline.errors import Problem
from hubline.pipeline.datasets import FormatDataset
from hubline.pipeline.plan import PlannedStage
from hubline.pipeline.spark_errors import summarize_spark_error
from hubline.spark._jvm.errors import SPARK_ERRORS
from hubline.spark.folders import Folder, folder_of

MARK: Final = "_hubline"
"""The file with the mark, in the folder of files and in the stage's checkpoint folder. Readers skip it."""

BATCHES: Final = "_spark_metadata"
"""Where Spark's files remember their batches."""


def claim(spark: SparkSession, stage: PlannedStage) -> Problem | None:
    """Makes the stage's folder of files its own, if nobody has it. What is wrong where somebody does."""
    dataset = stage.sink
    if not isinstance(dataset, FormatDataset) or dataset.counted_folder is None:
        return None
    try:
        files, state = folder_of(spark, dataset.counted_folder), folder_of(spark, stage.folder)
        if _is_free(files) if stage.dead_letters is not None else _is_own(files, state):
            return None
        what = (
            f"the folder {dataset.counted_folder} has batches of another stage, another instance, or of a "
            "checkpoint folder that was lost: Spark would take this stage's for them, and leave their rows out"
        )
    except (OSError, *SPARK_ERRORS) as error:
        what = f"the folder {dataset.counted_folder} cannot be used: {summarize_spark_error(error)}"
    fix = f"name another path for the dataset {dataset.name}"
    return Problem(dataset.where.file, dataset.where.line, f"stage {stage.name}: {what}", fix)


def _is_free(files: Folder) -> bool:
    """Rows beside dead letters are appended, uncounted: who reads a folder with counted batches sees those alone."""
    return not files.has(BATCHES)


def _is_own(files: Folder, state: Folder) -> bool:
    is_new = not state.has(MARK) and not state.has("offsets")
    if is_new and (files.has(BATCHES) or files.has(MARK)):
        return False
    # Dying between the two leaves a mark of its own with the stage, which takes the folder at its next start.
    state.create(MARK, uuid.uuid4().hex)
    own = state.text(MARK) or ""
    files.create(MARK, own)
    return files.text(MARK) == own
