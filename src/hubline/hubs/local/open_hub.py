"""What a hub object, its senders and its receivers share: threads, connections, and the hub's incarnations."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hubline.errors import PartitionNotFound
from hubline.hubs.local.group_append import Appends
from hubline.hubs.local.hub_folder import HubFolder, Meta
from hubline.hubs.local.incarnation import Incarnation
from hubline.hubs.local.sqlite_files import Connections
from hubline.hubs.local.thread_runner import Threads
from hubline.model.hubs import PartitionProperties


class OpenHub:
    """``close`` is for the event loop; the other methods block, and are for the threads."""

    def __init__(self, folder: HubFolder, clock: Callable[[], float]) -> None:
        self.folder = folder
        self.threads = Threads(folder.address)
        self.appends = Appends(self.threads, clock)
        self._connections = Connections()
        self._incarnations: dict[int, Incarnation] = {}
        self._incarnations_lock = threading.Lock()

    def current(self) -> tuple[Meta, Incarnation]:
        """What the hub is now. Raises HubNotFound."""
        meta = self.folder.meta()
        with self._incarnations_lock:
            if meta.tag not in self._incarnations:
                self._incarnations[meta.tag] = Incarnation(self.folder, meta.tag, self._connections)
            return meta, self._incarnations[meta.tag]

    def index(self, meta: Meta, partition: str) -> int:
        if partition not in meta.partition_ids:
            raise PartitionNotFound(
                f"hub {self.folder.address} has no partition {partition!r}: it has 0 to "
                f"{meta.partition_count - 1}. Choose one of these.",
                hub=self.folder.address,
                partition=partition,
            )
        return int(partition)

    def describe_partition(self, partition: str) -> PartitionProperties:
        meta, incarnation = self.current()
        return incarnation.partition(self.index(meta, partition)).describe()

    def apply_retention(self) -> int:
        meta, incarnation = self.current()
        return sum(self.appends.trim(incarnation, index, meta.retention) for index in range(meta.partition_count))

    async def close(self) -> None:
        self.threads.refuse_more()
        for incarnation in list(self._incarnations.values()):
            incarnation.signal.wake_all()
        await self.threads.close(self._let_go)
        for incarnation in self._incarnations.values():
            incarnation.signal.close()
        self._incarnations.clear()

    def _let_go(self) -> None:
        for incarnation in self._incarnations.values():
            incarnation.let_go()
        self._connections.close()
