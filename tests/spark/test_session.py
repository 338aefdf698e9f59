"""The session: its settings, and that no secret is shown in plans, pages, logs, progress or errors."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession

from hubline.errors import ConfigError
from hubline.spark.sessions import launch, settings
from hubline.spark.sessions import session as sessions
from hubline.spark.sessions.interrupts import interruptible
from hubline.spark.sessions.java_options import OPTIONS_VARIABLE
from hubline.spark.sessions.parallelism import TASKS_VARIABLE
from hubline.spark.sessions.redaction import HIDING, hiding, is_hidden
from tests.emulator.serving import KEY, serving
from tests.spark.hubs import TestHub
from tests.spark.planted import SECRETS, certificate_of, everything_shown
from tests.support.entra import PLANTED_TOKEN

SHOWN_TO_ALL = (
    "explain of literals",
    "explain of the source",
    "progress",
    "checkpoint",
    "error of an address",
    "error of an outage",
    "error of a signed address",
    "error of a misplaced secret",
    "explain of a hub by Entra",
    "error of a credential",
    "command line",
    "event log",
)


@pytest.fixture(scope="module")
def shown(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What Spark shows of a session with secrets in it."""
    data, tls = tmp_path_factory.mktemp("served"), [str(path) for path in certificate_of(spark)]
    with serving(data, "--create", "telemetry:2") as server, serving(data, "--tls", *tls, key=None) as by_entra:
        hubs = server.connection_string("telemetry"), f"eventhubs://localhost:{by_entra.port}/telemetry"
        return everything_shown(spark, tmp_path_factory.mktemp("planted"), *hubs)


