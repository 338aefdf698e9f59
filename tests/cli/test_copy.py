"""``hubline checkpoints copy``: between stores and groups; never back, nor under an active owner, unless asked for."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hubline.adapters import open_hub, open_store
from hubline.checkpoint_stores.memory import MemoryStore
from hubline.checkpoints.copy import Kind, Side, move_forward, plan_steps
from hubline.cli.checkpoints import copy as copying
from hubline.cli.exit_codes import ExitCode
from hubline.errors import Fenced
from hubline.model.keys import GroupKey
from hubline.model.ownership import Checkpoint, Member, Ownership
from hubline.secrets import Secret
from tests.cli.conftest import Cli, Group, Result, append

GROUP = GroupKey("ns", "orders", "billing")


@pytest.fixture
def source(hub: str, tmp_path: Path) -> Group:
    return group_in(f"sqlite:///{tmp_path}/source.db", hub)


@pytest.fixture
def target(hub: str, tmp_path: Path) -> Group:
    return group_in(f"sqlite:///{tmp_path}/target.db", hub)


def group_in(address: str, hub: str, name: str = "billing") -> Group:
    opened = open_hub(hub)
    return Group(address, open_store(address), GroupKey(opened.namespace, opened.name, name))


def run(group: Group, *calls: Awaitable[object]) -> None:
    async def running() -> None:
        for call in calls:
            await call
        await group.store.close()

    asyncio.run(running())


def put(group: Group, **sequences: int) -> Group:
    """Says that these partitions are done up to these events: ``p0=7``. Gives the group with its store open again."""
    keys = {group.key.partition(name.removeprefix("p")): number for name, number in sequences.items()}
    run(group, *(group.store.reset_checkpoint(key, Checkpoint(key, f"o{each}", each)) for key, each in keys.items()))
    return replace(group, store=open_store(group.store_address))


def sequences(group: Group) -> dict[str, int]:
    async def listing() -> dict[str, int]:
        store = open_store(group.store_address)
        found = await store.list_checkpoints(group.key)
        await store.close()
        return {each.key.partition: each.sequence_number for each in found}

    return dict(sorted(asyncio.run(listing()).items()))


def between(source: Group, target: Group) -> tuple[str, ...]:
    groups = ("--group", source.key.group, "--to-group", target.key.group)
    return "--from-store", source.store_address, "--to-store", target.store_address, *groups


def steps(result: Result) -> dict[str, Any]:
    return {each["partition"]: each["step"] for each in result.json_lines}


def test_checkpoints_go_into_an_empty_store(cli: Cli, hub: str, source: Group, target: Group) -> None:
    put(source, p0=7, p3=0)
    result = cli("checkpoints", "copy", hub, *between(source, target), "--yes", "--json")
    assert result.code == 0
    first, second = result.json_lines
    assert set(first) == {"partition", "step", "done", "source", "before", "checkpoint", "reason"}
    assert first["checkpoint"] == {"sequenceNumber": 7, "offset": "o7"}
    assert (first["before"], first["done"], second["partition"]) == (None, True, "3")
    assert "copied 2 checkpoints" in result.err
    assert sequences(target) == {"0": 7, "3": 0}


def test_a_group_can_start_where_another_one_is(cli: Cli, hub: str, source: Group) -> None:
    put(source, p0=7)
    audit = group_in(source.store_address, hub, "audit")
    assert cli("checkpoints", "copy", hub, *between(source, audit), "--yes").code == 0
    assert sequences(audit) == {"0": 7}
    assert sequences(source) == {"0": 7}


def test_there_and_back_through_postgres_changes_nothing(
    cli: Cli, hub: str, source: Group, target: Group, postgres_database: Secret
) -> None:
    put(source, p0=7, p1=3)
    database = group_in(postgres_database.reveal(), hub)
    assert cli("checkpoints", "copy", hub, *between(source, database), "--yes").code == 0
    assert cli("checkpoints", "copy", hub, *between(database, target), "--yes").code == 0
    assert sequences(target) == sequences(database) == {"0": 7, "1": 3}


def test_nothing_done_yet_is_copied_too(cli: Cli, hub: str, source: Group, target: Group) -> None:
    key = source.key.partition("0")
    run(source, source.store.reset_checkpoint(key, Checkpoint.before_first(key)))
    assert cli("checkpoints", "copy", hub, *between(source, target), "--yes").code == 0
    assert sequences(target) == {"0": -1}


@pytest.mark.parametrize("missing", ["offset", "sequence number"])
def test_what_a_checkpoint_lacks_is_asked_of_the_hub(
    cli: Cli, hub: str, group: Group, target: Group, missing: str
) -> None:
    append(hub, "0", "a", "b", "c")
    second = cli("tail", hub, "--no-follow", "--json").json_lines[1]
    key = group.key.partition("0")
    partial = Checkpoint(key, "", 1) if missing == "offset" else Checkpoint(key, second["offset"], -1)
    asyncio.run(group.store.reset_checkpoint(key, partial))
    assert cli("checkpoints", "copy", hub, *between(group, target), "--yes").code == 0
    shown = cli("checkpoints", "show", hub, *target.args, "--json").json
    assert shown["checkpoint"] == {"sequenceNumber": 1, "offset": second["offset"]}


def test_a_checkpoint_that_nobody_can_complete_is_not_copied(cli: Cli, hub: str, group: Group, target: Group) -> None:
    key = group.key.partition("0")
    asyncio.run(group.store.reset_checkpoint(key, Checkpoint(key, "gone", -1)))
    result = cli("checkpoints", "copy", hub, *between(group, target), "--yes", "--json")
    assert result.code == ExitCode.FAILED
    assert "lacks the offset or the sequence number" in result.json["reason"]


def test_a_checkpoint_that_is_further_is_kept(cli: Cli, hub: str, source: Group, target: Group) -> None:
    put(source, p0=7, p1=7, p2=7)
    put(target, p0=9, p1=7, p2=3)
    result = cli("checkpoints", "copy", hub, *between(source, target), "--yes", "--json")
    assert result.code == 0
    assert steps(result) == {"0": "kept", "1": "same", "2": "forward"}
    assert sequences(target) == {"0": 9, "1": 7, "2": 7}


def test_a_checkpoint_goes_back_if_asked_for(cli: Cli, hub: str, source: Group, target: Group) -> None:
    put(source, p0=7)
    put(target, p0=9)
    result = cli("checkpoints", "copy", hub, *between(source, target), "--overwrite", "--yes", "--json")
    assert (result.code, steps(result)) == (0, {"0": "back"})
    assert sequences(target) == {"0": 7}


def test_doing_it_again_changes_nothing(cli: Cli, hub: str, source: Group, target: Group) -> None:
    put(source, p0=7)
    cli("checkpoints", "copy", hub, *between(source, target), "--yes")
    again = cli("checkpoints", "copy", hub, *between(source, target))
    assert again.code == 0
    assert "nothing to change" in again.err


def test_without_an_answer_nothing_is_copied(cli: Cli, hub: str, source: Group, target: Group) -> None:
    put(source, p0=7)
    result = cli("checkpoints", "copy", hub, *between(source, target))
    assert result.code == ExitCode.NOT_CONFIRMED
    assert "becomes" in result.err
    assert sequences(target) == {}


def test_a_dry_run_shows_what_would_be_done(cli: Cli, hub: str, source: Group, target: Group) -> None:
    put(source, p0=7)
    result = cli("checkpoints", "copy", hub, *between(source, target), "--dry-run", "--json")
    assert result.code == 0
    assert (result.json["step"], result.json["done"]) == ("set", False)
    assert "nothing was changed" in result.err
    assert sequences(target) == {}


def test_partitions_can_be_chosen(cli: Cli, hub: str, source: Group, target: Group) -> None:
    put(source, p0=7, p1=3)
    assert cli("checkpoints", "copy", hub, *between(source, target), "--partition", "1", "--yes").code == 0
    assert sequences(target) == {"1": 3}
    missing = cli("checkpoints", "copy", hub, *between(source, target), "--partition", "2", "--yes")
    assert missing.code == ExitCode.FAILED
    assert "no checkpoint of partition 2" in missing.err


def test_a_partition_that_somebody_reads_is_left_alone(cli: Cli, hub: str, source: Group, target: Group) -> None:
    put(source, p0=7, p1=7)
    key = target.key.partition("0")
    run(target, target.store.claim_ownership([Ownership(key, "living", epoch=1)]))
    result = cli("checkpoints", "copy", hub, *between(source, target), "--yes", "--json")
    assert result.code == ExitCode.FAILED
    assert steps(result) == {"0": "owned", "1": "set"}
    assert "living owns it" in result.json_lines[0]["reason"]
    assert sequences(target) == {"1": 7}


def test_a_partition_claimed_while_the_question_is_open_is_left_alone(
    cli: Cli, hub: str, source: Group, target: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(source, p0=7, p1=7)

    def claimed_meanwhile(*_args: object, **_kwargs: object) -> None:
        run(target, target.store.claim_ownership([Ownership(target.key.partition("0"), "quick", epoch=1)]))

    monkeypatch.setattr(copying, "confirm", claimed_meanwhile)
    result = cli("checkpoints", "copy", hub, *between(source, target), "--json")
    assert result.code == ExitCode.FAILED
    assert steps(result) == {"0": "owned", "1": "set"}
    assert sequences(target) == {"1": 7}


def test_a_living_owner_is_parted_from_what_is_overwritten(cli: Cli, hub: str, source: Group, target: Group) -> None:
    put(source, p0=7)
    key, store = target.key.partition("0"), target.store
    run(target, store.claim_ownership([Ownership(key, "living", epoch=1)]), store.fence(key, 1))
    assert cli("checkpoints", "copy", hub, *between(source, target), "--overwrite", "--yes").code == 0
    store = open_store(target.store_address)
    late = store.update_checkpoint(Checkpoint(key, "late", 99), epoch=1)
    with pytest.raises(Fenced):
        run(replace(target, store=store), late)
    assert sequences(target) == {"0": 7}


def test_the_next_owner_goes_on_from_what_was_copied(cli: Cli, hub: str, source: Group, target: Group) -> None:
    put(source, p0=7)
    key, store = target.key.partition("0"), target.store
    former = [store.claim_ownership([Ownership(key, "", epoch=4)]), store.fence(key, 4)]
    run(target, *former)
    assert cli("checkpoints", "copy", hub, *between(source, target), "--yes").code == 0

    async def next_owner() -> Checkpoint | None:
        store = open_store(target.store_address)
        try:
            return await store.fence(key, 5)
        finally:
            await store.close()

    assert asyncio.run(next_owner()) == Checkpoint(key, "o7", 7)


def test_a_damaged_record_is_never_copied_nor_passed_over(
    cli: Cli, hub: str, source: Group, target: Group, tmp_path: Path
) -> None:
    put(source, p0=7, p1=7, p2=7)
    put(target, p1=3)
    damage(tmp_path / "source.db", "0")
    damage(tmp_path / "target.db", "1")
    result = cli("checkpoints", "copy", hub, *between(source, target), "--yes", "--json")
    assert result.code == ExitCode.FAILED
    assert steps(result) == {"0": "damaged", "1": "damaged", "2": "set"}
    fixed = cli("checkpoints", "copy", hub, *between(source, target), "--overwrite", "--yes", "--json")
    assert fixed.code == ExitCode.FAILED
    assert steps(fixed) == {"0": "damaged", "1": "repaired", "2": "same"}
    assert sequences(target) == {"1": 7, "2": 7}


def damage(path: Path, partition: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE hubline_checkpoint SET sequence_number = NULL WHERE partition_id = ?", [partition])


@pytest.mark.kills
def test_a_copy_that_was_killed_is_finished_by_the_next(cli: Cli, hub: str, source: Group, target: Group) -> None:
    put(source, p0=7, p1=7, p2=7, p3=7)
    program = """
