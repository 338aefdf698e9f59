"""A Spark session with the settings that matter for hubs: quick micro-batches, retries, and hidden secrets."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from hubline.errors import ConfigError
from hubline.secrets import Secret
from hubline.spark._jvm.session import (
    forget_settings,
    is_java_running,
    is_session_running,
    register,
    start_java,
    write_no_checksums,
)
from hubline.spark.sessions.java import find_java, java_home
from hubline.spark.sessions.java_options import OPTIONS_VARIABLE, java_options
from hubline.spark.sessions.parallelism import TASKS_VARIABLE
from hubline.spark.sessions.redaction import HIDING, hiding, is_hidden
from hubline.spark.sessions.stderr_filter import pass_on

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

# A task that fails is tried so often in all, as on a cluster; plain local[N] gives up at once.
TASK_ATTEMPTS: Final = 4
LOCAL_MASTER: Final = f"local[*,{TASK_ATTEMPTS}]"

LOOPBACK: Final = "127.0.0.1"

SETTINGS: Final[Mapping[str, str]] = {
    # Sockets that other users of the machine cannot connect to, and that save about 40 ms a micro-batch.
    "spark.python.unix.domain.socket.enabled": "true",
    # Connections to hubs are kept in the workers.
    "spark.python.worker.reuse": "true",
    # Times of events are in UTC; so is what is shown of them.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # By rows alone (10,000), events of 1 MB would make batches of 10 GB.
    "spark.sql.execution.arrow.maxBytesPerBatch": "16m",
    "spark.log.level": "WARN",
}
"""What a session of any kind gets."""

LOCAL_SETTINGS: Final[Mapping[str, str]] = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    # The default starts some 40 processes a micro-batch to write its logs: this, and no files of checksums, make 15 ms
    # of 70. It is for folders of this machine, which is where a session without a cluster keeps its checkpoints.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # Each of Spark's 200 would cost a task, and files of state, in every micro-batch that shuffles.
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
}
"""What a session without a cluster gets in addition."""

# Settings that have an effect only where Java is started.
_AT_START: Final = ("spark.master", "spark.driver.", "spark.jars", "spark.files", "spark.archives", "spark.submit")
# Where Java would print to by itself.
_STANDARD_ERROR: Final = 2

LAST_WORDS_SECONDS_MAX: Final = 5.0
"""How long a Java that ended at once is listened to: what it said is there already."""

_LOCAL: Final = re.compile(r"local(?:\[(?P<cores>[^\],]+)(?P<attempts>,[^\]]+)?\])?")


def session(app_name: str = "hubline", *, master: str | None = None, **config: object) -> SparkSession:
    """A session in which ``format("eventhubs")`` is known, with the settings that were measured to matter.

        spark = hubline.spark.session("billing", **{"spark.sql.shuffle.partitions": 4})

    ``config`` is any of Spark's settings; it wins over ours, as do ``spark-defaults.conf`` and what spark-submit was
    given, but for redaction: expressions of your own are joined to ours, and a setting that is a
    `hubline.secrets.Secret` is hidden by its name. Without a ``master`` anywhere it runs on this
    machine; a local one that does not say how often a task is tried (``local[2]``) gets 4 attempts. Java is
    looked for first, see :func:`~hubline.spark.sessions.java.find_java`.

    A session that runs already is given back if it has the settings asked for; otherwise ConfigError names those that
    differ, since Spark would ignore them in silence.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    given = _given(app_name, master, config)
    secrets = [name for name, value in config.items() if isinstance(value, Secret)]
    if is_session_running():
        running = SparkSession.builder.getOrCreate()
        _require_same(running, given)
        return _prepared(running)
    if "spark.master" not in given and not _has_master():
        given["spark.master"] = LOCAL_MASTER
    with _launch_environment(given):
        with _uninterrupted():
            conf = _completed(_started_with(given, secrets), given, secrets)
        # Each step by itself: an interrupt waits for the end of one alone. Java ends with this process.
        with _uninterrupted():
            SparkContext.getOrCreate(conf)
    with _uninterrupted():  # and in the end of the second Spark has put something in its place
        spark = SparkSession.builder.config(conf=conf).getOrCreate()
        if _LOCAL.fullmatch(str(spark.sparkContext.master)) and not conf.contains(_FILES):
            write_no_checksums(spark)
        return _prepared(spark)


