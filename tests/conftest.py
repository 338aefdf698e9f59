"""What tests of several folders share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hubline.config import Secret
from tests.support.azurite import Azurite, AzuriteMissing, azurite
from tests.support.postgres import PostgresServer


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A real PostgreSQL server, one for each worker of a test run."""
    with PostgresServer.start() as server:
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
