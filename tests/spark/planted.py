"""A Spark program with secrets planted wherever people put them; writes down all that Spark shows of it.

Started by test_session.py as ``python -m tests.spark.planted FOLDER HUB``, in a process of its own: a Spark session is
one for a process.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import urllib.request
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import hubline.spark
from hubline.errors import ConfigError

SECRETS = {
    "account key": "UGxhbnRlZEFjY291bnRLZXk=",
    "user's own": "PLANTED-ACME-CODE",
    "password of a URL": "PLANTED-URL-PASSWORD",
    "signature": "PLANTED%2FSIGNATURE%3D",
    "password of an option": "PLANTED-OPTION-PASSWORD",
}
URL = f"jdbc:postgresql://ann:{SECRETS['password of a URL']}@localhost/db"
SIGNATURE = f"SharedAccessSignature sr=sb%3A%2F%2Fh&sig={SECRETS['signature']}&se=1999999999&skn=root"


def main(folder: Path, hub: str) -> None:
    config: dict[str, Any] = {
        "spark.ui.port": 0,
        "spark.eventLog.enabled": True,
        "spark.eventLog.dir": f"file://{folder}/log",
        "spark.eventLog.compress": False,
        "spark.hadoop.fs.azure.account.key.acme.dfs.core.windows.net": SECRETS["account key"],
        "spark.acme.code": SECRETS["user's own"],
        "spark.acme.database": URL,
        "spark.redaction.regex": "(?i)acme[.]code",
        "spark.sql.shuffle.partitions": 2,
    }
    (folder / "log").mkdir()
    spark = hubline.spark.session("planted", master="local[2]", **config)
    shown = {"master": str(spark.sparkContext.master), "ui": str(spark.sparkContext.uiWebUrl)}
    shown["settings"] = json.dumps({name: spark.conf.get(name) for name in OUR_SETTINGS})
    shown["again"] = str(hubline.spark.session() is spark)
    other: dict[str, Any] = {"spark.sql.shuffle.partitions": 7}
    shown["other settings"] = refusal(lambda: hubline.spark.session(**other))
    show_batch(spark, hub, shown)
    show_stream(spark, hub, folder, shown)
    show_errors(spark, hub, shown)
    show_pages(spark, shown)
    shown["command line"] = Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/cmdline").read_text()  # type: ignore[union-attr]
    shown["environment left as it was"] = str({"JAVA_HOME", "SPARK_LOCAL_IP", "PYSPARK_PYTHON"} & os.environ.keys())
    spark.stop()
    shown["event log"] = "".join(path.read_text() for path in (folder / "log").rglob("*") if path.is_file())
    (folder / "shown.json").write_text(json.dumps(shown))


OUR_SETTINGS = (
    "spark.python.unix.domain.socket.enabled",
    "spark.sql.session.timeZone",
    "spark.sql.python.filterPushdown.enabled",
    "spark.sql.shuffle.partitions",
    "spark.redaction.regex",
    "spark.hadoop.fs.file.impl",
)


def show_batch(spark: SparkSession, hub: str, shown: dict[str, str]) -> None:
    rows = spark.range(10).selectExpr("cast(id as string) body", "'k' partitionKey")
    rows.write.format("eventhubs").option("hub", hub).mode("append").save()
    read = spark.read.format("eventhubs").option("eventhubs.connectionString", hub).load()
    # Not run: of literals in a plan that ran, Spark shows what the plan's graph says.
    shown["explain of literals"] = explained(rows.withColumns({"a": F.lit(SIGNATURE), "b": F.lit(URL)}))
    shown["explain of the source"] = explained(read)
    read.filter("partition = '0'").count()
    password = SECRETS["password of an option"]
    options = f"path '/etc/hostname', url '{URL}', password '{password}', address '{SIGNATURE}'"
    spark.sql(f"create temporary view v using csv options ({options})")
    shown["explain of a view"] = explained(spark.table("v"))
    spark.table("v").count()


def explained(rows: DataFrame) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        rows.explain("extended")
        rows.explain("formatted")
    return output.getvalue()


def show_stream(spark: SparkSession, hub: str, folder: Path, shown: dict[str, str], attempts_left: int = 3) -> None:
    read = spark.readStream.format("eventhubs").option("hub", hub).option("start", "earliest").load()
    query = (
        read.limit(5)
        .select("body", "partitionKey")
        .writeStream.format("eventhubs")
        .option("hub", hub)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .queryName("planted")
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    except StreamingQueryException as error:
        # Spark gives its planning process 10 seconds to start, whatever else the machine has to do.
        if "connect back" not in str(error) or not attempts_left:
            raise
        return show_stream(spark, hub, folder, shown, attempts_left - 1)
    shown["progress"] = json.dumps([progress.json for progress in query.recentProgress])
    files = [path for path in (folder / "checkpoint").rglob("*") if path.is_file()]
    shown["checkpoint"] = "".join(path.read_text(errors="replace") for path in files)
    return None


def show_errors(spark: SparkSession, hub: str, shown: dict[str, str]) -> None:
    rows = spark.sql("select 'a' body")
    wrong = hub.replace("EntityPath", "EntityPth")
    unreachable = re.sub(r"localhost:\d+", "localhost:1", hub)
    signed = f"Endpoint=sb://localhost:1;SharedAccessSignature={SIGNATURE};EntityPath=h;UseDevelopmentEmulator=true"
    for name, address in (("an address", wrong), ("an outage", unreachable), ("a signed address", signed)):
        writer = rows.write.format("eventhubs").option("hub", address).option("outage", "1s").mode("append")
        shown[f"error of {name}"] = refusal(writer.save)
    misplaced = rows.write.format("eventhubs").option("hub", hub).option("group", hub).mode("append")
    shown["error of a misplaced secret"] = refusal(misplaced.save)


def refusal(call: object) -> str:
    try:
        call()  # type: ignore[operator]
    except (PySparkException, ConfigError) as error:
        return str(error)
    return "no error"


def show_pages(spark: SparkSession, shown: dict[str, str]) -> None:
    base = str(spark.sparkContext.uiWebUrl)
    application = f"/api/v1/applications/{spark.sparkContext.applicationId}"
    pages = ["/environment/", "/jobs/", "/stages/", "/SQL/", "/StreamingQuery/", "/executors/"]
    pages += [
        f"{application}/environment",
        f"{application}/sql?details=true&planDescription=true",
        f"{application}/jobs",
    ]
    executions = json.loads(fetched(f"{base}{application}/sql"))
    pages += [f"/SQL/execution/?id={execution['id']}" for execution in executions]
    for page in pages:
        shown[f"page {page.replace(application, '')}"] = fetched(base + page)


def fetched(url: str) -> str:
    with urllib.request.urlopen(url) as answer:  # noqa: S310 - loopback
        return str(answer.read().decode())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
