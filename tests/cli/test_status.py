"""``hubline status``: owners, leases, checkpoints and lag, as the store and the hub have them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hubline.adapters import open_hub
from hubline.checkpoint_stores.memory import MemoryStore
from hubline.cli.exit_codes import ExitCode
from hubline.errors import StoreUnavailable
from hubline.hubs.local import create_hub, delete_hub
from hubline.model.ownership import Checkpoint, GroupState, Member, Ownership
from hubline.model.positions import Position
from hubline.monitoring.lag import measure
from tests.cli.conftest import Cli, Group, append


def events_of(hub: str, partition: str) -> list[Any]:
    async def reading() -> list[Any]:
        opened = open_hub(hub)
        receiver = await opened.open_receiver(partition, group="test", position=Position.earliest())
        batch = await receiver.receive(max_count=100, wait_seconds=10)
        await receiver.close()
        await opened.close()
        return list(batch)

    return asyncio.run(reading())


def checkpoint(group: Group, hub: str, partition: str, index: int) -> None:
    """Says that the events up to the one at the index are done."""
    event = events_of(hub, partition)[index]
    key = group.key.partition(partition)
    run(group.store.reset_checkpoint(key, Checkpoint(key, event.offset, event.sequence_number)))


def run(awaitable: Awaitable[object]) -> None:
    async def running() -> None:
        await awaitable

    asyncio.run(running())


def partition_status(cli: Cli, hub: str, group: Group, partition: str) -> dict[str, Any]:
    shown = cli("status", hub, *group.args, "--json").json
    (found,) = (each for each in shown["partitions"] if each["partition"] == partition)
    return dict(found)


def test_json_has_the_documented_keys(cli: Cli, hub: str, group: Group) -> None:
    shown = cli("status", hub, *group.args, "--json").json
    assert set(shown) == {
        "namespace", "hub", "consumerGroup", "time", "lagEvents", "lagSeconds", "partitions", "members",
    }  # fmt: skip
    assert set(shown["partitions"][0]) == {
        "partition", "ownerId", "ageSeconds", "epoch", "requestedBy", "checkpoint", "beginningSequenceNumber",
        "lastEnqueuedSequenceNumber",
        "lagEvents", "lagSeconds", "problem",
    }  # fmt: skip
    assert (shown["hub"], shown["consumerGroup"]) == ("orders", "billing")
    assert [each["partition"] for each in shown["partitions"]] == ["0", "1", "2", "3"]


def test_group_that_the_store_does_not_know_is_an_error(cli: Cli, hub: str, group: Group) -> None:
    store = ("--store", group.store_address)
    run(group.store.renew_ownership(group.key, Member("idle", max_partitions=3), []))
    assert cli("status", hub, *group.args).code == ExitCode.OK
    for more in ((), ("--json",)):
        result = cli("status", hub, *store, "--group", "biling", *more)
        assert result.code == ExitCode.NOT_FOUND
        assert "the store knows no consumer group biling of the hub orders" in result.err
    assert result.json["lagEvents"] == 0


def test_owner_epoch_and_request_are_shown(cli: Cli, hub: str, group: Group) -> None:
    key = group.key.partition("1")
    run(group.store.claim_ownership([Ownership(key, owner_id="a", epoch=7)]))
    run(group.store.request_handover([key], owner_id="b"))
    owned = partition_status(cli, hub, group, "1")
    assert (owned["ownerId"], owned["epoch"], owned["requestedBy"]) == ("a", 7, "b")
    assert owned["ageSeconds"] >= 0
    assert partition_status(cli, hub, group, "0")["ownerId"] is None


def test_member_without_partitions_is_shown(cli: Cli, hub: str, group: Group) -> None:
    run(group.store.renew_ownership(group.key, Member("idle", max_partitions=3), []))
    (member,) = cli("status", hub, *group.args, "--json").json["members"]
    assert (member["ownerId"], member["ownedPartitions"], member["maxPartitions"]) == ("idle", 0, 3)


def test_lag_counts_the_events_after_the_checkpoint(cli: Cli, hub: str, group: Group) -> None:
    append(hub, "0", "a", "b", "c")
    assert partition_status(cli, hub, group, "0")["lagEvents"] == 3
    checkpoint(group, hub, "0", 0)
    shown = partition_status(cli, hub, group, "0")
    assert (shown["lagEvents"], shown["lastEnqueuedSequenceNumber"]) == (2, 2)
    assert shown["checkpoint"]["sequenceNumber"] == 0
    assert cli("status", hub, *group.args, "--json").json["lagEvents"] == 2


def test_lag_in_seconds_is_the_age_of_the_oldest_unhandled_event(hub: str, group: Group) -> None:
    append(hub, "0", "a")
    append(hub, "0", "b")
    first, second = events_of(hub, "0")
    now = second.enqueued_time + timedelta(hours=1)

    async def lag_seconds() -> float | None:
        opened = open_hub(hub)
        lag = await measure(opened, group.store, group.key, now=now)
        await opened.close()
        assert lag.lag_seconds == lag.partitions[0].lag_seconds
        return lag.partitions[0].lag_seconds

    assert asyncio.run(lag_seconds()) == (now - first.enqueued_time).total_seconds()
    checkpoint(group, hub, "0", 0)
    assert asyncio.run(lag_seconds()) == 3600


def test_caught_up_partition_has_no_lag(cli: Cli, hub: str, group: Group) -> None:
    append(hub, "0", "a")
    checkpoint(group, hub, "0", 0)
    shown = partition_status(cli, hub, group, "0")
    assert (shown["lagEvents"], shown["lagSeconds"], shown["problem"]) == (0, 0.0, None)


def test_lag_after_a_checkpoint_without_a_sequence_number_is_counted_by_its_offset(
    cli: Cli, hub: str, group: Group
) -> None:
    append(hub, "0", "a", "b", "c")
    key = group.key.partition("0")
    for index, lag in ((0, 2), (2, 0)):
        run(group.store.reset_checkpoint(key, Checkpoint(key, events_of(hub, "0")[index].offset, -1)))
        shown = partition_status(cli, hub, group, "0")
        assert (shown["lagEvents"], shown["problem"]) == (lag, None)
        assert shown["checkpoint"]["sequenceNumber"] is None


def test_checkpoint_of_a_hub_that_was_created_again_is_a_problem(
    cli: Cli, hub: str, group: Group, tmp_path: Path
) -> None:
    append(hub, "0", "a", "b", "c")
    checkpoint(group, hub, "0", 1)
    run(delete_hub(tmp_path / "data", "orders"))
    run(create_hub(tmp_path / "data", "orders", partitions=4))
    beyond = partition_status(cli, hub, group, "0")
    assert (beyond["lagEvents"], beyond["lagSeconds"]) == (None, None)
    assert "2 events beyond the last one" in beyond["problem"]
    assert ": lag unknown for 1 of 4 partitions\n" in cli("status", hub, *group.args).out
    append(hub, "1", "a")
    summary = cli("status", hub, *group.args).out.splitlines()[0]
    assert ": lag 1 event, the oldest for " in summary
    assert summary.endswith("; lag unknown for 1 of 4 partitions")
    append(hub, "0", "d", "e", "f")
    foreign = partition_status(cli, hub, group, "0")
    assert (foreign["lagEvents"], foreign["lagSeconds"]) == (None, None)
    assert foreign["problem"]


def test_damaged_record_is_shown_beside_the_others(
    cli: Cli, hub: str, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def damaged(*_: object) -> GroupState:
        return GroupState((), (), {"2": "the epoch is 'x'"})

    monkeypatch.setattr(MemoryStore, "list_ownership", damaged)
    assert partition_status(cli, hub, group, "2")["problem"] == "the epoch is 'x'"
    assert partition_status(cli, hub, group, "1")["problem"] is None


def test_table_is_not_folded_where_there_is_no_terminal(cli: Cli, hub: str, group: Group) -> None:
    owner = "a-processor-with-a-rather-long-name-" * 4
    run(group.store.claim_ownership([Ownership(group.key.partition("1"), owner_id=owner, epoch=1)]))
    run(group.store.renew_ownership(group.key, Member("idle"), []))
    append(hub, "0", "a")
    out = cli("status", hub, *group.args).out
    assert out.count(owner) == 1
    assert ": lag 1 event" in out
    assert "; the group has no checkpoints, so the lag is all that the hub holds\n" in out
    assert "idle" in out


def test_hostile_owner_cannot_reach_the_terminal(cli: Cli, hub: str, group: Group) -> None:
    owner = "\x1b[2J[bold]\n"
    run(group.store.claim_ownership([Ownership(group.key.partition("1"), owner_id=owner, epoch=1)]))
    out = cli("status", hub, *group.args).out
    assert "\\x1b[2J[bold]\\n" in out


def test_watch_shows_it_again(cli: Cli, hub: str, group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0
    list_ownership = MemoryStore.list_ownership

    async def interrupted_at_the_third_look(self: MemoryStore, *args: Any) -> GroupState:
        nonlocal looks
        looks += 1
        if looks == 3:
            raise KeyboardInterrupt
        return await list_ownership(self, *args)

    monkeypatch.setattr(MemoryStore, "list_ownership", interrupted_at_the_third_look)
    result = cli("status", hub, *group.args, "--watch", "--interval", "1ms", "--json")
    assert (result.code, result.err) == (ExitCode.INTERRUPTED, "")
    assert len(result.json_lines) == 2


def test_watching_outlasts_an_outage_and_tells_of_it(
    cli: Cli, hub: str, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter([None, StoreUnavailable("the store is down"), None, KeyboardInterrupt()])
    list_ownership = MemoryStore.list_ownership

    async def down_at_the_second_look(self: MemoryStore, *args: Any) -> GroupState:
        if (error := next(looks)) is not None:
            raise error
        return await list_ownership(self, *args)

    monkeypatch.setattr(MemoryStore, "list_ownership", down_at_the_second_look)
    result = cli("status", hub, *group.args, "--watch", "--interval", "1ms", "--json")
    assert (result.code, result.err) == (ExitCode.INTERRUPTED, "hubline: the store is down\n")
    assert len(result.json_lines) == 2


def test_without_watching_an_outage_ends_it(cli: Cli, hub: str, group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    async def down(self: MemoryStore, *args: Any) -> GroupState:
        raise StoreUnavailable("the store is down")

    monkeypatch.setattr(MemoryStore, "list_ownership", down)
    assert cli("status", hub, *group.args).code == ExitCode.UNAVAILABLE


def test_sqlite_file_that_cannot_be_made_is_reported(cli: Cli, hub: str) -> None:
    Path("file").touch()
    result = cli("status", hub, "--store", "sqlite:///file/state.db")
    assert result.code != 0
    assert result.err.startswith("hubline: ")
    assert "unexpected" not in result.err
