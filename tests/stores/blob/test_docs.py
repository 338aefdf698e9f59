"""The page on sharing a group with the SDKs: its program runs as it stands there, against the endpoint and Azurite."""

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

from hubline.config import EMULATOR_KEY
from hubline.model import Checkpoint, GroupKey
from tests.endpoint.serving import serving
from tests.endpoint.test_python_sdk import send
from tests.stores.blob.support import blob_store

pytestmark = pytest.mark.xdist_group("azurite")

PAGE = (Path(__file__).parents[3] / "docs/how-to/share-with-the-official-sdks.md").read_text()
PATIENCE_SECONDS = 60.0


def test_the_program_of_the_page_reads_the_hub(container: str, tmp_path: Path) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    with serving(tmp_path, "--hub", "orders:2") as server:
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


async def checkpoints(container: str, group: GroupKey) -> list[Checkpoint]:
    store = blob_store(container)
    try:
        return await store.list_checkpoints(group)
    finally:
        await store.close()
