"""Reads and writes by another version of Spark than the tests have: started by test_older_spark.py, in a new folder.

It prints, as JSON, what it saw. All queries have more events to read than one batch may take.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import SparkSession

import hubline.spark
from hubline.pipeline.checks import check_file
from hubline.pipeline.runner import Request, run
from tests.pipeline.files import Notes, new_hub, readings, send, write
from tests.spark.hubs import TestHub

COUNT = 100
LIMIT = 30

SETTINGS = {"spark.ui.enabled": False, "spark.ui.showConsoleProgress": False, "spark.log.level": "ERROR"}

CODE = """
    import hubline
    import hubline.spark

    pipeline = hubline.Pipeline("older")

    @pipeline.stage(source="events", sink="readings", consumer_group="once")
    def keep(events):
        return hubline.spark.parse_json(events, "id long, celsius double")
"""

CONFIG = f"""
    [datasets]
    events = {{ hub = "local:hubs/events" }}
    readings = {{ url = "sqlite:///readings.db", table = "readings", create_if_missing = true }}

    [stages.keep]
    max_batch_size = {LIMIT}
"""


def main() -> None:
    hub = new_hub(Path("hubs").absolute(), "events")
    send(hub, readings(COUNT))
    spark = hubline.spark.session("older", master="local[1]", **SETTINGS)
    seen = {
        "spark": pyspark.__version__,
        "batch": spark.read.format("eventhubs").option("hub", hub.address).load().count(),
        **available_now(spark, hub),
        "once": once(spark),
    }
    json.dump(seen, sys.stdout)
    spark.stop()


def available_now(spark: SparkSession, hub: TestHub) -> dict[str, Any]:
    """A stream from hub to hub, by a store and with a limit: the events of each batch, and those that arrived."""
    target = new_hub(Path("hubs").absolute(), "copy")
    frame = spark.readStream.format("eventhubs").options(
        hub=hub.address, startingPosition="earliest", maxEventsPerTrigger=LIMIT, store="sqlite:///store.db"
    )
    writing = frame.load().select("body").writeStream.format("eventhubs").option("hub", target.address)
    query = writing.option("checkpointLocation", "copying").trigger(availableNow=True).start()
    query.awaitTermination()
    return {"availableNow": [batch["numInputRows"] for batch in query.recentProgress], "published": len(target.flat())}


def once(spark: SparkSession) -> dict[str, Any]:
    """A pipeline that reads all there is, and ends."""
    view = Notes()
    is_done = run(check_file(write(Path.cwd(), "older", CODE, CONFIG)), Request(once=True), spark=spark, view=view)
    (report,) = view.reports.values()
    return {"is_done": is_done, "state": report.state, "batches": report.batches, "rows": report.rows}


if __name__ == "__main__":
    main()