_FILES: Final = "spark.hadoop.fs.file.impl"


def _given(app_name: str, master: str | None, config: Mapping[str, object]) -> dict[str, str]:
    """What the caller asked for, as Spark takes it."""
    for name, value in config.items():
        if not name.startswith("spark."):
            raise ConfigError(f'{name} is no setting of Spark: their names start with "spark.", as in spark.ui.enabled')
        if not isinstance(value, str | int | float | Secret):
            raise ConfigError(f"{name} is text, a number, True or False, and not {type(value).__name__}")
    given = {name: _as_text(value) for name, value in config.items()}
    given["spark.app.name"] = app_name
    if master := master or given.get("spark.master"):
        given["spark.master"] = _with_attempts(master)
    return given


def _as_text(value: object) -> str:
    if isinstance(value, Secret):
        return value.reveal()
    return str(value).lower() if isinstance(value, bool) else str(value)


def _with_attempts(master: str) -> str:
    match = _LOCAL.fullmatch(master)
    if match is None or match["attempts"]:
        return master
    return f"local[{match['cores'] or 1},{TASK_ATTEMPTS}]"


def _has_master() -> bool:
    """Whether Spark itself knows where to run, from spark-submit or in its files."""
    in_arguments = "--master" in os.environ.get("PYSPARK_SUBMIT_ARGS", "")
    in_file = re.search(r"^\s*spark\.master\b", _defaults_file(), re.MULTILINE)
    return _is_submitted() or in_arguments or in_file is not None


def _is_submitted() -> bool:
    """Whether spark-submit started this program: then Java runs already."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _defaults_file() -> str:
    """The text of spark-defaults.conf, or nothing."""
    folder = os.environ.get("SPARK_CONF_DIR") or str(Path(os.environ.get("SPARK_HOME", ""), "conf"))
    try:
        return Path(folder, "spark-defaults.conf").read_text(errors="replace")
    except OSError:
        return ""


@contextmanager
def _launch_environment(given: Mapping[str, str]) -> Iterator[None]:
    """The environment that Spark starts in. What the user has set stays as it is."""
    if _is_submitted():
        yield
        return
    java = find_java()
    with java_home(java) as home:
        # Otherwise workers run on whichever python3 comes first, here and on the nodes, which may have no hubline.
        wanted = {"JAVA_HOME": str(home), "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}
        is_local = _LOCAL.fullmatch(given.get("spark.master", "")) is not None
        if (options := java_options(java, given, _defaults_file(), is_local=is_local)) is not None:
            wanted[OPTIONS_VARIABLE] = options
        if is_local and "PYSPARK_PYTHON" not in os.environ and _is_installed_as_files():
            wanted |= {"PYSPARK_PYTHON": str(_PYTHON), "HUBLINE_SPARK_PYTHON": sys.executable}
        if is_local:
            # The user interface goes by this alone: it would listen on every address of the machine.
            wanted["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", LOOPBACK)
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


# Starts workers sooner, see there; on machines that have a shell.
_PYTHON: Final = Path(__file__).with_name("python")


def _is_installed_as_files() -> bool:
    """Whether workers, too, find Spark's Python code where this process has it from."""
    import pyspark
    from pyspark.find_spark_home import _find_spark_home

    is_runnable = os.name == "posix" and os.access(_PYTHON, os.X_OK)
    return is_runnable and Path(pyspark.__file__).parent == Path(_find_spark_home())


_started: dict[str, str] = {}


def _started_with(given: Mapping[str, str], secrets: Collection[str]) -> SparkConf:
    """Starts Java, if it does not run yet, and gives its options: by ``given``, spark-defaults.conf, spark-submit.

    What looks like a secret is not given on the command line, where every user of the machine could read it, unless it
    counts nowhere else.
    """
    from pyspark import SparkConf

    if not is_java_running():
        _started.update(_options_at_start(given, secrets))
        with _passed_on() as stderr:
            start_java(_started, stderr=stderr)
    forgotten = _started.keys() - given.keys()  # asked for by a session that is no more
    forget_settings(forgotten)
    for name in forgotten:
        del _started[name]
    return SparkConf()


