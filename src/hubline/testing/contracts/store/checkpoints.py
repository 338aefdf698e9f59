"""Checkpoints and their fence."""

from __future__ import annotations

import pytest

from hubline.errors import Fenced
from hubline.model.ownership import Checkpoint, Member
from hubline.model.positions import Position
from hubline.ports import CheckpointStore
from hubline.testing.contracts.store.support import (
    GROUP,
    KEY,
    NEVER_FENCED,
    StoreFactory,
    claim,
    listed_ownership,
    scenario,
)


class CheckpointContract(StoreFactory):
    @scenario
    async def test_a_new_partition_has_no_checkpoint(self, store: CheckpointStore) -> None:
        assert await store.fence(KEY, 1) is None
        assert await store.list_checkpoints(GROUP) == []

    @scenario
    async def test_the_next_epoch_resumes_where_the_last_one_was(self, store: CheckpointStore) -> None:
        done = Checkpoint(KEY, "0001@x", 2**62)
        await store.fence(KEY, 1)
        await store.update_checkpoint(done, epoch=1)

        assert await store.list_checkpoints(GROUP) == [done]
        assert await store.fence(KEY, 2) == done
        assert await store.fence(KEY, 2) == done

    @scenario
    async def test_a_lower_epoch_cannot_take_the_fence(self, store: CheckpointStore) -> None:
        await store.fence(KEY, 4)

        with pytest.raises(Fenced) as refused:
            await store.fence(KEY, 3)

        assert (refused.value.partition, refused.value.epoch, refused.value.held_epoch) == ("0", 3, 4)
        await store.update_checkpoint(Checkpoint(KEY, "1", 1), epoch=4)

    @scenario
    async def test_a_fenced_epoch_can_write_nothing(self, store: CheckpointStore) -> None:
        await store.fence(KEY, 1)
        await store.update_checkpoint(Checkpoint(KEY, "1", 1), epoch=1)
        await store.fence(KEY, 2)

        with pytest.raises(Fenced) as refused:
            await store.update_checkpoint(Checkpoint(KEY, "2", 2), epoch=1)

        assert (refused.value.partition, refused.value.epoch, refused.value.held_epoch) == ("0", 1, 2)
        assert await store.list_checkpoints(GROUP) == [Checkpoint(KEY, "1", 1)]

    @scenario
    async def test_an_epoch_writes_only_once_it_took_the_fence(self, store: CheckpointStore) -> None:
        with pytest.raises(Fenced) as nobody:
            await store.update_checkpoint(Checkpoint(KEY, "1", 1), epoch=1)
        await store.fence(KEY, 1)
        with pytest.raises(Fenced) as too_early:
            await store.update_checkpoint(Checkpoint(KEY, "1", 1), epoch=2)

        assert (nobody.value.held_epoch, too_early.value.held_epoch) == (NEVER_FENCED, 1)
        assert await store.list_checkpoints(GROUP) == []

    @scenario
    async def test_a_checkpoint_never_goes_back(self, store: CheckpointStore) -> None:
        await store.fence(KEY, 1)
        await store.update_checkpoint(Checkpoint(KEY, "20", 20), epoch=1)

        await store.update_checkpoint(Checkpoint(KEY, "behind", 19), epoch=1)
        await store.update_checkpoint(Checkpoint(KEY, "the same", 20), epoch=1)

        assert await store.list_checkpoints(GROUP) == [Checkpoint(KEY, "20", 20)]

    @scenario
    async def test_the_first_event_can_be_checkpointed(self, store: CheckpointStore) -> None:
        await store.fence(KEY, 0)
        await store.update_checkpoint(Checkpoint(KEY, "0", 0), epoch=0)

        assert await store.fence(KEY, 1) == Checkpoint(KEY, "0", 0)

    @scenario
    async def test_before_the_first_event_is_a_checkpoint_too(self, store: CheckpointStore) -> None:
        await store.fence(KEY, 1)
        await store.update_checkpoint(Checkpoint.before_first(KEY), epoch=1)

        assert await store.fence(KEY, 2) == Checkpoint.before_first(KEY)
        await store.update_checkpoint(Checkpoint(KEY, "0", 0), epoch=2)
        assert await store.list_checkpoints(GROUP) == [Checkpoint(KEY, "0", 0)]

    @scenario
    async def test_an_operator_sets_a_checkpoint_back(self, store: CheckpointStore) -> None:
        await store.fence(KEY, 1)
        await store.update_checkpoint(Checkpoint(KEY, "20", 20), epoch=1)

        await store.reset_checkpoint(KEY, Checkpoint(KEY, "5", 5))

        assert await store.list_checkpoints(GROUP) == [Checkpoint(KEY, "5", 5)]
        assert await store.fence(KEY, 2) == Checkpoint(KEY, "5", 5)

    @scenario
    async def test_an_operator_sets_a_checkpoint_before_the_first_event(self, store: CheckpointStore) -> None:
        await store.fence(KEY, 1)
        await store.update_checkpoint(Checkpoint(KEY, "20", 20), epoch=1)

        await store.reset_checkpoint(KEY, Checkpoint.before_first(KEY))

        assert await store.list_checkpoints(GROUP) == [Checkpoint.before_first(KEY)]
        assert await store.fence(KEY, 2) == Checkpoint.before_first(KEY)

    @scenario
    async def test_an_operator_sets_a_checkpoint_before_the_oldest_event(self, store: CheckpointStore) -> None:
        before = Checkpoint.before_oldest(KEY, 7)

        await store.reset_checkpoint(KEY, before)

        assert await store.list_checkpoints(GROUP) == [before]
        assert before.resume == Position.sequence(6)

    @scenario
    async def test_a_reset_fences_the_running_owner(self, store: CheckpointStore) -> None:
        await store.fence(KEY, 1)
        await store.reset_checkpoint(KEY, Checkpoint(KEY, "5", 5))

        with pytest.raises(Fenced) as refused:
            await store.update_checkpoint(Checkpoint(KEY, "21", 21), epoch=1)

        assert refused.value.held_epoch == 2
        assert await store.list_checkpoints(GROUP) == [Checkpoint(KEY, "5", 5)]

    @scenario
    async def test_a_reset_takes_the_partition_from_its_owner(self, store: CheckpointStore) -> None:
        held = await claim(store, "a", epoch=1)
        await store.fence(KEY, 1)

        await store.reset_checkpoint(KEY, Checkpoint(KEY, "5", 5))

        assert (await store.renew_ownership(GROUP, Member("a"), [held])).renewed == []
        free = await listed_ownership(store)
        assert (free.owner_id, free.epoch) == ("", 2)
        assert await store.fence(KEY, free.epoch + 1) == Checkpoint(KEY, "5", 5)

    @scenario
    async def test_an_operator_removes_a_checkpoint(self, store: CheckpointStore) -> None:
        await store.fence(KEY, 1)
        await store.update_checkpoint(Checkpoint(KEY, "20", 20), epoch=1)

        await store.reset_checkpoint(KEY, None)

        assert await store.list_checkpoints(GROUP) == []
        with pytest.raises(Fenced):
            await store.update_checkpoint(Checkpoint(KEY, "21", 21), epoch=1)
        assert await store.fence(KEY, 2) is None

    @scenario
    async def test_an_operator_sets_a_checkpoint_before_anyone_reads(self, store: CheckpointStore) -> None:
        await store.reset_checkpoint(KEY, Checkpoint(KEY, "5", 5))

        assert await store.list_checkpoints(GROUP) == [Checkpoint(KEY, "5", 5)]
        assert await store.fence(KEY, 0) == Checkpoint(KEY, "5", 5)
