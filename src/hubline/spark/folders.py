"""Folders of Spark's file systems: of this machine, or one that only Spark reaches (a cluster's, a server's)."""

from __future__ import annotations

import re
import shutil
import uuid
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import unquote, urlsplit

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

_NOT_FOUND: Final = "PATH_NOT_FOUND"


class Folder(Protocol):
    """A folder with small texts in it. Every method can raise `OSError`, or what Spark raises."""

    def has(self, name: str) -> bool: ...

    def text(self, name: str) -> str | None:
        """What a file holds; None if there is none."""

    def create(self, name: str, text: str) -> None:
        """Writes a file, unless there is one: of two who do so at once, one does."""

    def remove(self) -> None:
        """Removes the folder with all that is in it, if it exists."""


class LocalFolder:
    """A folder of this machine."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def has(self, name: str) -> bool:
        return (self._path / name).exists()

    def text(self, name: str) -> str | None:
        try:
            return (self._path / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def create(self, name: str, text: str) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        try:
            with (self._path / name).open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            pass

    def remove(self) -> None:
        shutil.rmtree(self._path, ignore_errors=not self._path.exists())


class SparkFolder:
    """A folder of any file system, by Spark's own reader and writer. What it writes as one file is a folder of one."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._path = path.rstrip("/")

    def has(self, name: str) -> bool:
        try:
            self._spark.read.format("binaryFile").load(self._exactly(name)).schema  # noqa: B018 - it is looked for
        except PySparkException as error:
            if error.getCondition() == _NOT_FOUND:
                return False
            raise
        return True

    def text(self, name: str) -> str | None:
        try:
            rows = self._spark.read.text(self._exactly(name), wholetext=True).collect()
        except PySparkException as error:
            if error.getCondition() == _NOT_FOUND:
                return None
            raise
        return "".join(str(row[0]) for row in rows).rstrip("\n")

    def create(self, name: str, text: str) -> None:
        row = self._spark.createDataFrame([(text,)], "value string")
        row.coalesce(1).write.mode("ignore").text(f"{self._path}/{name}")

    def remove(self) -> None:
        # Spark has no other way to remove what is there: an empty table takes its place.
        if self.has(""):
            nothing = self._spark.createDataFrame([], "value string")
            nothing.coalesce(1).write.mode("overwrite").text(self._path)

    def _exactly(self, name: str) -> str:
        """A path to read, without characters that stand for others."""
        return re.sub(r"([\[\]{}*?\\])", r"\\\1", f"{self._path}/{name}")


def folder_of(spark: SparkSession, path: str) -> Folder:
    """A folder, by the file system that its path names."""
    local = local_path(path)
    return LocalFolder(local) if local is not None and shares_files(spark, local) else SparkFolder(spark, path)


def local_path(path: str) -> Path | None:
    """The path of a folder of a machine; None if it names another file system."""
    parts = urlsplit(path)
    if parts.scheme == "file" and parts.netloc in ("", "localhost"):
        return Path(unquote(parts.path))
    return None if parts.scheme else Path(path)


def shares_files(spark: SparkSession, folder: Path) -> bool:
    """Whether Spark has the same folder under this path.

    A driver on another machine does not, nor does one that takes a bare path for one of its cluster's file system.
    """
    there = next(each for each in (folder, *folder.parents) if each.is_dir())
    probe = there / f".hubline-{uuid.uuid4().hex}"
    try:
        probe.touch()
        return SparkFolder(spark, str(there)).has(probe.name)
    except OSError:
        return False
    finally:
        probe.unlink(missing_ok=True)