_PUT_OFF: Final = b"interrupted: stopping as soon as Spark's Java process can be stopped; again, to stop at once\n"


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Puts an interrupt off to its end, some seconds at most, and says so at once. A second one is not put off.

    Spark would remove the file by which Java tells where it listens; Java, which cannot write it, would run for ever.
    And a call to Java that is interrupted prints more than anybody wants to read.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_asked = False

    def put_off(number: int, _: object) -> None:
        nonlocal is_asked
        if is_asked:
            signal.signal(number, before)
            signal.raise_signal(number)
        is_asked = True
        os.write(_STANDARD_ERROR, _PUT_OFF)  # not by a file of Python's, whose lock the interrupted code may hold

    before = signal.signal(signal.SIGINT, put_off) or signal.SIG_DFL
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is put_off:  # and not what Spark has put there for its jobs
            signal.signal(signal.SIGINT, before)
    if is_asked:
        signal.raise_signal(signal.SIGINT)


@contextmanager
def _passed_on() -> Iterator[int]:
    """Where Java is to print to, for as long as it runs. Where it does not start, what it said is printed first."""
    source, target = os.pipe()
    thread = pass_on(source, _STANDARD_ERROR)
    try:
        yield target
    except BaseException:
        os.close(target)
        thread.join(LAST_WORDS_SECONDS_MAX)
        raise
    os.close(target)


def _options_at_start(given: Mapping[str, str], secrets: Collection[str]) -> dict[str, str]:
    own = given.get("spark.redaction.regex")
    return {
        name: value
        for name, value in given.items()
        if name.startswith(_AT_START) or not (name in secrets or is_hidden(name, value, given=own))
    }


def _completed(conf: SparkConf, given: Mapping[str, str], secrets: Collection[str]) -> SparkConf:
    """The settings of the user, and ours where the user has none."""
    settled = {**dict(conf.getAll()), **given}
    settled["spark.master"] = _with_attempts(settled.get("spark.master", LOCAL_MASTER))
    ours = {**SETTINGS, **(LOCAL_SETTINGS if _LOCAL.fullmatch(settled["spark.master"]) else {})}
    return conf.setAll(list({**ours, **settled, **hiding(settled, secrets)}.items()))


def _require_same(running: SparkSession, given: Mapping[str, str]) -> None:
    """Refuses settings that the running session does not have. Their values are not shown: they may be secrets."""
    wanted = {name: value for name, value in given.items() if name not in (*HIDING, "spark.app.name")}
    if other := sorted(name for name, value in wanted.items() if running.conf.get(name, None) != value):
        raise ConfigError(
            f"a Spark session runs already, with other settings for {', '.join(other)}: stop it, or leave them out"
        )
    if shows := sorted(name for name, ours in HIDING.items() if ours not in (running.conf.get(name, None) or "")):
        raise ConfigError(
            f"a Spark session runs already that would show secrets ({', '.join(shows)}): stop it first, or keep it and "
            "register the source in it, with spark.dataSource.register(hubline.spark.EventHubs)"
        )


# What Spark tells the Python processes of a streaming source.
_FILLED_IN: Final = ("SPARK_LOCAL_DIRS", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_PYTHON_RUNTIME")


def _prepared(spark: SparkSession) -> SparkSession:
    from hubline.spark.source.data_source import EventHubs

    # Queries that start at the same time share one map of these, which Spark fills in without a lock: two that put new
    # names into it may leave it broken, and then no task of any query can be read again. Names that are there are safe.
    for name in _FILLED_IN:
        spark.sparkContext.environment.setdefault(name, "")
    # Goes with the source to Spark's planning processes, which know nothing else of the cluster.
    spark.sparkContext.environment[TASKS_VARIABLE] = str(spark.sparkContext.defaultParallelism)
    register(spark, EventHubs)
    return spark
