"""Folders with small texts in them, directly and by Spark's own reader and writer: one contract."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from hubline.spark._jvm.errors import SPARK_ERRORS
from hubline.spark.folders import Folder, LocalFolder, SparkFolder, folder_of


@pytest.fixture(params=["local", "by spark"])
def folder(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Folder:
    path = tmp_path / "state [1]"
    return LocalFolder(path) if request.param == "local" else SparkFolder(spark, f"file://{path}")


def test_the_first_text_of_a_file_stays(folder: Folder) -> None:
    assert not folder.has("mark")
    assert folder.text("mark") is None
    folder.create("mark", "größe")
    folder.create("mark", "another")
    assert folder.has("mark")
    assert folder.text("mark") == "größe"


def test_a_folder_is_removed_with_all_in_it(folder: Folder) -> None:
    folder.remove()  # there is nothing to do
    folder.create("offsets", "0")
    folder.remove()
    assert not folder.has("offsets")


def test_a_path_names_the_file_system(spark: SparkSession, tmp_path: Path) -> None:
    assert isinstance(folder_of(spark, str(tmp_path / "new" / "state")), LocalFolder)
    assert isinstance(folder_of(spark, f"file://{tmp_path}"), LocalFolder)
    assert isinstance(folder_of(spark, "abfss://files@account/state"), SparkFolder)


def test_what_cannot_be_used_is_an_error(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (f"{tmp_path}/file/folder", "nosuch://host/folder"):
        with pytest.raises((OSError, *SPARK_ERRORS)):
            folder_of(spark, path).create("mark", "")
