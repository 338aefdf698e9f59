"""One server for all tests of a worker: each makes hubs of its own in its folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.emulator.serving import Server, serving


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that checks keys."""
    data = tmp_path_factory.mktemp("served")
    with serving(data, "--create", "first:1") as running:
        yield running


@pytest.fixture
def hub(server: Server, request: pytest.FixtureRequest) -> str:
    """The connection string of an empty hub with 4 partitions."""
    name = str(request.node.name).partition("[")[0].replace("_", "-")[:60].strip("-")
    return server.create(f"{name}-{abs(hash(request.node.nodeid)) % 10**8}")
