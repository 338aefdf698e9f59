"""The pytest plugin, as users have it: docs/how-to/local/test-your-code.md has its fixtures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hubline.errors import HubExists
from hubline.testing import TestHubs, TestSinks

RUN = """
import sys
import pytest
assert pytest.main(["-q", "-p", "no:cacheprovider", "test_nothing.py"]) == 0
print([name for name in sys.modules if name.split(".")[0] in ("hubline", "pytest_hubline")])
"""


def test_the_plugin_costs_nothing_in_tests_that_do_not_use_it(tmp_path: Path) -> None:
    (tmp_path / "test_nothing.py").write_text("def test_nothing(): pass\n")
    said = subprocess.run([sys.executable, "-c", RUN], cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    assert said.endswith("['pytest_hubline']\n")


async def send_within_a_loop(hubline_hub: TestHubs) -> list[bytes]:
    hub = hubline_hub("raw", partitions=2)
    hub.send(["a", {"body": "b", "properties": {"sensor": "7"}}], partition="1")
    hub.send(["c"], partition="0")
    return [event.body for event in hub.events()]


def test_hubs_work_in_async_tests_and_each_name_is_one_hub(hubline_hub: TestHubs) -> None:
    import asyncio

    assert asyncio.run(send_within_a_loop(hubline_hub)) == [b"c", b"a", b"b"]
    with pytest.raises(HubExists):
        hubline_hub("raw")


def test_a_sink_that_was_not_written_to_is_empty(hubline_sink: TestSinks) -> None:
    sink = hubline_sink("results", upsert_key="id")
    assert (sink.rows(), sink.dead_letters()) == ([], [])