@pytest.mark.timeout(400)
class TestSession:
    @pytest.mark.parametrize("secret", [KEY, PLANTED_TOKEN, *SECRETS.values()])
    def test_no_secret_is_shown_anywhere(self, shown: dict[str, str], secret: str) -> None:
        assert [place for place, found in shown.items() if secret in found] == []

    def test_places_were_looked_at_for_real(self, shown: dict[str, str]) -> None:
        assert all(shown[place] for place in SHOWN_TO_ALL)
        pages = [place for place in shown if place.startswith("page ")]
        assert len(pages) > 12
        assert "redacted" in shown["explain of literals"]
        assert "redacted" in shown["page /environment"]
        assert "redacted" in shown["event log"]
        assert "numInputRows" in shown["progress"]
        assert "EntityPth" not in shown["error of an address"]
        assert "hubline.errors.ConfigError" in shown["error of an address"]
        assert "HubUnavailable" in shown["error of an outage"]
        assert "HubUnavailable" in shown["error of a signed address"]
        assert shown["rows by Entra"] == "10"
        assert "the service answered ***" in shown["error of a credential"]

    def test_the_settings_that_matter_are_made(self, shown: dict[str, str]) -> None:
        settings = json.loads(shown["settings"])

        assert shown["master"] == "local[2,4]"
        assert settings["spark.python.unix.domain.socket.enabled"] == "true"
        assert settings["spark.sql.session.timeZone"] == "UTC"
        assert settings["spark.sql.shuffle.partitions"] == "2"

    def test_workers_start_with_what_they_need_loaded_and_draw_numbers_of_their_own(self, spark: SparkSession) -> None:
        def drawn(_: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            program = sys.modules["__main__"].__spec__
            time.sleep(0.5)  # so that no worker runs two of these tasks
            yield pa.RecordBatch.from_pydict(
                {"name": [program.name if program else ""], "number": [int(np.random.randint(2**31))]}
            )

        rows = spark.range(0, 2, 1, 2).mapInArrow(drawn, "name string, number long").collect()

        assert {row.name for row in rows} == {"hubline.spark.tasks.worker_daemon"}
        assert len({row.number for row in rows}) == 2

    def test_a_stream_leaves_no_files_of_checksums(self, shown: dict[str, str]) -> None:
        assert "offsets/0" in shown["files of the checkpoint"]
        assert ".crc" not in shown["files of the checkpoint"]

    def test_the_users_own_redaction_is_joined_to_ours(self, shown: dict[str, str]) -> None:
        expression = json.loads(shown["settings"])["spark.redaction.regex"]

        assert "(?i)acme[.]code" in expression
        assert HIDING["spark.redaction.regex"] in expression

    def test_the_user_interface_listens_on_loopback_alone(self, shown: dict[str, str]) -> None:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", shown["ui"])

    def test_a_running_session_is_given_back_or_its_settings_named(self, shown: dict[str, str]) -> None:
        assert shown["again"] == "True"
        assert "other values of spark.sql.shuffle.partitions. Stop it" in shown["other settings"]

    def test_nothing_is_said_of_closed_pipes(self, shown: dict[str, str]) -> None:
        assert "BrokenPipe" not in shown["what was printed"]


class TestRedaction:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("eventhubs.connectionString", "x"),
            ("spark.hadoop.fs.azure.account.key.acme", "x"),
            ("spark.ssl.keyPassword", "x"),
            ("hub", "Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey=abc=;EntityPath=e"),
            ("store", "postgresql://ann:pw@localhost/db"),
            ("store", "postgresql://localhost/db?user=ann&password=pw"),
            ("hub", "Endpoint=sb://h/;SharedAccessSignature=SharedAccessSignature sr=x&sig=y"),
            ("container", "https://acme.blob.core.windows.net/c?sv=1&sig=abc"),
        ],
    )
    def test_settings_with_secrets_are_hidden(self, name: str, value: str) -> None:
        assert is_hidden(name, value)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("spark.master", "spark://host:7077"),
            ("spark.eventLog.dir", "abfss://logs@acme.dfs.core.windows.net/x"),
            ("hub", "local:/data/telemetry"),
            ("hub", "eventhubs://acme/telemetry"),
        ],
    )
    def test_others_are_not(self, name: str, value: str) -> None:
        assert not is_hidden(name, value)

    @pytest.mark.parametrize(
        ("text", "secret"),
        [
            ("Endpoint=sb://h/;SharedAccessKeyName=n;SharedAccessKey=aB+/1=;EntityPath=e", "aB+/1="),
            ('{"hub": "sharedaccesskey = aB+/1="}', "aB+/1="),
            ("SharedAccessSignature=SharedAccessSignature sr=x&sig=a%2Fb%3D&se=1;EntityPath=e", "a%2Fb%3D"),
            ("https://a.blob.core.windows.net/c?sv=2024&sig=a%2Fb%3D&se=2026", "a%2Fb%3D"),
            ("DefaultEndpointsProtocol=https;AccountName=a;AccountKey=aB+/1==;EndpointSuffix=x", "aB+/1=="),
            ("jdbc:postgresql://ann:p@ss:w/rd@host/db", "p@ss:w/rd"),
            ("host=h user=ann password='two words' dbname=d", "two words"),
            ("password=hunter2, other", "hunter2"),
            (f"Authorization: Bearer {PLANTED_TOKEN}, other", PLANTED_TOKEN),
        ],
    )
    def test_secrets_within_texts_are_cut_out(self, text: str, secret: str) -> None:
        # The expressions are Java's; they keep to what Python's have too.
        assert secret not in re.sub(HIDING["spark.redaction.string.regex"], "", text)

    def test_the_users_own_expression_counts_too(self) -> None:
        assert is_hidden("spark.acme.code", "x", given="(?i)ACME[.]code")
        assert not is_hidden("spark.other", "x", given="(?i)ACME[.]code")
        assert is_hidden("spark.other", "x", given=r"\p{Lu}(")  # not an expression that can be read here

    def test_texts_without_secrets_stay(self) -> None:
        for text in ("abfss://logs@acme.net/x", "sb://host:5671/hub", "local:/data/telemetry", "a=b;c=d", "tokens: 5"):
            assert re.sub(HIDING["spark.redaction.string.regex"], "", text) == text

    def test_expressions_are_joined_once(self) -> None:
        given = {"spark.redaction.string.regex": "acme-[0-9]+"}
        once = hiding(given)

        assert once["spark.sql.redaction.string.regex"].startswith("(?:acme-[0-9]+)|")
        assert hiding(once) == once
        assert re.search(once["spark.redaction.string.regex"], "ACME-1") is None


