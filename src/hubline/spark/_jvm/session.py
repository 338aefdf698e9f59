"""Java's side of a Spark session: its start, the formats that it knows, and settings that no option has."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


END_SECONDS_MAX: Final = 2.0
"""How long Java may take to end by itself."""


def is_java_running() -> bool:
    from pyspark import SparkContext

    return SparkContext._gateway is not None


def is_session_running() -> bool:
    from pyspark import SparkContext

    return SparkContext._active_spark_context is not None


class StartingJava:
    """The Java process of a new session, which can be ended before Spark has started in it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ended = False

    def start(self, settings: Mapping[str, str], *, stderr: int) -> None:
        """Starts Java with these settings. It prints to `stderr`, a file descriptor."""
        from pyspark import SparkConf, SparkContext, java_gateway

        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        opened: Any = java_gateway
        # PySpark itself hands the process over no sooner than Java is ready.
        before, opened.Popen = opened.Popen, self._open
        try:
            gateway = java_gateway.launch_gateway(conf, {"stderr": stderr})  # type: ignore[no-untyped-call]
        finally:
            opened.Popen = before
        SparkContext._ensure_initialized(gateway=gateway)

    def end(self) -> None:
        """Ends it soon. What waits for it fails. It may be called by a handler of signals, while it starts."""
        self._is_ended = True
        if self._process is not None:
            self._process.terminate()  # and so Java removes its temporary files
            late = threading.Timer(END_SECONDS_MAX, self._process.kill)
            late.daemon = True
            late.start()

    def forget(self) -> None:
        """Lets PySpark start another one."""
        from pyspark import SparkContext

        SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
        if self._process is not None:
            self._process.wait()

    def _open(self, *args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        self._process = subprocess.Popen(*args, **kwargs)
        if self._is_ended:
            self.end()
        return self._process


def forget_settings(names: Collection[str]) -> None:
    """Takes settings back that Java was started with: a new session would find them."""
    from pyspark import SparkContext

    jvm: Any = SparkContext._jvm
    for name in names:
        jvm.java.lang.System.clearProperty(name)


def write_no_checksums(spark: SparkSession) -> None:
    """Keeps Java from writing a hidden file beside each one in a folder of this machine, by processes of its own.

    Not by another kind of file system: RocksDB, where Spark keeps state by key, counts on this one.
    """
    jvm: Any = spark.sparkContext._jvm
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    jvm.org.apache.hadoop.fs.FileSystem.getLocal(configuration).setWriteChecksum(False)


def tell_planners(spark: SparkSession, name: str, variables: Mapping[str, str]) -> None:
    """Gives the processes in which Spark plans what a format reads and writes these environment variables.

    There is a public way for formats that are registered. Those that Spark finds by itself cannot be, before 4.2.
    """
    known = spark._jsparkSession.sessionState().dataSourceManager()
    if not known.dataSourceExists(name):
        return
    environment = known.lookupDataSource(name).dataSourceCls().envVars()
    for variable, value in variables.items():
        environment.put(variable, value)


def make_active(spark: SparkSession) -> None:
    """Makes this session the thread's: Spark looks sources up in that one."""
    jvm: Any = spark.sparkContext._jvm
    jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(spark._jsparkSession)


def mute_loggers(spark: SparkSession, names: Collection[str]) -> None:
    """Keeps classes of Java from logging anything, until Java ends."""
    jvm: Any = spark.sparkContext._jvm
    log4j = jvm.org.apache.logging.log4j
    for name in names:
        log4j.core.config.Configurator.setLevel(name, log4j.Level.OFF)
