"""What Spark starts in: which Java, which Python, and where Java prints to."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from hubline.spark.sessions.java import find_java, java_home
from hubline.spark.sessions.java_options import OPTIONS_VARIABLE, java_options
from hubline.spark.sessions.settings import LOOPBACK, defaults_file, is_local, is_submitted
from hubline.spark.sessions.stderr_filter import pass_on

log = logging.getLogger("hubline.spark")

STANDARD_ERROR: Final = 2
"""Where Java would print to by itself."""

LAST_WORDS_SECONDS_MAX: Final = 5.0
"""How long a Java that ended at once is listened to: what it said is there already."""

# Starts workers sooner, see there; on machines that have a shell.
PYTHON: Final = Path(__file__).with_name("python")


def require_java() -> None:
    """Raises ConfigError with what to do, if Spark would find no Java to start in."""
    if not is_submitted():
        find_java()


@contextmanager
def launch_environment(given: Mapping[str, str]) -> Iterator[None]:
    """The environment that Spark starts in. What the user has set stays as it is."""
    if is_submitted():
        yield
        return
    java = find_java()
    for other in java.passed_over:
        log.warning("java_passed_over %s chosen=%s", other, java)
    with java_home(java) as home:
        # Otherwise workers run on whichever python3 comes first, here and on the nodes, which may have no hubline.
        wanted = {"JAVA_HOME": str(home), "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable)}
        on_this_machine = is_local(given.get("spark.master", ""))
        if (options := java_options(java, given, defaults_file(), is_local=on_this_machine)) is not None:
            wanted[OPTIONS_VARIABLE] = options
        if on_this_machine and "PYSPARK_PYTHON" not in os.environ and _is_installed_as_files():
            wanted |= {"PYSPARK_PYTHON": str(PYTHON), "HUBLINE_SPARK_PYTHON": sys.executable}
        if on_this_machine:
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


def _is_installed_as_files() -> bool:
    """Whether workers, too, find Spark's Python code where this process has it from."""
    import pyspark
    from pyspark.find_spark_home import _find_spark_home

    is_runnable = os.name == "posix" and os.access(PYTHON, os.X_OK)
    return is_runnable and Path(pyspark.__file__).parent == Path(_find_spark_home())


@contextmanager
def standard_error_of_java() -> Iterator[int]:
    """Where Java is to print to, for as long as it runs. Where it does not start, what it said is printed first."""
    source, target = os.pipe()
    thread = pass_on(source, STANDARD_ERROR)
    try:
        yield target
    except BaseException:
        os.close(target)
        thread.join(LAST_WORDS_SECONDS_MAX)
        raise
    os.close(target)
