"""Whatever the SDKs, in any language, or people have written: it is read, or it stops its own partition only."""

from __future__ import annotations

import asyncio

import pytest

from hubline.checkpoint_stores.blob import BlobStore
from hubline.errors import RecordDamaged
from hubline.model.ownership import Checkpoint, Member, Ownership
from hubline.model.positions import Position
from hubline.testing.contracts.store import GROUP, KEY
from tests.checkpoint_stores.blob.support import play, write

pytestmark = pytest.mark.xdist_group("azurite")

PREFIX = "namespace.example/orders/$default"
CHECKPOINT = f"{PREFIX}/checkpoint/0"
OWNERSHIP = f"{PREFIX}/ownership/0"


@pytest.mark.parametrize(
    ("metadata", "resume"),
    [
        ({"offset": "1024", "sequencenumber": "7"}, Position.offset("1024")),
        ({"Offset": "1024", "SequenceNumber": "7"}, Position.offset("1024")),
        ({"offset": "2:-1:-1", "sequencenumber": "7"}, Position.offset("2:-1:-1")),
        ({"offset": "", "sequencenumber": "7"}, Position.sequence(7)),
        ({"offset": "no offset", "sequencenumber": "7"}, Position.sequence(7)),
        ({"sequencenumber": "0"}, Position.sequence(0)),
        ({"offset": "0", "sequencenumber": "0"}, Position.offset("0")),
        ({"offset": "1024"}, Position.offset("1024")),
        ({"offset": "1024", "sequencenumber": ""}, Position.offset("1024")),
        ({"offset": "1024", "sequencenumber": "7", "clientidentifier": "x"}, Position.offset("1024")),
        ({"offset": "-1", "sequencenumber": "-1"}, Position.sequence(-1)),
    ],
)
def test_a_checkpoint_of_theirs_is_resumed_after(container: str, metadata: dict[str, str], resume: Position) -> None:
    async def scenario(store: BlobStore) -> None:
        await write(store.container, CHECKPOINT, metadata)

        (listed,) = await store.list_checkpoints(GROUP)
        taken = await store.fence(KEY, 1)

        assert taken == listed
        assert taken is not None
        assert taken.resume == resume
        await store.update_checkpoint(Checkpoint(KEY, "2048", 8), epoch=1)
        assert await store.list_checkpoints(GROUP) == [Checkpoint(KEY, "2048", 8)]

    play(container, scenario)


def test_taking_the_fence_leaves_what_they_wrote_as_it_is(container: str) -> None:
    async def scenario(store: BlobStore) -> None:
        theirs = {"offset": "no offset", "sequencenumber": "7", "clientidentifier": "someone"}
        await write(store.container, CHECKPOINT, theirs)

        await store.fence(KEY, 3)

        found = await store.container.look(CHECKPOINT)
        assert found is not None
        assert theirs.items() <= found.metadata.items()
        assert found.metadata["hublineepoch"] == "3"

    play(container, scenario)


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ({}, "neither offset nor sequencenumber"),
        ({"offset": "", "sequencenumber": ""}, "neither offset nor sequencenumber"),
        ({"offset": "no offset"}, "neither offset nor sequencenumber"),
        ({"offset": "5", "sequencenumber": "five"}, "sequencenumber is 'five'"),
        ({"offset": "5", "sequencenumber": "5", "hublineepoch": "x"}, "hublineepoch is 'x'"),
    ],
)
def test_a_checkpoint_that_does_not_read_stops_its_partition_only(
    container: str, metadata: dict[str, str], problem: str
) -> None:
    async def scenario(store: BlobStore) -> None:
        await write(store.container, CHECKPOINT, metadata)
        await write(store.container, f"{PREFIX}/checkpoint/1", {"offset": "1", "sequencenumber": "1"})

        with pytest.raises(RecordDamaged, match=problem) as damaged:
            await store.fence(KEY, 1)
        assert CHECKPOINT in str(damaged.value)
        assert await store.list_checkpoints(GROUP) == [Checkpoint(GROUP.partition("1"), "1", 1)]
        assert problem in (await store.examine(GROUP)).damaged["0"]
        assert (await store.fence(GROUP.partition("1"), 1)) is not None

        await store.reset_checkpoint(KEY, Checkpoint(KEY, "9", 9))
        assert await store.fence(KEY, 1) == Checkpoint(KEY, "9", 9)

    play(container, scenario)


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [({}, "it has no ownerid"), ({"ownerid": "a", "hublineepoch": "-1"}, "hublineepoch is '-1'")],
)
def test_an_ownership_that_does_not_read_stops_its_partition_only(
    container: str, metadata: dict[str, str], problem: str
) -> None:
    async def scenario(store: BlobStore) -> None:
        await write(store.container, OWNERSHIP, metadata)
        await store.claim_ownership([Ownership(GROUP.partition("1"), "a", epoch=1)])

        state = await store.list_ownership(GROUP)

        assert [one.key.partition for one in state.ownerships] == ["1"]
        assert list(state.damaged) == ["0"]
        assert problem in state.damaged["0"]
        assert OWNERSHIP in state.damaged["0"]
        renewed = (await store.renew_ownership(GROUP, Member("a"), state.ownerships)).renewed
        assert [one.key.partition for one in renewed] == ["1"]

    play(container, scenario)


def test_released_owners_and_unknown_keys_are_read(container: str) -> None:
    async def scenario(store: BlobStore) -> None:
        await write(store.container, OWNERSHIP, {"OwnerId": "", "color": "green"})

        (free,) = (await store.list_ownership(GROUP)).ownerships

        assert free.owner_id == ""
        assert await store.claim_ownership([Ownership(KEY, "a", free.epoch + 1, free.version)]) != []

    play(container, scenario)


def test_a_first_checkpoint_whose_writer_died_half_way_is_found(container: str) -> None:
    async def scenario(store: BlobStore) -> None:
        half = {"offset": "5", "sequencenumber": "5", "hublineepoch": "1"}
        await write(store.container, f"hubline/{PREFIX}/fence/0", half)

        assert await store.fence(KEY, 2) == Checkpoint(KEY, "5", 5)
        assert await store.list_checkpoints(GROUP) == [Checkpoint(KEY, "5", 5)]

    play(container, scenario)


def test_what_is_left_of_those_who_died_long_ago_is_tidied(container: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubline.checkpoint_stores.blob.ownership.FORGET_SECONDS", 0.5)

    async def scenario(store: BlobStore) -> None:
        held = await store.claim_ownership([Ownership(KEY, "a", epoch=1)])
        await store.renew_ownership(GROUP, Member("dead"), [])
        await asyncio.sleep(2.1)

        await store.renew_ownership(GROUP, Member("a"), held)

        assert [one.owner_id for one in (await store.list_ownership(GROUP)).members] == ["a"]

    play(container, scenario)
