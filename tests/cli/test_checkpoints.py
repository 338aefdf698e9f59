"""``hubline checkpoints``: shown, moved and removed; never without a yes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from hubline.adapters import open_hub, open_store
from hubline.cli.exit_codes import ExitCode
from hubline.cli.session import using_store
from hubline.errors import Fenced
from hubline.hubs.local import LocalHub, Retention, create_hub
from hubline.model.events import EventBatch
from hubline.model.keys import GroupKey
from hubline.model.ownership import Checkpoint
from hubline.model.positions import Position
from hubline.processor import LeaseOptions, Processor, ProcessorOptions
from tests.cli.conftest import Cli, Group, append
from tests.support.scene import until


@pytest.fixture
def group(hub: str, tmp_path: Path) -> Group:
    """A group whose store is a file: one in memory ends with a command."""
    address = f"sqlite:///{tmp_path}/state.db"
    opened, store = open_hub(hub), open_store(address)
    key = GroupKey(opened.namespace, opened.name, "billing")

    async def made() -> None:
        await store.list_checkpoints(key)
        await store.close()

    asyncio.run(made())
    return Group(address, store, key)


def sequences(cli: Cli, hub: str, group: Group) -> dict[str, int]:
    shown = cli("checkpoints", "show", hub, *group.args, "--json").json_lines
    return {each["partition"]: each["checkpoint"]["sequenceNumber"] for each in shown}


def test_group_without_checkpoints_shows_none(cli: Cli, hub: str, group: Group) -> None:
    result = cli("checkpoints", "show", hub, *group.args)
    assert (result.code, result.out) == (0, "")
    assert "has no checkpoints" in result.err


@pytest.mark.parametrize(
    ("position", "sequence"),
    [
        ("latest", 4),
        ("latest:inclusive", 3),
        ("sequence:2", 2),
        ("sequence:2:inclusive", 1),
        ("sequence:4", 4),
        ("time:2100-01-01T00:00:00Z", 4),
    ],
)
def test_processing_goes_on_at_the_position(cli: Cli, hub: str, group: Group, position: str, sequence: int) -> None:
    append(hub, "1", "a", "b", "c", "d", "e")
    result = cli("checkpoints", "set", hub, *group.args, "--partition", "1", "--position", position, "--yes")
    assert result.code == 0
    assert sequences(cli, hub, group) == {"1": sequence}


@pytest.mark.parametrize(
    "position",
    ["latest", "latest:inclusive", "earliest", "time:-1h", "time:2100-01-01T00:00:00Z", "sequence:0:inclusive"],
)
def test_before_all_that_comes_into_an_empty_partition(cli: Cli, hub: str, group: Group, position: str) -> None:
    assert cli("checkpoints", "set", hub, *group.args, "--partition", "1", "--position", position, "--yes").code == 0
    assert sequences(cli, hub, group) == {"1": -1}


def test_what_comes_into_an_empty_partition_is_not_skipped(cli: Cli, hub: str, group: Group) -> None:
    cli("checkpoints", "set", hub, *group.args, "--position", "latest", "--yes")
    append(hub, "1", "a", "b")
    assert handled_from_the_end(hub, group) == [0, 1]


def emptied(cli: Cli, hub: str, folder: Path) -> list[str]:
    """Re-creates the hub, with one partition whose events 0 and 1 are gone by now; the offsets that these had."""
    cli("hub", "delete", hub, "--yes")
    asyncio.run(create_hub(folder, "orders", partitions=1, retention=Retention(seconds=60)))
    append(hub, "0", "a", "b")
    offsets = [event["offset"] for event in cli("tail", hub, "--no-follow", "--json").json_lines]

    async def an_hour_later() -> None:
        later = LocalHub(folder, "orders", clock=lambda: time.time() + 3600)
        assert await later.apply_retention() == 2
        await later.close()

    asyncio.run(an_hour_later())
    return offsets


def test_what_comes_after_retention_took_all_is_not_skipped(cli: Cli, hub: str, group: Group, tmp_path: Path) -> None:
    emptied(cli, hub, tmp_path / "data")
    cli("checkpoints", "set", hub, *group.args, "--position", "latest", "--yes")
    assert sequences(cli, hub, group) == {"0": 1}
    append(hub, "0", "c")
    assert handled_from_the_end(hub, group) == [2]


def handled_from_the_end(hub: str, group: Group) -> list[int]:
    """What a processor handles whose start is the end."""
    found: list[int] = []

    async def handling() -> None:
        processor = Processor(
            hub,
            group.store_address,
            consumer_group=group.key.group,
            starting_position=Position.latest(),
            options=ProcessorOptions(lease=LeaseOptions(startup_delay_seconds=0.1)),
        )

        @processor.on_batch
        async def handle(batch: EventBatch) -> None:
            found.extend(event.sequence_number for event in batch)

        async with processor:
            await until(lambda: bool(found))

    asyncio.run(handling())
    return found


def test_time_and_offset_lead_to_the_event_before(cli: Cli, hub: str, group: Group) -> None:
    append(hub, "0", "a", "b")
    append(hub, "0", "c")
    events = cli("tail", hub, "--no-follow", "--json").json_lines
    for position, sequence in (
        (f"time:{events[2]['enqueuedTime']}", 1),
        (f"offset:{events[0]['offset']}", 0),
        (f"offset:{events[1]['offset']}:inclusive", 0),
        (f"offset:{events[2]['offset']}", 2),
    ):
        cli("checkpoints", "set", hub, *group.args, "--partition", "0", "--position", position, "--yes")
        assert sequences(cli, hub, group) == {"0": sequence}, position


def test_change_is_shown_and_printed_as_json(cli: Cli, hub: str, group: Group) -> None:
    append(hub, "1", "a", "b")
    first = cli(
        "checkpoints", "set", hub, *group.args, "--position", "sequence:0", "--partition", "1", "--yes", "--json"
    )
    assert first.json["before"] is None
    assert first.json["checkpoint"]["sequenceNumber"] == 0
    second = cli("checkpoints", "set", hub, *group.args, "--position", "latest", "--partition", "1", "--yes", "--json")
    assert second.json["before"]["sequenceNumber"] == 0
    assert second.json["checkpoint"]["sequenceNumber"] == 1
    assert "becomes" in second.err


def test_setting_what_is_set_changes_nothing(cli: Cli, hub: str, group: Group) -> None:
    append(hub, "1", "a", "b")
    cli("checkpoints", "set", hub, *group.args, "--position", "latest", "--yes")
    result = cli("checkpoints", "set", hub, *group.args, "--position", "latest")
    assert result.code == 0
    assert "nothing to change" in result.err


@pytest.mark.parametrize("verb", [("set", "--position", "latest"), ("reset",)], ids=["set", "reset"])
def test_without_an_answer_nothing_is_changed(cli: Cli, hub: str, group: Group, verb: tuple[str, ...]) -> None:
    append(hub, "1", "a", "b")
    cli("checkpoints", "set", hub, *group.args, "--position", "sequence:0", "--partition", "1", "--yes")
    result = cli("checkpoints", verb[0], hub, *group.args, *verb[1:])
    assert result.code == ExitCode.NOT_CONFIRMED
    assert "becomes" in result.err
    assert "Add --yes to confirm. Nothing was changed" in result.err
    assert sequences(cli, hub, group) == {"1": 0}


def test_reset_removes_the_chosen_ones(cli: Cli, hub: str, group: Group) -> None:
    for partition in "012":
        append(hub, partition, "a")
    cli("checkpoints", "set", hub, *group.args, "--position", "latest", "--yes")
    assert cli("checkpoints", "reset", hub, *group.args, "--partition", "1", "--yes").code == 0
    assert sequences(cli, hub, group) == {"0": 0, "2": 0, "3": -1}
    assert cli("checkpoints", "reset", hub, *group.args, "--yes").code == 0
    assert sequences(cli, hub, group) == {}


def test_running_owner_cannot_overwrite_what_was_set(cli: Cli, hub: str, group: Group) -> None:
    append(hub, "0", "a", "b", "c")
    key = group.key.partition("0")

    async def owner_writes(sequence: int) -> None:
        async with using_store(group.store_address) as store:
            await store.update_checkpoint(Checkpoint(key, "x", sequence), epoch=1)

    asyncio.run(take_fence(group, epoch=1))
    asyncio.run(owner_writes(1))
    cli("checkpoints", "set", hub, *group.args, "--position", "sequence:0", "--partition", "0", "--yes")
    with pytest.raises(Fenced):
        asyncio.run(owner_writes(2))
    assert sequences(cli, hub, group) == {"0": 0}


async def take_fence(group: Group, *, epoch: int) -> None:
    async with using_store(group.store_address) as store:
        await store.fence(group.key.partition("0"), epoch)


@pytest.mark.parametrize("position", ["earliest", "sequence:0:inclusive", "time:2000-01-01T00:00:00Z"])
def test_position_with_no_event_before_it_leads_to_the_oldest(cli: Cli, hub: str, group: Group, position: str) -> None:
    append(hub, "0", "a", "b")
    result = cli("checkpoints", "set", hub, *group.args, "--partition", "0", "--position", position, "--yes")
    assert result.code == 0
    assert ["0", "-", "-1", "before", "the", "oldest", "event"] in [line.split() for line in result.err.splitlines()]
    assert sequences(cli, hub, group) == {"0": -1}
    assert handled_from_the_end(hub, group) == [0, 1]


@pytest.mark.parametrize("position", ["earliest", "time:2000-01-01T00:00:00Z", "sequence:2:inclusive"])
def test_position_before_what_retention_left_leads_to_the_oldest(
    cli: Cli, hub: str, group: Group, tmp_path: Path, position: str
) -> None:
    emptied(cli, hub, tmp_path / "data")
    append(hub, "0", "c", "d")
    assert cli("checkpoints", "set", hub, *group.args, "--position", position, "--yes").code == 0
    assert sequences(cli, hub, group) == {"0": 1}
    assert handled_from_the_end(hub, group) == [2, 3]


def test_a_position_among_events_that_are_gone_is_refused_while_others_are_there(
    cli: Cli, hub: str, group: Group, tmp_path: Path
) -> None:
    emptied(cli, hub, tmp_path / "data")
    append(hub, "0", "c", "d")
    result = cli("checkpoints", "set", hub, *group.args, "--position", "sequence:0", "--yes")
    assert result.code == ExitCode.USAGE
    assert "events from there on have been removed" in result.err
    assert "earliest" in result.err
    assert sequences(cli, hub, group) == {}


def test_position_beyond_the_last_event_is_refused(cli: Cli, hub: str, group: Group) -> None:
    append(hub, "0", "a", "b")
    result = cli("checkpoints", "set", hub, *group.args, "--partition", "0", "--position", "sequence:9", "--yes")
    assert result.code == ExitCode.USAGE
    assert "holds events 0 to 1: sequence:9 is beyond the end" in result.err
    assert "--position latest" in result.err


@pytest.mark.parametrize("position", ["sequence:0", "sequence:1:inclusive", "sequence:9"])
def test_position_beyond_an_empty_partition_is_refused(cli: Cli, hub: str, group: Group, position: str) -> None:
    result = cli("checkpoints", "set", hub, *group.args, "--partition", "1", "--position", position, "--yes")
    assert result.code == ExitCode.USAGE
    assert "partition 1 never had an event: sequence:" in result.err
    assert "--position latest" in result.err
    assert sequences(cli, hub, group) == {}


@pytest.mark.parametrize("position", ["sequence:2", "sequence:9"])
def test_position_beyond_what_retention_took_is_refused(
    cli: Cli, hub: str, group: Group, tmp_path: Path, position: str
) -> None:
    emptied(cli, hub, tmp_path / "data")
    result = cli("checkpoints", "set", hub, *group.args, "--position", position, "--yes")
    assert result.code == ExitCode.USAGE
    assert f"holds no events, and the last one was 1: {position} is beyond the end" in result.err
    assert sequences(cli, hub, group) == {}


@pytest.mark.parametrize(
    "position",
    ["sequence:0", "sequence:1", "sequence:2:inclusive", "earliest", "time:-1h", "offset:{offsets[0]}"],
)
def test_position_among_what_retention_took_leads_to_what_comes(
    cli: Cli, hub: str, group: Group, tmp_path: Path, position: str
) -> None:
    position = position.format(offsets=emptied(cli, hub, tmp_path / "data"))
    assert cli("checkpoints", "set", hub, *group.args, "--position", position, "--yes").code == 0
    assert sequences(cli, hub, group) == {"0": 1}


def test_offset_that_the_hub_does_not_know_is_refused(cli: Cli, hub: str, group: Group) -> None:
    append(hub, "0", "a", "b")
    result = cli("checkpoints", "set", hub, *group.args, "--partition", "0", "--position", "offset:abc", "--yes")
    assert result.code == ExitCode.USAGE
    assert "it is of another hub" in result.err
    result = cli("checkpoints", "set", hub, *group.args, "--partition", "1", "--position", "offset:abc", "--yes")
    assert result.code == ExitCode.USAGE
    assert "it is of another hub" in result.err


def test_partition_that_is_named_twice_counts_once(cli: Cli, hub: str, group: Group) -> None:
    twice = ("--partition", "1", "--partition", "1")
    result = cli("checkpoints", "set", hub, *group.args, *twice, "--position", "latest", "--yes", "--json")
    assert result.json["partition"] == "1"
    assert "changed 1 checkpoint\n" in result.err


def test_store_that_ends_with_the_command_is_refused(cli: Cli, hub: str) -> None:
    result = cli("checkpoints", "set", hub, "--store", "memory:", "--position", "latest", "--yes")
    assert result.code == ExitCode.USAGE
    assert "Give a store that lasts" in result.err


def test_checkpoints_are_shown_when_the_hub_is_gone(cli: Cli, hub: str, group: Group) -> None:
    cli("checkpoints", "set", hub, *group.args, "--position", "latest", "--partition", "1", "--yes")
    cli("hub", "delete", hub, "--yes")
    assert sequences(cli, hub, group) == {"1": -1}


def test_unknown_partition_is_reported(cli: Cli, hub: str, group: Group) -> None:
    result = cli("checkpoints", "reset", hub, *group.args, "--partition", "12", "--yes")
    assert result.code == ExitCode.NOT_FOUND


@pytest.mark.parametrize("verb", [("status",), ("checkpoints", "show"), ("checkpoints", "reset")], ids=" ".join)
def test_store_that_is_not_there_is_reported_and_not_made(
    cli: Cli, hub: str, verb: tuple[str, ...], tmp_path: Path
) -> None:
    result = cli(*verb, hub, "--store", f"sqlite:///{tmp_path}/none.db")
    assert (result.code, result.out) == (ExitCode.NOT_FOUND, "")
    assert "none.db: there is no such file" in result.err
    assert not (tmp_path / "none.db").exists()


def test_without_an_answer_no_store_is_made(cli: Cli, hub: str, tmp_path: Path) -> None:
    args = ("checkpoints", "set", hub, "--store", f"sqlite:///{tmp_path}/new.db", "--position", "latest")
    assert cli(*args).code == ExitCode.NOT_CONFIRMED
    assert not (tmp_path / "new.db").exists()
    assert cli(*args, "--yes").code == 0
    assert (tmp_path / "new.db").exists()


def test_partitions_are_listed_by_number(cli: Cli, group: Group, hub: str) -> None:
    cli("hub", "grow", hub, "--partitions", "12")
    for partition in ("10", "9", "2"):
        append(hub, partition, "a")
    cli("checkpoints", "set", hub, *group.args, "--position", "latest", "--yes")
    assert list(sequences(cli, hub, group)) == [str(number) for number in range(12)]
