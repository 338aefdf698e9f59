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
    tell_planners,
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
    """Start a Spark session with settings that make micro-batches fast and hide secrets.

    Any other session reads and writes `format("eventhubs")`, too: Spark finds it where hubline is installed.

    Your settings win over hubline's, as do `spark-defaults.conf` and the arguments of spark-submit. Only redaction is
    joined: hubline hides secrets in addition to what you hide. If a session is already running with the same settings,
    you get that one.

    Args:
        app_name: The name of the application. Default: `"hubline"`.
        master: Spark's master, such as `"local[2]"`. By default the one that is configured, or this machine. Tasks of a
            local master get 4 attempts unless it says otherwise.
        config: Any of Spark's settings. The value of a setting that is a `hubline.secrets.Secret` is never shown.

    Returns:
        The session.

    Raises:
        ConfigError: A session is already running with other settings, which Spark would silently ignore. Or there is no
            Java 17 or later.

    Example:
        spark = hubline.spark.session("billing", **{"spark.sql.shuffle.partitions": 4})
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
            'first, or use it as it is: Spark finds format("eventhubs") in any session.'
        )


# What Spark tells the Python processes of a streaming source.
_FILLED_IN: Final = ("SPARK_LOCAL_DIRS", "SPARK_AUTH_SOCKET_TIMEOUT", "SPARK_BUFFER_SIZE", "SPARK_PYTHON_RUNTIME")


def _prepared(spark: SparkSession) -> SparkSession:
    from hubline.spark.source.data_source import EventHubs

    environment = spark.sparkContext.environment  # it goes with sources that are registered, as those of stages
    # Queries that start at the same time share one map of these, which Spark fills in without a lock: two that put new
    # names into it may leave it broken, and then no task of any query can be read again. Names that are there are safe.
    for name in _FILLED_IN:
        environment.setdefault(name, "")
    # Spark's planning processes know nothing else of the cluster.
    environment[TASKS_VARIABLE] = str(spark.sparkContext.defaultParallelism)
    tell_planners(spark, EventHubs.name(), {name: environment[name] for name in (*_FILLED_IN, TASKS_VARIABLE)})
    return spark
