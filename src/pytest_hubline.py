"""The pytest plugin of hubline: fixtures for tests of programs that use it. `pip install hubline` brings it.

It is a module beside the package, and imports nothing of the package until a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from hubline.testing import TestEndpoint, TestHubs, TestSinks


@pytest.fixture
def hubline_hub(tmp_path: Path) -> TestHubs:
    """Make local hubs for a test: hubline_hub("raw", partitions=2, events=[...]).address."""
    from hubline.testing import TestHubs

    return TestHubs(tmp_path / "hubs")


@pytest.fixture
def hubline_endpoint(tmp_path: Path) -> Iterator[TestEndpoint]:
    """Serve the hubs of a test over AMQP: hubline_endpoint.connection_string(hub)."""
    from hubline.testing import TestEndpoint

    endpoint = TestEndpoint(tmp_path / "hubs")
    yield endpoint
    endpoint.close()


@pytest.fixture
def hubline_store(tmp_path: Path) -> str:
    """The address of a fresh checkpoint store, a SQLite file."""
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def hubline_sink(tmp_path: Path) -> Iterator[TestSinks]:
    """Make SQL sinks on SQLite for a test: hubline_sink("readings").rows()."""
    from hubline.testing import TestSinks

    sinks = TestSinks(tmp_path / "results.db")
    yield sinks
    sinks.close()
