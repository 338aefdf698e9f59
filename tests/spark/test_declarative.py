"""A declarative pipeline, run as a person runs it: by Spark's own command, which finds `eventhubs` by itself."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pyspark
import pytest

from tests.pipeline.files import new_hub, send

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/declarative"
STORAGE = "/tmp/hubline-declarative"  # noqa: S108 - in the example; the test puts its own folder there
LOOPBACK = "spark.connect.grpc.binding.address=127.0.0.1"

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        importlib.util.find_spec("pyspark.pipelines") is None, reason="Spark 4.0 has no declarative pipelines"
    ),
    pytest.mark.skipif(
        importlib.util.find_spec("grpc_status") is None, reason="grpcio-status, by which they are run, is not installed"
    ),
]


def test_pipeline_has_a_table_a_view_and_a_sink_of_hubs(tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLE, tmp_path / "declarative")
    spec = folder / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace(STORAGE, str(tmp_path / "storage")))
    readings, warm = new_hub(tmp_path, "readings"), new_hub(tmp_path, "warm")
    send(readings, [json.dumps({"device": f"d{n % 2}", "celsius": 17 + n}).encode() for n in range(10)])
    home = Path(pyspark.__file__).parent
    ran = subprocess.run(
        [home / "bin/spark-pipelines", "run", "--conf", "spark.ui.enabled=false", "--conf", LOOPBACK],
        cwd=folder,
        env={
            **os.environ,
            "SPARK_HOME": str(home),
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_TESTING": "1",  # a free port, not 15002 of every address
            "READINGS": readings.address,
            "WARM": warm.address,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr

    assert pq.read_table(folder / "spark-warehouse/readings").num_rows == 10
    warmest = pq.read_table(folder / "spark-warehouse/warmest").to_pylist()
    assert sorted(warmest, key=lambda row: row["device"]) == [
        {"device": "d0", "celsius": 25.0},
        {"device": "d1", "celsius": 26.0},
    ]
    published = sorted(json.loads(event.body)["celsius"] for event in warm.flat())
    assert published == [25.0, 26.0]
