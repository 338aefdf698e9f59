"""Secrets planted in a Spark session wherever people put them, and all that Spark shows of it written down."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

import hubline.spark
from hubline.errors import ConfigError
from hubline.secrets import Secret

SECRETS = {
    "account key": "UGxhbnRlZEFjY291bnRLZXk=",
    "user's own": "PLANTED-ACME-CODE",
    "kept elsewhere": "PLANTED-ACME-PIN",
    "password of a URL": "PLANTED-URL-PASSWORD",
    "signature": "PLANTED%2FSIGNATURE%3D",
    "password of an option": "PLANTED-OPTION-PASSWORD",
}
URL = f"jdbc:postgresql://ann:{SECRETS['password of a URL']}@localhost/db"
SIGNATURE = f"SharedAccessSignature sr=sb%3A%2F%2Fh&sig={SECRETS['signature']}&se=1999999999&skn=root"


def settings(folder: Path) -> dict[str, object]:
    """What the session is started with: pages and a log to look at, and secrets in settings of all kinds."""
    (folder / "log").mkdir()
    return {
        "spark.ui.enabled": True,
        "spark.ui.port": 0,
        "spark.eventLog.enabled": True,
        "spark.eventLog.dir": f"file://{folder}/log",
        "spark.eventLog.compress": False,
        "spark.hadoop.fs.azure.account.key.acme.dfs.core.windows.net": SECRETS["account key"],
        "spark.acme.code": SECRETS["user's own"],
        "spark.hadoop.acme.pin": Secret(SECRETS["kept elsewhere"]),
        "spark.acme.database": URL,
        "spark.redaction.regex": "(?i)acme[.]code",
    }


def certificate_of(spark: SparkSession) -> tuple[Path, Path]:
    """That of servers with TLS, and its key. Spark's processes were started to trust it."""
    return log_of(spark).parent / "cert.pem", log_of(spark).parent / "key.pem"


def log_of(spark: SparkSession) -> Path:
    return Path(str(spark.conf.get("spark.eventLog.dir")).removeprefix("file://"))


def everything_shown(spark: SparkSession, folder: Path, hub: str, hub_by_entra: str) -> dict[str, str]:
    """Runs batches, a stream and what fails, and gives all that is to be seen of them, by the place of it."""
    shown = {"master": str(spark.sparkContext.master), "ui": str(spark.sparkContext.uiWebUrl)}
    shown["settings"] = json.dumps({name: spark.conf.get(name) for name in OUR_SETTINGS})
    shown["again"] = str(hubline.spark.session() is spark)
    other: dict[str, Any] = {"spark.sql.shuffle.partitions": 7}
    shown["other settings"] = refusal(lambda: hubline.spark.session(**other))
    printed = folder / "printed"
    with printing_to(printed, spark):
        before = executions(spark)
        show_batch(spark, hub, shown)
        show_entra(spark, hub_by_entra, shown)
        show_stream(spark, hub, folder, shown)
        show_errors(spark, hub, shown)
        show_pages(spark, shown, executions(spark) - before)
    shown["what was printed"] = printed.read_text()
    shown["command line"] = Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/cmdline").read_text()  # type: ignore[union-attr]
    shown["event log"] = "".join(path.read_text() for path in log_of(spark).rglob("*") if path.is_file())
    return shown


@contextlib.contextmanager
def printing_to(path: Path, spark: SparkSession) -> Iterator[None]:
    """Has a file take what Java and the Python processes below it print, warnings included."""
    own = os.dup(STANDARD_ERROR)
    with path.open("wb") as file:
        os.dup2(file.fileno(), STANDARD_ERROR)
        spark.sparkContext.setLogLevel("WARN")
        try:
            yield
        finally:
            spark.sparkContext.setLogLevel("ERROR")
            os.dup2(own, STANDARD_ERROR)
            os.close(own)


STANDARD_ERROR = 2

OUR_SETTINGS = (
    "spark.python.unix.domain.socket.enabled",
    "spark.sql.session.timeZone",
    "spark.sql.shuffle.partitions",
    "spark.redaction.regex",
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


def show_entra(spark: SparkSession, hub: str, shown: dict[str, str]) -> None:
    """By the credential that a factory gives in each of Spark's processes, and by one that quotes its token."""

    def options(factory: str) -> dict[str, str]:
        return {"hub": hub, "credential": f"factory:tests.support.entra:{factory}", "operationTimeout": "1s"}

    read = spark.read.format("eventhubs").options(**options("planted")).load()
    shown["explain of a hub by Entra"] = explained(read)
    shown["rows by Entra"] = str(read.count())
    writer = spark.sql("select 'a' body").write.format("eventhubs").mode("append")
    shown["error of a credential"] = refusal(writer.options(**options("planted_refusal")).save)


def explained(rows: DataFrame) -> str:
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        rows.explain("extended")
        rows.explain("formatted")
    return output.getvalue()


def show_stream(spark: SparkSession, hub: str, folder: Path, shown: dict[str, str], attempts_left: int = 3) -> None:
    read = spark.readStream.format("eventhubs").option("hub", hub).option("startingPosition", "earliest").load()
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
    shown["files of the checkpoint"] = " ".join(str(path) for path in files)
    shown["checkpoint"] = "".join(path.read_text(errors="replace") for path in files)
    return None


def show_errors(spark: SparkSession, hub: str, shown: dict[str, str]) -> None:
    rows = spark.sql("select 'a' body")
    wrong = hub.replace("EntityPath", "EntityPth")
    unreachable = re.sub(r"localhost:\d+", "localhost:1", hub)
    signed = f"Endpoint=sb://localhost:1;SharedAccessSignature={SIGNATURE};EntityPath=h;UseDevelopmentEmulator=true"
    for name, address in (("an address", wrong), ("an outage", unreachable)):
        writer = rows.write.format("eventhubs").option("hub", address).option("operationTimeout", "1s").mode("append")
        shown[f"error of {name}"] = refusal(writer.save)
    # Fails when it is planned, which is tried once; a task is tried four times.
    read = spark.read.format("eventhubs").option("hub", signed).option("receiverTimeout", "1s").load()
    shown["error of a signed address"] = refusal(read.count)
    misplaced = rows.write.format("eventhubs").option("hub", hub).option("consumerGroup", hub).mode("append")
    shown["error of a misplaced secret"] = refusal(misplaced.save)


def refusal(call: object) -> str:
    try:
        call()  # type: ignore[operator]
    except (PySparkException, ConfigError) as error:
        return str(error)
    return "no error"


def show_pages(spark: SparkSession, shown: dict[str, str], own_executions: set[int]) -> None:
    base, application = str(spark.sparkContext.uiWebUrl), address_of(spark)
    pages = ["/environment/", "/jobs/", "/stages/", "/SQL/", "/StreamingQuery/", "/executors/"]
    pages += [
        f"{application}/environment",
        f"{application}/sql?details=true&planDescription=true",
        f"{application}/jobs",
    ]
    pages += [f"/SQL/execution/?id={number}" for number in own_executions]
    for page in pages:
        shown[f"page {page.replace(application, '')}"] = fetched(base + page)


def executions(spark: SparkSession) -> set[int]:
    listed = json.loads(
        fetched(f"{spark.sparkContext.uiWebUrl}{address_of(spark)}/sql?length=1000&details=false&planDescription=false")
    )
    return {execution["id"] for execution in listed}


def address_of(spark: SparkSession) -> str:
    return f"/api/v1/applications/{spark.sparkContext.applicationId}"


def fetched(url: str) -> str:
    with urllib.request.urlopen(url) as answer:  # noqa: S310 - loopback
        return str(answer.read().decode())
