"""Locks on partitions: leases of Azure Blob Storage on the ownership blobs, for owners that keep their partitions.

While a lock lasts, the service refuses every write of the blob that does not name the lock's id: nobody can take the
partition, whatever their clock or their code. A lock belongs to an owner id. An owner that restarts under its id
therefore takes its locks back at once, and the blob's ETag tells its former process from it. The steps of an owner, and
what dying between them leaves:

    claim    1. acquire the lock   2. write the owner and the epoch
             between: a lock that nobody uses until it expires; the record names the former owner
    first    1. make the blob, with the owner in it   2. acquire the lock
             between: a record without a lock, of an owner that does not renew: free after a lease, as without locks
    release  1. write that nobody owns the partition   2. release the lock
             between: a free partition that nobody can claim until the lock expires
    reset    1. break the lock   2. write the record in the next epoch
             between: an owner that finds at its next renewal that its lock is gone, and loses the partition
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from hubline.checkpoint_stores.blob.client import Container
from hubline.checkpoint_stores.blob.http import BULK_REQUESTS_MAX
from hubline.checkpoint_stores.blob.layout import ownership_blob
from hubline.concurrency import map_bounded
from hubline.model.keys import PartitionKey
from hubline.model.ownership import Ownership


def lock_id(key: PartitionKey, owner_id: str) -> str:
    """The id of an owner's lock, which Blob Storage wants to be a UUID."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{key}#{owner_id}"))


class PartitionLocks:
    """Acquires, renews and releases the locks of partitions. Raises StoreUnavailable and StoreError."""

    def __init__(self, container: Container, *, seconds: int) -> None:
        self._container = container
        self._seconds = seconds

    async def acquire(self, key: PartitionKey, owner_id: str, *, etag: str) -> bool:
        """Whether the owner has the lock now. A lock that it had already starts again."""
        return await self._container.acquire_lease(
            ownership_blob(key), lock_id(key, owner_id), seconds=self._seconds, etag=etag
        )

    async def renew(self, owned: Sequence[Ownership]) -> list[Ownership]:
        """The partitions whose lock their owner still has. One that was broken is lost, also if nobody has it."""

        async def renew_one(one: Ownership) -> bool:
            return await self._container.renew_lease(ownership_blob(one.key), lock_id(one.key, one.owner_id))

        are_renewed = await map_bounded(renew_one, owned, max_concurrent=BULK_REQUESTS_MAX)
        return [one for one, is_renewed in zip(owned, are_renewed, strict=True) if is_renewed]

    async def release(self, key: PartitionKey, owner_id: str) -> None:
        """Ends the owner's lock. One that has expired, or is another's by now, stays as it is."""
        await self._container.release_lease(ownership_blob(key), lock_id(key, owner_id))
