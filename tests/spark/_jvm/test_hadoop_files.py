"""Files in Spark's own file systems."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from hubline.spark._jvm.errors import SPARK_ERRORS
from hubline.spark._jvm.hadoop_files import HadoopFolder


def test_the_first_text_of_a_file_stays(spark: SparkSession, tmp_path: Path) -> None:
    folder = HadoopFolder(spark, f"file://{tmp_path}/state")
    assert not folder.has("mark")
    folder.create("mark", "größe")
    folder.create("mark", "another")
    assert folder.has("mark")
    assert folder.text("mark") == "größe"


def test_a_folder_is_removed_with_all_in_it(spark: SparkSession, tmp_path: Path) -> None:
    folder = HadoopFolder(spark, str(tmp_path / "state"))
    folder.create("offsets", "0")
    folder.remove()
    assert not (tmp_path / "state").exists()
    folder.remove()  # there is nothing left to do


def test_what_cannot_be_used_is_an_error_of_sparks(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SPARK_ERRORS):
        HadoopFolder(spark, f"{tmp_path}/file/folder").create("mark", "")
    with pytest.raises(SPARK_ERRORS):
        HadoopFolder(spark, "nosuch://host/folder")
