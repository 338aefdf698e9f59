"""Folders in Spark's own file systems: on this machine, or one that a cluster shares."""

from __future__ import annotations

from typing import Any

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession


class HadoopFolder:
    """A folder, by the file system that its path names. Every method can raise `SPARK_ERRORS`."""

    def __init__(self, spark: SparkSession, folder: str) -> None:
        jvm: Any = spark.sparkContext._jvm
        self._jvm = jvm
        self._folder = jvm.org.apache.hadoop.fs.Path(folder)
        self._files = self._folder.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())

    def has(self, name: str) -> bool:
        return bool(self._files.exists(self._path(name)))

    def text(self, name: str) -> str:
        stream = self._files.open(self._path(name))
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def create(self, name: str, text: str) -> None:
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

    def remove(self) -> None:
        """Removes the folder with all that is in it, if it exists."""
        self._files.delete(self._folder, True)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._folder, name)
