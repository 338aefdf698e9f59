"""One Azurite for all tests of a worker: each has a container of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.azurite import Azurite, AzuriteMissing, azurite


@pytest.fixture(scope="session")
def azurite_server() -> Iterator[Azurite]:
    try:
        with azurite() as server:
            yield server
    except AzuriteMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture
def container(azurite_server: Azurite) -> str:
    """The address of a fresh, empty container."""
    return azurite_server.new_container()
