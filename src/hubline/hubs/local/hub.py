"""The local hub as the rest of hubline sees it: :class:`~hubline.ports.Hub` over a folder.

SQLite blocks, so every call runs in one of a few threads of the hub object. A waiting receiver holds no thread: it
waits for the partition's stamp to change (see change_signal.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from hubline.addresses.names import validate_group_name
from hubline.errors import ConfigError
from hubline.hubs.local.hub_folder import HubFolder, Retention
from hubline.hubs.local.open_hub import OpenHub
from hubline.hubs.local.receiver import LocalReceiver
from hubline.hubs.local.sender import LocalSender
from hubline.model.hubs import HubProperties, PartitionProperties
from hubline.model.positions import Position

# Epochs are signed 64-bit numbers in the service's protocol, and in SQLite.
EPOCH_MAX: Final = 2**63 - 1


class LocalHub:
    """A hub in a folder of this machine. Any number of processes may use it at the same time.

    `hubline.open_hub("local:PATH/NAME")` makes one. It reads no file until the first call, which raises HubNotFound if
    there is no such hub. Use an object from one event loop at a time.

    Args:
        root: The folder.
        name: The name of the hub.
        clock: Gives the time of day in seconds, by which events are stamped and expire. Default: the machine's clock.
    """

    def __init__(self, root: Path | str, name: str, *, clock: Callable[[], float] = time.time) -> None:
        self._open_hub = OpenHub(HubFolder(root, name), clock)

    @property
    def namespace(self) -> str:
        return self._open_hub.folder.namespace

    @property
    def name(self) -> str:
        return self._open_hub.folder.name

    async def describe(self) -> HubProperties:
        """Return the hub's partitions and when it was created. HubNotFound: there is no such hub."""
        meta = await self._open_hub.threads.run(self._open_hub.folder.meta)
        return HubProperties(self.namespace, self.name, meta.partition_ids, meta.created_at)

    async def describe_partition(self, partition: str) -> PartitionProperties:
        """Return the first and last sequence numbers of a partition.

        Args:
            partition: The id of the partition.

        Raises:
            PartitionNotFound: The hub has no such partition.
        """
        return await self._open_hub.threads.run(self._open_hub.describe_partition, partition)

    async def retention(self) -> Retention:
        """How long the hub keeps events, and how many bytes of them."""
        return (await self._open_hub.threads.run(self._open_hub.folder.meta)).retention

    async def apply_retention(self) -> int:
        """Removes what retention no longer keeps, in every partition; returns how many events that were.

        Appending does the same at intervals. A partition that gets no more events needs this to be emptied.
        """
        return await self._open_hub.threads.run(self._open_hub.apply_retention)

    async def open_receiver(
        self, partition: str, *, group: str, position: Position, epoch: int | None = None
    ) -> LocalReceiver:
        """Start to read a partition.

        Args:
            partition: The id of the partition.
            group: The name of the consumer group.
            position: Where to start.
            epoch: Readers of the group with an equal or lower epoch, or with none, are disconnected. Default: None.

        Raises:
            ReaderRefused: A reader with a higher epoch reads the partition.
            PositionInvalid: Starting there would skip events, or read those of another hub.
        """
        group = validate_group_name(group)
        if epoch is not None and not 0 <= epoch <= EPOCH_MAX:
            raise ConfigError(f"an epoch must be a number from 0 to {EPOCH_MAX}, not {epoch}.")
        return await self._open_hub.threads.run(self._open_receiver, partition, group, position, epoch)

    async def open_sender(self) -> LocalSender:
        """Start to send. Prefer `hubline.Producer`, which splits large sends and retries."""
        await self._open_hub.threads.run(self._open_hub.folder.meta)  # that the hub is missing shows here already
        return LocalSender(self._open_hub)

    async def close(self) -> None:
        """Waits for calls that run, and lets go of every partition. Receivers that wait get an error."""
        await self._open_hub.close()

    def _open_receiver(self, partition: str, group: str, position: Position, epoch: int | None) -> LocalReceiver:
        meta, incarnation = self._open_hub.current()
        index = self._open_hub.index(meta, partition)
        opened = incarnation.partition(index).open_reader(
            group,
            position,
            epoch=epoch,
            liveness_id=None if epoch is None else incarnation.liveness_id(),
            is_alive=incarnation.is_alive,
        )
        if epoch is not None:
            # Dying before this line tells nobody of the takeover, but then nobody holds the partition any more.
            incarnation.signal.notify_taken(index)
        return LocalReceiver(self._open_hub, incarnation, index, opened)
