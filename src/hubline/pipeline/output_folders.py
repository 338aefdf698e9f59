"""Folders of files that Spark writes as a stream: each belongs to one stage, with one checkpoint folder.

Spark's files remember which batches they have by number alone. A query that counts its batches from 0 (another stage's,
another instance's, one whose checkpoint folder was lost) finds its numbers taken: Spark leaves its rows out in silence,
while checkpoints move on. So a folder is marked with whose it is before anything is written to it, and others are
refused.
"""

from __future__ import annotations

import uuid
from typing import Any, Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from hubline.errors import Problem
from hubline.pipeline.datasets import FormatDataset
from hubline.pipeline.planning import PlannedStage
from hubline.pipeline.spark_errors import summarize_spark_error

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
        files, state = _Folder(spark, dataset.counted_folder), _Folder(spark, stage.folder)
        if _is_free(files) if stage.dead_letters is not None else _is_own(files, state):
            return None
        what = (
            f"the folder {dataset.counted_folder} has batches of another stage, another instance, or of a "
            "checkpoint folder that was lost: Spark would take this stage's for them, and leave their rows out"
        )
    except (PySparkException, Py4JJavaError) as error:
        what = f"the folder {dataset.counted_folder} cannot be used: {summarize_spark_error(error)}"
    fix = f"name another path for the dataset {dataset.name}"
    return Problem(dataset.where.file, dataset.where.line, f"stage {stage.name}: {what}", fix)


def _is_free(files: _Folder) -> bool:
    """Rows beside dead letters are appended, uncounted: who reads a folder with counted batches sees those alone."""
    return not files.has(BATCHES)


def _is_own(files: _Folder, state: _Folder) -> bool:
    is_new = not state.has(MARK) and not state.has("offsets")
    if is_new and (files.has(BATCHES) or files.has(MARK)):
        return False
    # Dying between the two leaves a mark of its own with the stage, which takes the folder at its next start.
    state.keep(MARK, uuid.uuid4().hex)
    files.keep(MARK, state.text(MARK))
    return files.text(MARK) == state.text(MARK)


class _Folder:
    """By Spark's own means: it may be one of a cluster's file system."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - no public way
        self._jvm = jvm
        self._folder = jvm.org.apache.hadoop.fs.Path(folder)
        self._files = self._folder.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())  # noqa: SLF001

    def has(self, name: str) -> bool:
        return bool(self._files.exists(self._path(name)))

    def text(self, name: str) -> str:
        stream = self._files.open(self._path(name))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def keep(self, name: str, text: str) -> None:
        """Writes a file, unless there is one: of two who do so at once, one does."""
        try:
            stream = self._files.create(self._path(name), False)
        except Py4JJavaError:
            if not self.has(name):
                raise
            return
        try:
            stream.write(text.encode())
        finally:
            stream.close()

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._folder, name)
