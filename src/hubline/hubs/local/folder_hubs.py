"""The local hubs of a folder, for a server of all of them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hubline.hubs.local.admin import list_hubs
from hubline.hubs.local.hub import LocalHub
from hubline.ports import Hub


class FolderHubs:
    """The hubs of a folder, opened when they are first asked for. Case does not matter in their names, as it does not
    in the service's."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._open: dict[str, Hub] = {}

    async def find(self, name: str) -> Hub | None:
        key = name.lower()
        if key not in self._open:
            # A hub may be created by another process while this one runs.
            there = {existing.lower(): existing for existing in await list_hubs(self._root)}
            if key not in there:
                return None
            self._open.setdefault(key, LocalHub(self._root, there[key]))
        return self._open[key]

    async def close(self) -> None:
        await asyncio.gather(*(hub.close() for hub in self._open.values()))
