"""``hubline doctor``: what is wrong is found, reported with how to fix it, and shows in the exit code."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import pytest

from hubline import errors
from hubline.adapters import open_hub, open_store
from hubline.checkpoint_stores.memory import MemoryStore
from hubline.cli.exit_codes import ExitCode
from hubline.hubs.local import LocalHub, Retention, create_hub, delete_hub
from hubline.model.keys import GroupKey
from hubline.model.ownership import Member, Ownership
from hubline.model.positions import Position
from tests.cli.conftest import Cli, Group, Result, append

PLANTED = "hUnTeR2pLaNtEd"


@pytest.fixture
def state(hub: str, tmp_path: Path) -> Group:
    """A group whose store is a file."""
    address = f"sqlite:///{tmp_path}/state.db"
    opened = open_hub(hub)
    return Group(address, open_store(address), GroupKey(opened.namespace, opened.name, "billing"))


def run(group: Group, *calls: Awaitable[object]) -> None:
    async def running() -> None:
        for call in calls:
            await call
        await group.store.close()

    asyncio.run(running())


def owned(group: Group, owner_id: str = "a") -> list[Awaitable[object]]:
    """A member that owns every partition."""
    claims = [Ownership(group.key.partition(name), owner_id, epoch=1) for name in "0123"]
    store = group.store
    return [store.claim_ownership(claims), store.renew_ownership(group.key, Member(owner_id), [])]


def by_code(result: Result) -> dict[str, Any]:
    return {each["code"]: each for each in result.json_lines}


def partitions_of(finding: Mapping[str, Any]) -> dict[str, str]:
    return {each["partition"]: each["message"] for each in finding["partitions"]}


def test_all_is_well(cli: Cli, hub: str, state: Group) -> None:
    append(hub, "0", "a", "b")
    cli("checkpoints", "set", hub, *state.args, "--position", "sequence:0", "--partition", "0", "--yes")
    run(state, *owned(state))
    shown = cli("doctor", hub, *state.args)
    assert shown.code == 0
    assert "4 partitions" in shown.out
    assert shown.err == ""
    found = by_code(cli("doctor", hub, *state.args, "--json"))
    assert {each["severity"] for each in found.values()} == {"ok", "note"}  # three have no checkpoint yet
    assert set(found["hub.ok"]) == {"severity", "code", "message", "where", "fix", "partitions"}
    assert list(partitions_of(found["checkpoint.missing"])) == ["1", "2", "3"]
    assert {"interval.ok", "store.ok", "store.clock", "group.members", "checkpoint.ok"} <= set(found)


def test_looking_changes_nothing(cli: Cli, hub: str, state: Group, tmp_path: Path) -> None:
    run(state, *owned(state))
    before = dump(tmp_path)
    assert cli("doctor", hub, *state.args).code == 0
    assert dump(tmp_path) == before


def dump(folder: Path) -> list[str]:
    with closing(sqlite3.connect(folder / "state.db")) as connection:
        return list(connection.iterdump())


def test_a_store_that_is_not_there_is_not_made(cli: Cli, hub: str, tmp_path: Path) -> None:
    result = cli("doctor", hub, "--store", "sqlite:///typo.db", "--json")
    assert result.code == ExitCode.WARNED
    assert "there is no file" in by_code(result)["store.no-file"]["message"]
    assert not (tmp_path / "typo.db").exists()


def test_a_hub_created_again_is_found(cli: Cli, hub: str, state: Group, tmp_path: Path) -> None:
    for partition in "01":
        append(hub, partition, "a", "b", "c")
    cli(
        "checkpoints",
        "set",
        hub,
        *state.args,
        "--partition",
        "0",
        "--partition",
        "1",
        "--position",
        "sequence:1",
        "--yes",
    )
    asyncio.run(delete_hub(tmp_path / "data", "orders"))
    asyncio.run(create_hub(tmp_path / "data", "orders", partitions=4))
    append(hub, "1", "d", "e", "f")
    result = cli("doctor", hub, *state.args, "--json")
    assert result.code == ExitCode.FAILED
    found = by_code(result)
    assert list(partitions_of(found["checkpoint.ahead"])) == ["0"]
    assert list(partitions_of(found["checkpoint.foreign"])) == ["1"]
    assert "checkpoints reset" in found["checkpoint.ahead"]["fix"]


def test_events_that_retention_took_are_counted(cli: Cli, hub: str, state: Group, tmp_path: Path) -> None:
    cli("hub", "delete", hub, "--yes")
    asyncio.run(create_hub(tmp_path / "data", "orders", partitions=4, retention=Retention(seconds=60)))
    for body in "abcd":
        append(hub, "2", body)
    cli("checkpoints", "set", hub, *state.args, "--position", "sequence:0", "--partition", "2", "--yes")

    async def an_hour_later() -> None:
        later = LocalHub(tmp_path / "data", "orders", clock=lambda: time.time() + 3600)
        assert await later.apply_retention() == 4
        await later.close()

    asyncio.run(an_hour_later())
    result = cli("doctor", hub, *state.args, "--json")
    assert result.code == ExitCode.FAILED
    assert partitions_of(by_code(result)["checkpoint.expired"]) == {"2": "3 lost"}


def test_a_damaged_checkpoint_is_found(cli: Cli, hub: str, state: Group, tmp_path: Path) -> None:
    append(hub, "1", "a")
    cli("checkpoints", "set", hub, *state.args, "--position", "latest", "--yes")
    with closing(sqlite3.connect(tmp_path / "state.db", isolation_level=None)) as connection:
        connection.execute("UPDATE hubline_checkpoint SET sequence_number = NULL")
    found = by_code(cli("doctor", hub, *state.args, "--json"))
    assert "sequence_number is None" in partitions_of(found["checkpoint.damaged"])["1"]


@pytest.mark.parametrize(
    ("hub_address", "code"),
    [
        ("local:./data/ordres", "hub.missing"),
        ("nonsense", "hub.address"),
        (
            f"Endpoint=sb://127.0.0.1:1;SharedAccessKeyName=k;SharedAccessKey={PLANTED};EntityPath=e;"
            "UseDevelopmentEmulator=true",
            "hub.unreachable",
        ),
    ],
)
def test_what_is_wrong_with_the_hub_does_not_hide_the_store(
    cli: Cli, state: Group, hub_address: str, code: str
) -> None:
    run(state, *owned(state))
    result = cli("doctor", hub_address, "--store", state.store_address, "--timeout", "3s", "--json")
    assert result.code == ExitCode.FAILED
    found = by_code(result)
    assert found[code]["fix"]
    assert found["store.ok"]
    assert PLANTED not in result.out + result.err


@pytest.mark.parametrize(
    ("store_address", "code"),
    [
        (f"postgresql://me:{PLANTED}@127.0.0.1:1/db?connect_timeout=1", "store.unreachable"),
        (f"postgresql://me:{PLANTED}@host:x/db", "store.address"),
        ("sqlite:///data", "store.refused"),
    ],
)
def test_what_is_wrong_with_the_store_does_not_hide_the_hub(cli: Cli, hub: str, store_address: str, code: str) -> None:
    result = cli("doctor", hub, "--store", store_address, "--json")
    assert result.code == ExitCode.FAILED
    found = by_code(result)
    assert found[code]["fix"]
    assert found["hub.ok"]
    assert found["doctor.skipped"]
    assert PLANTED not in result.out + result.err


def test_an_answer_that_does_not_come_is_not_waited_for(
    cli: Cli, hub: str, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(_self: MemoryStore, _group: GroupKey) -> NoReturn:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(MemoryStore, "list_ownership", silent)
    result = cli("doctor", hub, *group.args, "--timeout", "50ms", "--json")
    assert "no answer" in by_code(result)["store.unreachable"]["message"]


def test_an_unforeseen_failure_stops_nothing_and_shows_no_text(
    cli: Cli, hub: str, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(_self: LocalHub) -> NoReturn:
        raise RuntimeError(PLANTED)

    monkeypatch.setattr(LocalHub, "describe", broken)
    result = cli("doctor", hub, *group.args, "--json")
    assert "RuntimeError" in by_code(result)["doctor.failed"]["message"]
    assert "store.ok" in by_code(result)
    assert PLANTED not in result.out + result.err


def test_a_partition_that_cannot_be_read_hides_no_other(
    cli: Cli, hub: str, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe_partition = LocalHub.describe_partition

    async def damaged(self: LocalHub, partition: str) -> Any:
        if partition == "2":
            raise errors.HubDamaged("partition 2 does not read back")
        return await describe_partition(self, partition)

    monkeypatch.setattr(LocalHub, "describe_partition", damaged)
    found = by_code(cli("doctor", hub, *group.args, "--json"))
    assert partitions_of(found["hub.partitions"]) == {"2": "partition 2 does not read back"}
    assert "4 partitions" in found["hub.ok"]["message"]


@pytest.mark.parametrize(
    ("answer", "severity"),
    [
        (errors.PartitionNotFound("hub orders has no group billing"), "error"),
        (errors.ReaderRefused("no", partition="0", epoch=None, held_epoch=3), None),
        (errors.HubUnavailable("busy"), "note"),
    ],
    ids=["there is none", "somebody reads there", "no answer"],
)
def test_a_group_that_the_hub_does_not_have_is_found(
    cli: Cli, hub: str, state: Group, monkeypatch: pytest.MonkeyPatch, answer: Exception, severity: str | None
) -> None:
    run(state, *owned(state))

    async def answering(*_args: object, **_kwargs: object) -> NoReturn:
        raise answer

    monkeypatch.setattr(LocalHub, "open_receiver", answering)
    found = by_code(cli("doctor", hub, *state.args, "--json"))
    assert found.get("hub.group", {}).get("severity") == severity


def test_looking_takes_the_partition_from_no_reader(cli: Cli, hub: str, state: Group) -> None:
    append(hub, "0", "a")
    run(state, *owned(state))

    async def reading() -> None:
        opened = open_hub(hub)
        receiver = await opened.open_receiver("0", group="billing", position=Position.earliest(), epoch=1)
        await asyncio.to_thread(cli, "doctor", hub, *state.args)
        assert len(await receiver.receive(max_count=10, wait_seconds=10)) == 1
        await receiver.close()
        await opened.close()

    asyncio.run(reading())


def test_a_store_that_may_not_be_written_is_found(
    cli: Cli, hub: str, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(*_: object) -> NoReturn:
        raise errors.StoreError("permission denied for table hubline_member")

    monkeypatch.setattr(MemoryStore, "renew_ownership", refused)
    found = by_code(cli("doctor", hub, *group.args, "--json"))
    assert found["store.read-only"]["severity"] == "error"


def test_positions_that_cannot_be_tried_are_reported_as_such(
    cli: Cli, hub: str, state: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(hub, "0", "a", "b")
    cli("checkpoints", "set", hub, *state.args, "--position", "sequence:0", "--partition", "0", "--yes")

    open_receiver = LocalHub.open_receiver

    async def no_such_group(self: LocalHub, partition: str, *, group: str, **others: Any) -> Any:
        if group == "hubline-cli":
            raise errors.HubNotFound("there is no consumer group hubline-cli")
        return await open_receiver(self, partition, group=group, **others)

    monkeypatch.setattr(LocalHub, "open_receiver", no_such_group)
    result = cli("doctor", hub, *state.args, "--json")
    assert result.code == 0
    assert by_code(result)["checkpoint.unverified"]["severity"] == "note"


def test_intervals_that_cannot_work_are_an_error(cli: Cli, hub: str, state: Group) -> None:
    run(state, *owned(state))
    result = cli("doctor", hub, *state.args, "--lease", "10s", "--renew-interval", "5s", "--json")
    assert result.code == ExitCode.FAILED
    assert "does not outlast 3 renewals" in by_code(result)["interval.lease"]["message"]


def test_many_partitions_are_cut_for_people_and_whole_in_json(cli: Cli, hub: str, state: Group) -> None:
    cli("hub", "grow", hub, "--partitions", "10")
    run(state, *owned(state))
    shown = cli("doctor", hub, *state.args)
    assert shown.code == ExitCode.WARNED
    assert "and 2 more partitions" in shown.out
    assert len(by_code(cli("doctor", hub, *state.args, "--json"))["group.unowned"]["partitions"]) == 6


def test_hostile_names_cannot_reach_the_terminal(cli: Cli, hub: str, group: Group) -> None:
    key = group.key.partition("\x1b[2J")
    run(group, group.store.claim_ownership([Ownership(key, "\x1b]0;x\x07[bold]", epoch=1)]))
    out = cli("doctor", hub, *group.args).out
    assert "\x1b" not in out
    assert "\\x1b[2J" in out
