"""What tests of several folders share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from hubline.secrets import Secret
from tests.support.azurite import Azurite, AzuriteMissing, azurite
from tests.support.certificates import self_signed
from tests.support.java import Archive
from tests.support.postgres import PostgresServer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from tests.docs.player import SparkShell


# Java starts, does little and ends here: compiled lightly, with the plainest collector, it takes half the time of the
# processors. Read by Spark's scripts, for drivers, for what launches them, and for masters and workers.
QUICK_JAVA = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
JAVA_VARIABLES = ("SPARK_SUBMIT_OPTS", "SPARK_LAUNCHER_OPTS", "SPARK_DAEMON_JAVA_OPTS")


# No test fails for being slow: others are at work here, too, and the first one in a process imports what it needs.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


# PySpark 4.0 and 4.1 leave sockets to Java for the garbage collector to close.
LEAVES_SOCKETS = ("4.0", "4.1")


def pytest_configure(config: pytest.Config) -> None:
    if version("pyspark").startswith(LEAVES_SOCKETS):
        config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")
        config.addinivalue_line("filterwarnings", "ignore:Exception ignored in. <socket:")
    for name in JAVA_VARIABLES:
        os.environ.setdefault(name, QUICK_JAVA)
    if config.getoption("numprocesses", None):  # not in the workers themselves: they inherit it
        archive = Archive()
        config.add_cleanup(archive.close)
        for name in ("SPARK_SUBMIT_OPTS", "SPARK_DAEMON_JAVA_OPTS"):
            os.environ[name] += f" {archive.options}"


LONG = frozenset(
    f"test_{name}.py"
    for name in (
        "chaos",
        "cluster",
        "connect",
        "declarative",
        "examples",
        "examples_run",
        "figures",
        "kills",
        "older_spark",
        "processes",
        "python_sdk",
        "sdk",
        "serve",
        "wheel",
    )
)
"""Files of tests that take seconds each, most of them waiting: begun last, they would leave the processors idle."""


@pytest.hookimpl(wrapper=True, tryfirst=True)  # marks come before pytest-xdist looks at them, and the order after all
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Two workers of a parallel run get all that need a Spark session: starting one takes longer than most tests."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            room = "pipeline" if "pipeline" in item.path.parts else "spark"
            item.add_marker(pytest.mark.xdist_group(f"session-{room}"))
    yield
    items.sort(key=lambda item: item.path.name not in LONG)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A Spark session with two cores, one for all tests: starting one takes longer than most of them."""
    import hubline.spark
    from tests.spark import planted

    folder = tmp_path_factory.mktemp("spark")
    config = {
        **planted.settings(folder),
        "spark.sql.shuffle.partitions": 2,
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "scratch"),
        "spark.log.level": "ERROR",
    }
    with pytest.MonkeyPatch.context() as environment:  # that of Java, and of the processes below it
        environment.setenv("SSL_CERT_FILE", str(self_signed(folder)[0]))
        session = hubline.spark.session("hubline-tests", master="local[2]", **config)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def spark_shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], SparkShell]]:
    """Starts the process for pages and examples with Spark, when the first of them needs it."""
    from tests.docs.player import SparkShell

    shells: list[SparkShell] = []

    def shell() -> SparkShell:
        if not shells:
            shells.append(SparkShell(tmp_path_factory.mktemp("pages") / "spark"))
        return shells[0]

    yield shell
    for each in shells:
        each.close()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A real PostgreSQL server, one for each worker of a test run."""
    with PostgresServer.start(syncs=False) as server:
        yield server


@pytest.fixture
def postgres_database(postgres_server: PostgresServer) -> Iterator[Secret]:
    """The address of a fresh, empty database."""
    conninfo = postgres_server.new_database()
    yield conninfo
    postgres_server.drop_database(conninfo)


@pytest.fixture(scope="session")
def azurite_server() -> Iterator[Azurite]:
    """Blob Storage, one for each worker of a test run."""
    try:
        with azurite() as server:
            yield server
    except AzuriteMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def container(azurite_server: Azurite) -> str:
    """The address of a fresh, empty container."""
    return azurite_server.new_container()
