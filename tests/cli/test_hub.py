"""``hubline hub``: hubs are created, listed, shown, grown and deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from hubline.cli.exit_codes import ExitCode
from tests.cli.conftest import PARTITIONS, Cli, append


def test_created_hub_is_listed_and_shown(cli: Cli) -> None:
    created = cli("hub", "create", "local:./data/orders", "--partitions", "2", "--retention", "7d")
    assert (created.code, created.out) == (0, "")
    assert "with 2 partitions" in created.err
    assert "orders" in cli("hub", "list", "local:./data").out
    assert "partition" in cli("hub", "show", "local:./data/orders").out


def test_partitions_have_a_default(cli: Cli) -> None:
    assert cli("hub", "create", "local:./data/orders").code == 0
    assert cli("hub", "show", "local:./data/orders", "--json").json["partitionCount"] == 4


def test_existing_hub_is_not_created_again(cli: Cli, hub: str) -> None:
    result = cli("hub", "create", hub)
    assert result.code == ExitCode.FAILED
    assert "already exists" in result.err


@pytest.mark.parametrize("flags", [("--retention", "soon"), ("--retention-size", "much"), ("--retention", "0s")])
def test_wrong_retention_creates_nothing(cli: Cli, flags: tuple[str, str]) -> None:
    assert cli("hub", "create", "local:./data/orders", *flags).code == ExitCode.USAGE
    assert not Path("data").exists()


def test_list_as_json_is_one_object_a_hub(cli: Cli, hub: str) -> None:
    cli("hub", "create", "local:./data/another", "--partitions", "1")
    hubs = cli("hub", "list", "local:./data", "--json").json_lines
    assert [(each["hub"], each["partitionCount"], each["problem"]) for each in hubs] == [
        ("another", 1, None),
        ("orders", PARTITIONS, None),
    ]
    assert hubs[0]["createdTime"].endswith("Z")


def test_damaged_hub_is_listed_with_its_problem_beside_the_others(cli: Cli, hub: str, tmp_path: Path) -> None:
    cli("hub", "create", "local:./data/damaged")
    (tmp_path / "data/damaged/hub.db").write_bytes(b"not a database" * 100)
    result = cli("hub", "list", "local:./data", "--json")
    assert result.code == 0
    assert [each["problem"] is None for each in result.json_lines] == [False, True]


def test_empty_folder_is_reported_on_stderr(cli: Cli) -> None:
    result = cli("hub", "list", "local:./data")
    assert (result.code, result.out) == (0, "")
    assert "there are no hubs" in result.err


def test_show_counts_what_partitions_hold(cli: Cli, hub: str) -> None:
    append(hub, "1", "a", "b")
    shown = cli("hub", "show", hub, "--json").json
    assert (shown["hub"], shown["partitionCount"]) == ("orders", PARTITIONS)
    held = {each["partition"]: each for each in shown["partitions"]}
    assert (held["1"]["beginningSequenceNumber"], held["1"]["lastEnqueuedSequenceNumber"]) == (0, 1)
    assert (held["0"]["beginningSequenceNumber"], held["0"]["lastEnqueuedSequenceNumber"]) == (0, -1)
    assert held["0"]["lastEnqueuedTime"] is None
    assert set(held["1"]) == {
        "partition", "beginningSequenceNumber", "lastEnqueuedSequenceNumber", "lastEnqueuedOffset", "lastEnqueuedTime",
        "bytes",
    }  # fmt: skip


def test_grown_hub_has_more_partitions_and_never_fewer(cli: Cli, hub: str) -> None:
    assert cli("hub", "grow", hub, "--partitions", "6").code == 0
    assert cli("hub", "show", hub, "--json").json["partitionCount"] == 6
    shrunk = cli("hub", "grow", hub, "--partitions", "2")
    assert shrunk.code == ExitCode.USAGE
    assert "not removed" in shrunk.err


def test_delete_without_an_answer_changes_nothing(cli: Cli, hub: str) -> None:
    append(hub, "0", "a")
    result = cli("hub", "delete", hub)
    assert result.code == ExitCode.NOT_CONFIRMED
    assert "with 4 partitions and 1 event? There is no terminal to ask on. Add --yes" in result.err
    assert cli("hub", "show", hub).code == 0


def test_delete_with_yes_deletes(cli: Cli, hub: str) -> None:
    assert cli("hub", "delete", hub, "--yes").code == 0
    assert cli("hub", "show", hub).code == ExitCode.NOT_FOUND
    assert cli("hub", "delete", hub, "--yes").code == ExitCode.NOT_FOUND


@pytest.mark.parametrize("verb", [("create",), ("grow", "--partitions", "9"), ("delete", "--yes")])
def test_hubs_of_the_service_are_not_administered(cli: Cli, verb: tuple[str, ...]) -> None:
    result = cli("hub", verb[0], "eventhubs://ns/orders", *verb[1:])
    assert result.code == ExitCode.USAGE
    assert "local hubs only" in result.err