import os, signal, sys
from hubline.cli.app import main
from hubline.checkpoint_stores.sql_store import SqlStore
update, done = SqlStore.update_checkpoint, []
async def dies_after_the_second(*args, **kwargs):
    done.append(await update(*args, **kwargs))
    if len(done) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
SqlStore.update_checkpoint = dies_after_the_second
main(sys.argv[1:])
"""
    args = ("checkpoints", "copy", hub, *between(source, target), "--yes")
    killed = subprocess.run([sys.executable, "-c", program, *args], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(sequences(target)) >= 2
    assert cli(*args).code == 0
    assert sequences(target) == {"0": 7, "1": 7, "2": 7, "3": 7}


def test_source_and_target_have_to_differ(cli: Cli, hub: str, source: Group) -> None:
    put(source, p0=7)
    result = cli("checkpoints", "copy", hub, *between(source, source), "--yes")
    assert result.code == ExitCode.USAGE
    assert "are the same" in result.err


def test_target_that_ends_with_the_command_is_refused(cli: Cli, hub: str, source: Group) -> None:
    put(source, p0=7)
    result = cli("checkpoints", "copy", hub, "--from-store", source.store_address, "--to-store", "memory:", "--yes")
    assert result.code == ExitCode.USAGE
    assert "Give a store that lasts" in result.err


def test_a_dry_run_makes_no_store(cli: Cli, hub: str, source: Group, target: Group, tmp_path: Path) -> None:
    put(source, p0=7)
    result = cli("checkpoints", "copy", hub, *between(source, target), "--dry-run", "--json")
    assert (result.code, result.json["step"]) == (0, "set")
    assert not (tmp_path / "target.db").exists()


def test_a_source_without_checkpoints_is_reported(cli: Cli, hub: str, source: Group, target: Group) -> None:
    missing = cli("checkpoints", "copy", hub, *between(source, target), "--yes")
    assert missing.code == ExitCode.NOT_FOUND
    assert "no such file" in missing.err
    run(source, source.store.renew_ownership(source.key, Member("a"), []))
    empty = cli("checkpoints", "copy", hub, *between(source, target), "--yes")
    assert empty.code == ExitCode.FAILED
    assert "has no checkpoints" in empty.err


def side(*, owner_age_seconds: float | None = None, **sequences: int) -> Side:
    checkpoints = {name: Checkpoint(GROUP.partition(name), f"o{each}", each) for name, each in sequences.items()}
    owners = {}
    if owner_age_seconds is not None:
        owners = {each: Ownership(GROUP.partition(each), "a", 1, age_seconds=owner_age_seconds) for each in "pq"}
    return Side(checkpoints, owners, {})


@pytest.mark.parametrize(
    ("target", "overwrite", "expected"),
    [
        (side(), False, Kind.SET),
        (side(p=1), False, Kind.FORWARD),
        (side(p=9), False, Kind.KEPT),
        (side(p=9), True, Kind.BACK),
        (side(p=5), True, Kind.SAME),
        (side(p=5, owner_age_seconds=1), False, Kind.SAME),
        (side(p=9, owner_age_seconds=1), False, Kind.KEPT),
        (side(p=1, owner_age_seconds=1), False, Kind.OWNED),
        (side(p=1, owner_age_seconds=1), True, Kind.FORWARD),
    ],
)
def test_step_of_a_partition(target: Side, overwrite: bool, expected: Kind) -> None:
    (step,) = plan_steps(side(p=5), target, GROUP, overwrite=overwrite)
    assert step.kind is expected


def test_moving_forward_never_goes_back_nor_shuts_an_owner_out() -> None:
    key = GROUP.partition("0")

    async def scenario() -> None:
        store = MemoryStore()
        await store.fence(key, 6)
        await store.update_checkpoint(Checkpoint(key, "o9", 9), epoch=6)
        await move_forward(store, Checkpoint(key, "o7", 7))
        assert await store.list_checkpoints(GROUP) == [Checkpoint(key, "o9", 9)]
        await move_forward(store, Checkpoint(key, "o12", 12))
        await store.update_checkpoint(Checkpoint(key, "o13", 13), epoch=6)
        assert await store.list_checkpoints(GROUP) == [Checkpoint(key, "o13", 13)]

    asyncio.run(scenario())
