"""The page on connecting to Azure: its program runs as it stands there, against the endpoint."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from pathlib import Path

from hubline.checkpoint_stores.sqlite import SqliteStore
from hubline.model.events import new_events
from hubline.model.keys import GroupKey
from tests.hubs.eventhubs.support import GROUP, connected, connection_string, new_hub, serving

PAGE = (Path(__file__).parents[3] / "docs/how-to/connect/azure.md").read_text()


def test_the_program_of_the_page_reads_the_hub(tmp_path: Path) -> None:
    (program,) = re.findall(r'^```python title="app.py"\n(.*?)^```$', PAGE, re.DOTALL | re.MULTILINE)

    async def main() -> int:
        name = await new_hub(tmp_path, 2)
        async with serving(tmp_path) as port, connected(port, name) as hub:
            sender = await hub.open_sender()
            for partition in ("0", "1"):
                await sender.send(new_events(["x"] * 10), partition=partition)
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-W",
                "error",
                "-c",
                program,
                cwd=tmp_path,
                env={**os.environ, "ORDERS_HUB": connection_string(port, name)},
            )
            store = SqliteStore(tmp_path / "state.db")
            key = GroupKey(hub.namespace, hub.name, GROUP)
            async with asyncio.timeout(60):
                while [c.sequence_number for c in await store.list_checkpoints(key)] != [9, 9]:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            await store.close()
            process.send_signal(signal.SIGTERM)
            return await process.wait()

    assert asyncio.run(main()) == 0