def test_the_environment_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    before = dict(os.environ)

    with launch.launch_environment({"spark.master": "local[2]"}):
        within = dict(os.environ)

    assert within["JAVA_HOME"]
    assert within["PYSPARK_PYTHON"] == "/opt/python"
    assert dict(os.environ) == before


def test_java_gets_options_where_the_user_has_set_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(OPTIONS_VARIABLE, "-Xss2m")
    with launch.launch_environment({"spark.master": "local[2]"}):
        assert os.environ[OPTIONS_VARIABLE] == "-Xss2m"
    monkeypatch.delenv(OPTIONS_VARIABLE)
    with launch.launch_environment({"spark.master": "local[2]"}):
        assert "-XX:+UseParallelGC" in os.environ[OPTIONS_VARIABLE].split()
    with launch.launch_environment({"spark.master": "spark://host:7077"}):
        assert "GC" not in os.environ.get(OPTIONS_VARIABLE, "")


def test_queries_find_in_the_map_that_they_share_all_that_spark_puts_there(spark: SparkSession, tmp_path: Path) -> None:
    """Spark puts it there without a lock, when a query starts: a map that two of them extend may break for good."""
    sources = spark._jsparkSession.sessionState().dataSourceManager()
    shared = sources.lookupDataSource("eventhubs").dataSourceCls().envVars()
    names = set(shared.keySet())

    hub = TestHub.local(tmp_path / "hubs", "telemetry")
    frame = spark.readStream.format("eventhubs").options(hub=hub.address, startingPosition="earliest").load()
    writing = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "folder"))
    writing.trigger(availableNow=True).start().awaitTermination()

    assert set(shared.keySet()) == names
    assert shared.get(TASKS_VARIABLE) == "2"  # Spark would never put it there, whatever ran before
    assert shared.get("SPARK_LOCAL_DIRS")  # so it is the map in question


def test_an_interrupt_waits_until_java_has_started_and_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    """Otherwise Java would run on by itself."""
    before, steps = signal.getsignal(signal.SIGINT), []

    def start() -> None:
        with interruptible(None):
            signal.raise_signal(signal.SIGINT)
            steps.append("started")
        steps.append("went on")

    with pytest.raises(KeyboardInterrupt):
        start()

    assert steps == ["started"]
    assert capfd.readouterr().err.startswith("interrupted: stopping as soon as")
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_interrupt_does_not_wait() -> None:
    """A master that does not answer is waited for a minute."""
    before, steps = signal.getsignal(signal.SIGINT), []

    def start() -> None:
        with interruptible(None):
            signal.raise_signal(signal.SIGINT)
            steps.append("asked")
            signal.raise_signal(signal.SIGINT)
            steps.append("started")

    with pytest.raises(KeyboardInterrupt):
        start()

    assert steps == ["asked"]
    assert signal.getsignal(signal.SIGINT) is before


INTERRUPTED = """
import os, signal, threading, time
import hubline.spark
from hubline.spark._jvm.session import StartingJava

def interrupt(java):
    time.sleep(0.3)
    begun.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGINT)

def interrupted_later(original):
    def method(java, *args, **options):
        result = original(java, *args, **options)
        started.append(java)
        threading.Thread(target=interrupt, args=[java]).start()
        return result
    return method

begun, started = [], []
before = StartingJava.{step}
StartingJava.{step} = interrupted_later(before)
try:
    hubline.spark.session("interrupted", master="local[1]")
except KeyboardInterrupt:
    print("seconds", time.monotonic() - begun[0])
print("java", started[0]._process.poll())
StartingJava.{step} = before
if {is_again}:
    print("rows", hubline.spark.session("again", master="local[1]").range(3).count())
"""


