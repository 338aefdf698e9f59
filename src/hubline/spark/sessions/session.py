"""A Spark session with the settings that matter for hubs: quick micro-batches, retries, and hidden secrets."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Final

from hubline.addresses.option_checks import checked
from hubline.errors import ConfigError
from hubline.secrets import Secret
from hubline.spark._jvm.session import (
    StartingJava,
    forget_settings,
    is_java_running,
    is_session_running,
    register,
    write_no_checksums,
)
from hubline.spark.sessions.interrupts import interruptible
from hubline.spark.sessions.launch import launch_environment, standard_error_of_java
from hubline.spark.sessions.parallelism import TASKS_VARIABLE
from hubline.spark.sessions.redaction import HIDING
from hubline.spark.sessions.settings import (
    LOCAL_MASTER,
    completed_settings,
    has_master,
    is_local,
    is_submitted,
    requested_settings,
    settings_at_start,
)

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

_FILES: Final = "spark.hadoop.fs.file.impl"


@checked
def session(app_name: str = "hubline", *, master: str | None = None, **config: object) -> SparkSession:
    """A session in which ``format("eventhubs")`` is known, with the settings that were measured to matter.

        spark = hubline.spark.session("billing", **{"spark.sql.shuffle.partitions": 4})

    ``config`` is any of Spark's settings; it wins over ours, as do ``spark-defaults.conf`` and what spark-submit was
    given, but for redaction: expressions of your own are joined to ours, and a setting that is a
    `hubline.secrets.Secret` is hidden by its name. Without a ``master`` anywhere it runs on this
    machine; a local one that does not say how often a task is tried (``local[2]``) gets 4 attempts. Java is
    looked for first, see `find_java`.

    A session that runs already is given back if it has the settings asked for; otherwise ConfigError names those that
    differ, since Spark would ignore them in silence.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    given = requested_settings(app_name, master, config)
    secrets = [name for name, value in config.items() if isinstance(value, Secret)]
    if is_session_running():
        running = SparkSession.builder.getOrCreate()
        _require_same(running, given)
        return _prepared(running)
    if "spark.master" not in given and not has_master():
        given["spark.master"] = LOCAL_MASTER
    java = None if is_java_running() else StartingJava()
    own_java = None if is_submitted() else java  # which spark-submit has started
    with launch_environment(given):
        with interruptible(own_java):
            conf = completed_settings(_started_with(given, secrets, java), given, secrets)
        # Each step by itself: an interrupt that is put off waits for the end of one alone.
        with interruptible(own_java):
            SparkContext.getOrCreate(conf)
    with interruptible(own_java):  # and in the end of the second Spark has put something in its place
        spark = SparkSession.builder.config(conf=conf).getOrCreate()
        if is_local(str(spark.sparkContext.master)) and not conf.contains(_FILES):
            write_no_checksums(spark)
        return _prepared(spark)


# The settings that Java was started with.
_started: dict[str, str] = {}


def _started_with(given: Mapping[str, str], secrets: Collection[str], java: StartingJava | None) -> SparkConf:
    """Starts Java, if it does not run yet, and gives the settings that it has: of ``given``, spark-defaults.conf and
    spark-submit.

    What looks like a secret is not given on the command line, where every user of the machine could read it, unless it
    counts nowhere else.
    """
    from pyspark import SparkConf

    if java is not None:
        _started.clear()
        _started.update(settings_at_start(given, secrets))
        with standard_error_of_java() as stderr:
            java.start(_started, stderr=stderr)
    forgotten = _started.keys() - given.keys()  # asked for by a session that is gone
    forget_settings(forgotten)
    for name in forgotten:
        del _started[name]
    return SparkConf()


def _require_same(running: SparkSession, given: Mapping[str, str]) -> None:
    """Refuses settings that the running session does not have. Their values are not shown: they may be secrets."""
    wanted = {name: value for name, value in given.items() if name not in (*HIDING, "spark.app.name")}
    if other := sorted(name for name, value in wanted.items() if running.conf.get(name, None) != value):
        raise ConfigError(
            f"a Spark session is already running, with other values of {', '.join(other)}. Stop it, or "
            "leave these settings out."
        )
    if shows := sorted(name for name, ours in HIDING.items() if ours not in (running.conf.get(name, None) or "")):
        raise ConfigError(
            f"a Spark session is already running that would show secrets ({', '.join(shows)}). Stop it "
            "first, or keep it and register the source in it, with "
            "spark.dataSource.register(hubline.spark.EventHubs)."
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
