"""What a streaming query writes under its checkpoint location, read by path: a public way on every kind of session.

    metadata        {"id": "..."}, the same for all runs of the query
    offsets/7       written before batch 7 runs: where each source stands at its end
    commits/7       written after it

A folder of this machine is read directly. Any other file system is read by Spark, which has the means to.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from hubline.errors import SinkError
from hubline.spark.folders import LocalFolder, SparkFolder, local_path

# Spark's marks of the format: a newer one may mean something else by the lines below it.
_VERSIONS: Final = ("v1",)
_NOTHING: Final = "-"
"""What stands for a source that has given nothing yet."""

Read = Callable[[str], str | None]
"""Gives the text of a file below the location; None if there is none."""


@dataclass(frozen=True, slots=True)
class CheckpointLocation:
    """A query's checkpoint location, as it was given to Spark."""

    path: str

    def reader(self, spark: SparkSession) -> Read:
        """How its files are read: the text of one, or None if there is none."""
        folder = local_path(self.path)
        # Without a scheme, Spark takes the path for one of its default file system.
        if folder is not None and (folder.is_dir() or self.path.startswith("file:")):
            return LocalFolder(folder).text
        return SparkFolder(spark, self.path).text

    def query_id(self, read: Read) -> str:
        """The id that all runs of the query have. Raises SinkError if it cannot be read."""
        try:
            return str(json.loads(self._required(read, "metadata"))["id"])
        except (ValueError, TypeError, KeyError):
            pass
        raise self._unreadable("metadata", "it is not what Spark writes there")

    def offsets(self, read: Read, batch_id: int) -> list[object]:
        """Where each source stands at the end of a batch, as it wrote it.

        Raises SinkError if that cannot be read, or the location is not that of the query which runs this batch.
        """
        lines = self._required(read, f"offsets/{batch_id}").splitlines()
        if lines[:1] == [] or lines[0] not in _VERSIONS:
            raise self._unreadable(f"offsets/{batch_id}", f"its format {lines[:1]} is not known to hubline")
        try:
            # The second line is Spark's own: watermark and settings.
            return [json.loads(line) for line in lines[2:] if line != _NOTHING]
        except ValueError:
            pass
        raise self._unreadable(f"offsets/{batch_id}", "it is not JSON")

    def require_running(self, read: Read, batch_id: int) -> None:
        """Refuses a location in which the batch is committed already: another query's."""
        if self._read(read, f"commits/{batch_id}") is not None:
            raise SinkError(
                f"the checkpoint location {self.path} is another query's: batch {batch_id} is committed there. Let "
                "write_stream set the option checkpointLocation, and do not set it again."
            )

    def _required(self, read: Read, name: str) -> str:
        text = self._read(read, name)
        if text is None:
            raise self._unreadable(name, "it does not exist")
        return text

    def _read(self, read: Read, name: str) -> str | None:
        try:
            return read(name)
        except OSError as error:
            reason = error.strerror or type(error).__name__
        except (PySparkException, UnicodeDecodeError) as error:
            reason = str(error).partition("\n")[0]
        raise self._unreadable(name, reason)

    def _unreadable(self, name: str, reason: str) -> SinkError:
        return SinkError(
            f"the checkpoint location {self.path} cannot be read: {name}: {reason}. hubline reads there which events a "
            "batch has. Give the driver the right to read it, or use another location."
        )
