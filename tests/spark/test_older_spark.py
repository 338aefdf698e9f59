"""Spark 4.0, whose calls to Python sources differ most from those of the version that all other tests run on.

`make spark-matrix` runs all tests of Spark on each version. This one is what every run of the tests has of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPARK = ROOT / ".venv/spark-4.0"
"""Made by `make setup`."""


@pytest.mark.timeout(900)  # it takes 20 s of a processor, of which a busy machine may give it little
@pytest.mark.skipif(not SPARK.exists(), reason="there is no Spark 4.0: `make setup` could not install it")
def test_all_that_is_there_is_read_and_written_on_spark_4_0(tmp_path: Path) -> None:
    paths = os.pathsep.join([str(SPARK), str(ROOT / "src"), str(ROOT)])
    ran = subprocess.run(
        [sys.executable, "-m", "tests.spark.older_spark"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    seen = json.loads(ran.stdout.splitlines()[-1])

    assert seen.pop("spark").startswith("4.0.")
    assert seen == {
        "batch": 100,
        # In one batch, since there is no other: with the limit of 30, 70 would be left, and nobody would know.
        "availableNow": [100],
        "published": 100,
        "once": {"is_done": True, "state": "done", "batches": 4, "rows": 100},
    }
