"""What a process has open of one incarnation of a hub: from its creation to its deletion, under one tag."""

from __future__ import annotations

import threading

from hubline.errors import HubError, HubUnavailable
from hubline.hubs.local.change_signal import Signal
from hubline.hubs.local.hub_folder import PARTITIONS_MAX, HubFolder
from hubline.hubs.local.partition_file import Partition
from hubline.hubs.local.reader_lock import Liveness, is_alive
from hubline.hubs.local.sqlite_files import Connections, Where, damaged, hub_errors


class HubReplaced(HubUnavailable):
    """The hub was deleted and another one of its name was created. Looking at the hub again finds that one."""


class Incarnation:
    """The partitions, the signal and the liveness lock of a hub while it keeps its tag.

    Methods block, and any thread may call them; the signal says by itself what it allows.
    """

    def __init__(self, folder: HubFolder, tag: int, connections: Connections) -> None:
        self.tag = tag
        self._folder = folder
        self._connections = connections
        self._liveness: Liveness | None = None
        self._lock = threading.Lock()
        with hub_errors(Where(folder.address, folder.signal_path)):
            self.signal = Signal(folder.signal_path, PARTITIONS_MAX)

    def partition(self, index: int) -> Partition:
        path = self._folder.partition_path(self.tag, index)
        where = Where(self._folder.address, path, str(index))
        return Partition(self._connections, where, tag=self.tag, missing=self._missing)

    def liveness_id(self) -> str:
        """Stands for this hub object in the records of who reads what."""
        with self._lock, hub_errors(Where(self._folder.address, self._folder.readers_path)):
            if self._liveness is None:
                self._liveness = Liveness(self._folder.readers_path)
            return self._liveness.id

    def is_alive(self, liveness_id: str) -> bool:
        return is_alive(self._folder.readers_path, liveness_id)

    def let_go(self) -> None:
        """Ends what this hub object holds as a reader."""
        if self._liveness is not None:
            self._liveness.close()

    def _missing(self, where: Where) -> HubError:
        """What it means that a partition's file is not there."""
        if self._folder.meta().tag == self.tag:
            return damaged(where, "the file is missing")
        return HubReplaced(
            f"hub {where.hub} was deleted and re-created in the meantime. Open it again.",
            hub=where.hub,
            partition=where.partition,
        )
