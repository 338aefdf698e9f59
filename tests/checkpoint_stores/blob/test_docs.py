"""The pages on blob stores: their programs run as they stand there, against the endpoint and Azurite."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hubline.adapters import open_store
from hubline.addresses.blob_address import EMULATOR_KEY
from hubline.model.keys import GroupKey
from hubline.model.ownership import Checkpoint
from tests.emulator.serving import serving
from tests.emulator.test_python_sdk import send

pytestmark = pytest.mark.xdist_group("azurite")

PAGES = Path(__file__).parents[3] / "docs" / "how-to"
PATIENCE_SECONDS = 60.0


@pytest.mark.parametrize("page", ["connect/official-sdks", "process/keep-partitions-in-place"])
def test_the_program_of_the_page_reads_the_hub(container: str, tmp_path: Path, page: str) -> None:
    text = (PAGES / f"{page}.md").read_text()
    (program,) = re.findall(r'^```python title="app.py"\n(.*?)^```$', text, re.DOTALL | re.MULTILINE)
    with serving(tmp_path, "--create", "orders:2") as server:
        hub = server.connection_string("orders")
        for partition in ("0", "1"):
            send(hub, ["x"] * 10, partition_id=partition)
        group = GroupKey(f"localhost:{server.port}", "orders", "$Default")
        environment = {
            **os.environ,
            "ORDERS_HUB": hub,
            "ORDERS_STORE": f"{container}?key=env:STORAGE_KEY",
            "STORAGE_KEY": EMULATOR_KEY.reveal(),
        }
        process = subprocess.Popen([sys.executable, "-W", "error", "-c", program], env=environment, cwd=tmp_path)
        try:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while [one.sequence_number for one in asyncio.run(checkpoints(container, group))] != [9, 9]:
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.1)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_SECONDS) == 0
        finally:
            process.kill()
            process.wait()


async def checkpoints(address: str, group: GroupKey) -> list[Checkpoint]:
    store = open_store(address)
    try:
        return await store.list_checkpoints(group)
    finally:
        await store.close()
