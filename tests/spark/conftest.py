"""One Spark session for all tests of this folder: starting one takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import hubline.spark

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker of a parallel run gets all that need the session."""
    for item in items:
        if FOLDER in item.path.parents and "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two cores."""
    folder = tmp_path_factory.mktemp("spark")
    config = {
        "spark.ui.enabled": False,
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "scratch"),
        "spark.log.level": "ERROR",
    }
    session = hubline.spark.session("hubline-tests", master="local[2]", **config)
    yield session
    session.stop()
