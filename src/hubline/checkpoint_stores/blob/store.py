"""The checkpoint store in Azure Blob Storage, which the official SDKs of a consumer group may share."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence

from hubline.addresses.blob_address import BlobAddress
from hubline.checkpoint_stores.blob.auth import credential_of
from hubline.checkpoint_stores.blob.checkpoints import BlobCheckpoints
from hubline.checkpoint_stores.blob.client import Container
from hubline.checkpoint_stores.blob.http import Transport
from hubline.checkpoint_stores.blob.ownership import REFRESH_SECONDS, BlobOwnership
from hubline.credentials.entra_tokens import Credential
from hubline.model.keys import GroupKey, PartitionKey
from hubline.model.ownership import Checkpoint, GroupState, Member, Ownership, Renewal, StoreExamination


class BlobStore:
    """A :class:`~hubline.ports.CheckpointStore` in a container that exists. Nothing is connected before the first call.

    ``refresh_seconds`` is how often every ownership blob is written; 0 writes all of them at every renewal.
    """

    shares_with_sdks = True

    def __init__(
        self,
        address: BlobAddress,
        *,
        entra: Credential | None = None,
        clock: Callable[[], float] = time.time,
        refresh_seconds: float = REFRESH_SECONDS,
    ) -> None:
        self._shown = str(address)
        self.container = Container(Transport(address, credential_of(address, entra=entra, clock=clock), clock=clock))
        """The blobs themselves, for tools that look for faults or move blobs."""
        self._ownership = BlobOwnership(self.container, refresh_seconds=refresh_seconds)
        self._checkpoints = BlobCheckpoints(self.container, owner_epoch=self._ownership.owner_epoch)

    def __repr__(self) -> str:
        return f"BlobStore({self._shown})"

    def with_locks(self, seconds: int) -> BlobStore:
        """This store, for an owner whose claims also lock their partitions by leases of Blob Storage."""
        locking = copy.copy(self)
        locking._ownership = self._ownership.with_locks(seconds)  # noqa: SLF001 - its own copy
        return locking

    async def list_ownership(self, group: GroupKey) -> GroupState:
        return await self._ownership.list_group(group)

    async def claim_ownership(self, claims: Sequence[Ownership]) -> list[Ownership]:
        return await self._ownership.claim(claims)

    async def renew_ownership(self, group: GroupKey, member: Member, owned: Sequence[Ownership]) -> Renewal:
        renewal, has_sdk_owners = await self._ownership.renew(group, member, owned)
        if has_sdk_owners:
            await self._checkpoints.repair(group)
        return renewal

    async def request_handover(self, keys: Sequence[PartitionKey], *, owner_id: str) -> None:
        await self._ownership.request(keys, owner_id=owner_id)

    async def fence(self, key: PartitionKey, epoch: int) -> Checkpoint | None:
        return await self._checkpoints.fence(key, epoch)

    async def list_checkpoints(self, group: GroupKey) -> list[Checkpoint]:
        return await self._checkpoints.list_group(group)

    async def update_checkpoint(self, checkpoint: Checkpoint, *, epoch: int) -> None:
        await self._checkpoints.update(checkpoint, epoch=epoch)

    async def reset_checkpoint(self, key: PartitionKey, checkpoint: Checkpoint | None) -> None:
        # The fence first: from here on its owner can write nothing. Dying before the partition is taken from it, the
        # owner finds out at its next checkpoint.
        await self._checkpoints.reset(key, checkpoint)
        await self._ownership.take_from_owner(key)

    async def examine(self, group: GroupKey) -> StoreExamination:
        return await self._checkpoints.examine(group)

    async def close(self) -> None:
        await self.container.close()