@pytest.mark.parametrize("step", ["_open", "start"], ids=["while Java starts", "while Spark starts in it"])
def test_an_interrupt_ends_java_at_once_and_another_session_can_start(step: str) -> None:
    code = INTERRUPTED.format(step=step, is_again=step == "start")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=150)
    reported = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert reported["java"] != "None", done.stderr
    assert float(reported["seconds"]) < 2.5  # on two busy cores; without an interrupt it takes more than six
    assert reported.get("rows") == ("3" if step == "start" else None)
    first, *rest = [line for line in done.stderr.splitlines() if "WARN" not in line and "setLogLevel" not in line]
    assert first == "interrupted: stopping Spark's Java process, which was starting"
    assert not [line for line in rest if "Traceback" in line or "py4j" in line.lower()]


class TestPythonOfWorkers:
    def test_workers_run_sparks_code_from_files(self, spark: SparkSession) -> None:
        def of_worker(_: int) -> tuple[str, str]:
            import sys

            import pyspark

            return str(pyspark.__file__), sys.executable

        found = spark.sparkContext.parallelize([0], 1).map(of_worker).collect()

        assert found == [(pyspark.__file__, sys.executable)]

    def test_another_spark_than_the_installed_one_brings_its_own_code(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
        monkeypatch.setenv("SPARK_HOME", str(tmp_path))

        with launch.launch_environment({"spark.master": "local[2]"}):
            assert os.environ["PYSPARK_PYTHON"] == sys.executable

    @pytest.mark.parametrize(
        ("path", "expected"),
        [
            ("/s/python/lib/pyspark.zip:/s/python/lib/py4j-0.10-src.zip:/s/a.jar:/mine", "/s/a.jar:/mine"),
            (
                "/s/a.jar:/s/pyspark.zip:/s/py4j-0.10-src.zip:/s/pyspark.zip:/s/py4j-0.10-src.zip:/my files/*:/mine",
                "/s/a.jar:/my files/*:/mine",
            ),
            ("/mine:/other", "/mine:/other"),
            ("", ""),
        ],
    )
    def test_only_archives_of_spark_are_left_out(self, path: str, expected: str) -> None:
        show = "import os; print(os.environ['PYTHONPATH'])"
        surroundings = {"PYTHONPATH": path, "HUBLINE_SPARK_PYTHON": sys.executable}

        shown = subprocess.run([launch.PYTHON, "-c", show], env=surroundings, capture_output=True, check=True)

        assert shown.stdout.decode().strip() == expected


class TestArguments:
    @pytest.mark.parametrize(
        ("master", "expected"),
        [
            ("local", "local[1,4]"),
            ("local[2]", "local[2,4]"),
            ("local[*]", "local[*,4]"),
            ("local[2,1]", "local[2,1]"),
            ("local-cluster[2,1,1024]", "local-cluster[2,1,1024]"),
            ("spark://host:7077", "spark://host:7077"),
        ],
    )
    def test_a_local_master_tries_tasks_again(self, master: str, expected: str) -> None:
        assert settings.with_attempts(master) == expected

    @pytest.mark.parametrize(
        ("config", "message"),
        [
            ({"sql.shuffle.partitions": 4}, "not a setting of Spark"),
            ({"spark.ui.enabled": None}, "must be text, a number, True or False, not NoneType"),
        ],
    )
    def test_what_is_no_setting_is_refused(self, config: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            sessions.session(**config)

    def test_a_master_in_sparks_own_settings_is_kept(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("PYSPARK_SUBMIT_ARGS", raising=False)
        monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
        assert not settings.has_master()

        (tmp_path / "spark-defaults.conf").write_text("spark.app.name x\nspark.master   spark://host:7077\n")
        assert settings.has_master()


class TestTheDocumentation:
    PAGE = (Path(__file__).parents[2] / "docs/reference/spark-session.md").read_text()

    def test_every_setting_is_in_the_reference(self) -> None:
        names = {*settings.SETTINGS, *settings.LOCAL_SETTINGS, *HIDING, "spark.master"}
        assert {name for name in names if f"`{name}`" not in self.PAGE} == set()

    def test_every_variable_is_in_the_reference(self) -> None:
        names = {
            OPTIONS_VARIABLE,
            TASKS_VARIABLE,
            "HUBLINE_SPARK_PYTHON",
            "JAVA_HOME",
            "PYSPARK_PYTHON",
            "SPARK_LOCAL_IP",
        }
        assert {name for name in names if f"`{name}`" not in self.PAGE} == set()
