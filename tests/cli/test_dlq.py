"""``hubline dlq``: dead letters listed, shown, exported and discarded; never without a yes."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hubline
from hubline.adapters import open_hub
from hubline.cli.exit_codes import ExitCode
from hubline.model.dead_letters import DeadLetter
from hubline.model.events import Event
from hubline.model.keys import GroupKey
from tests.cli.conftest import Cli, append
from tests.dead_letters.conftest import dead_letter, keep

AUDIT = GroupKey("local:/data", "orders", "audit")


@pytest.fixture
def sink(tmp_path: Path) -> str:
    """A database with some dead letters."""
    url = f"sqlite:///{tmp_path}/dead_letters.db"
    keep(
        url,
        [
            dead_letter(3, body=b'{"n": 3}', key="customer-7", properties={"kind": "order\x1b[31m"}),
            dead_letter(10, error=KeyError("missing")),
            dead_letter(2, partition="1", body=b"\xff\x00\x01" * 200),
            dead_letter(3, group=AUDIT),
        ],
    )
    return url


def listed(cli: Cli, *args: str) -> list[str]:
    shown = cli("dlq", "list", "--json", *args).json_lines
    return [f"{each['consumerGroup']}/{each['partition']}/{each['sequenceNumber']}" for each in shown]


class TestListing:
    def test_dead_letters_are_listed_in_a_stable_order(self, cli: Cli, sink: str) -> None:
        assert listed(cli, "--sink", sink) == ["audit/0/3", "billing/0/3", "billing/0/10", "billing/1/2"]

    @pytest.mark.parametrize(
        ("flags", "count"),
        [
            (("--group", "billing"), 3),
            (("--partition", "0"), 3),
            (("--partition", "0", "--partition", "1"), 4),
            (("--error-type", "KeyError"), 1),
            (("--error-text", "TAKE 3"), 2),
            (("--since", "-1h"), 4),
            (("--until", "-1h"), 0),
            (("--since", "2100-01-01T00:00:00Z"), 0),
            (("--state", "discarded"), 0),
            (("--state", "all"), 4),
            (("--hub", "local:/data/orders"), 4),
            (("--hub", "local:/data/others"), 0),
            (("--limit", "2"), 2),
        ],
    )
    def test_flags_choose(self, cli: Cli, sink: str, flags: tuple[str, ...], count: int) -> None:
        assert len(listed(cli, "--sink", sink, *flags)) == count

    def test_pages_go_on_where_the_last_one_ended(self, cli: Cli, sink: str) -> None:
        first = cli("dlq", "list", "--sink", sink, "--limit", "3", "--json")
        after = first.json_lines[-1]["id"]
        assert f"Add --after {after}" in first.err
        second = cli("dlq", "list", "--sink", sink, "--limit", "3", "--json", "--after", after)
        assert [each["id"] for each in second.json_lines] == ["local:/data/orders/billing/1/2"]
        assert second.err == ""
        last = second.json["id"]
        assert "no more dead letters" in cli("dlq", "list", "--sink", sink, "--after", last).err

    def test_table_shows_what_people_look_for(self, cli: Cli, sink: str) -> None:
        result = cli("dlq", "list", "--sink", sink, "--group", "billing")
        assert "0/3" in result.out
        assert "customer-7" in result.out
        assert "KeyError: 'missing'" in result.out

    def test_database_without_dead_letters_says_so(self, cli: Cli, sink: str) -> None:
        result = cli("dlq", "list", "--sink", sink, "--group", "nobody")
        assert (result.code, result.out) == (0, "")
        assert "no dead letters match" in result.err

    @pytest.mark.parametrize(
        ("flags", "says"),
        [
            (("--state", "lost"), "--state must be waiting, redriven, discarded or all"),
            (("--since", "yesterday"), "the time 'yesterday' is unknown"),
            (("--since", "-1h", "--until", "-2h"), "since is later than until"),
            (("--after", "0/3"), "is not a full ID"),
            (("--after", "nothing"), "is not the ID of a dead letter"),
            (("--partition", ""), "partition"),
            (("--limit", "0"), "--limit"),
        ],
    )
    def test_wrong_flags_are_reported(self, cli: Cli, sink: str, flags: tuple[str, ...], says: str) -> None:
        result = cli("dlq", "list", "--sink", sink, *flags)
        assert result.code == ExitCode.USAGE
        assert says in result.err

    def test_missing_file_is_not_made(self, cli: Cli, tmp_path: Path) -> None:
        result = cli("dlq", "list", "--sink", f"sqlite:///{tmp_path}/none.db")
        assert result.code == ExitCode.NOT_FOUND
        assert "no such file" in result.err
        assert not (tmp_path / "none.db").exists()

    @pytest.mark.parametrize("address", ["memory:", "https://account.blob.core.windows.net/container"])
    def test_store_that_has_no_dead_letters_is_refused(self, cli: Cli, address: str) -> None:
        result = cli("dlq", "list", "--sink", address)
        assert result.code == ExitCode.USAGE
        assert "sqlite:///PATH or postgresql://" in result.err


class TestShowing:
    def test_property_without_a_value_shows_as_a_dash(self, cli: Cli, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/dead_letters.db"
        nothing: Any = None
        keep(url, [dead_letter(1, properties={"note": nothing})])
        assert "property  note = -\n" in cli("dlq", "show", "0/1", "--sink", url).out

    def test_dead_letter_is_shown_in_full_and_harmless_to_a_terminal(self, cli: Cli, sink: str) -> None:
        result = cli("dlq", "show", "0/3", "--sink", sink, "--group", "billing")
        assert result.code == 0
        assert "ValueError: cannot take 3" in result.out
        assert '{"n": 3}' in result.out
        assert "kind = order\\x1b[31m" in result.out
        assert "\x1b" not in result.out

    def test_body_that_is_no_text_is_shown_in_hexadecimal(self, cli: Cli, sink: str) -> None:
        result = cli("dlq", "show", "1/2", "--sink", sink)
        assert "0000  ff 00 01 ff" in result.out
        assert "344B more" in result.out

    def test_line_of_the_user_is_shown_and_those_of_hubline_are_folded(self, cli: Cli, tmp_path: Path) -> None:
        own = "".join(
            f'  File "{Path(hubline.__file__).parent}/processor/handlers/caller.py", line {number}, in _call_handler\n'
            for number in range(9)
        )
        url = f"sqlite:///{tmp_path}/traceback.db"
        failed = replace(dead_letter(1), traceback=f'{own}  File "/home/me/app.py", line 7, in handle\n')
        keep(url, [failed])
        shown = cli("dlq", "show", "0/1", "--sink", url).out.splitlines()
        (first,) = [index for index, line in enumerate(shown) if "File" in line]
        assert shown[first : first + 2] == [
            '  File "/home/me/app.py", line 7, in handle',
            "    (9 frames of hubline not shown)",
        ]
        assert cli("dlq", "show", "0/1", "--sink", url, "--json").json["traceback"] == failed.traceback

    def test_json_has_everything(self, cli: Cli, sink: str) -> None:
        shown = cli("dlq", "show", "local:/data/orders/billing/0/3", "--sink", sink, "--json").json
        assert (shown["body"], shown["properties"]["kind"]) == ('{"n": 3}', "order\x1b[31m")
        assert (shown["errorType"], shown["attempts"], shown["stage"], shown["state"]) == (
            "ValueError", 3, "handler", "waiting",
        )  # fmt: skip
        binary = cli("dlq", "show", "1/2", "--sink", sink, "--json").json
        assert binary["bodyBase64"].startswith("/wAB")

    def test_ambiguous_dead_letter_is_reported(self, cli: Cli, sink: str) -> None:
        result = cli("dlq", "show", "0/3", "--sink", sink)
        assert result.code == ExitCode.USAGE
        assert "local:/data/orders/audit/0/3 or local:/data/orders/billing/0/3" in result.err

    def test_missing_dead_letter_fails(self, cli: Cli, sink: str) -> None:
        result = cli("dlq", "show", "0/99", "--sink", sink)
        assert result.code == ExitCode.FAILED
        assert "there is no dead letter 0/99" in result.err

    def test_body_that_is_not_kept_is_read_from_the_hub(self, cli: Cli, hub: str, tmp_path: Path) -> None:
        append(hub, "1", "first", "second")
        url = f"sqlite:///{tmp_path}/pointers.db"
        keep(url, [pointer(cli, hub, 1)], keep_dead_letter_bodies=False)
        assert "does not keep the body" in cli("dlq", "show", "1/1", "--sink", url).out
        assert cli("dlq", "show", "1/1", "--sink", url, "--hub", hub, "--json").json["body"] == "second"

    def test_event_that_the_hub_has_forgotten_is_reported(self, cli: Cli, hub: str, tmp_path: Path) -> None:
        append(hub, "1", "first", "second")
        url = f"sqlite:///{tmp_path}/pointers.db"
        keep(url, [pointer(cli, hub, 1)], keep_dead_letter_bodies=False)
        cli("hub", "delete", hub, "--yes")
        cli("hub", "create", hub)
        result = cli("dlq", "show", "1/1", "--sink", url, "--hub", hub)
        assert result.code == 0
        assert "the hub has forgotten the event" in result.err


def pointer(cli: Cli, hub: str, sequence: int) -> DeadLetter:
    """A dead letter of an event that is in the hub."""
    events = cli("tail", hub, "--no-follow", "--json").json_lines
    (found,) = [each for each in events if each["sequenceNumber"] == sequence]
    opened = open_hub(hub)
    group = GroupKey(opened.namespace, opened.name, "billing")
    made = dead_letter(sequence, group=group, partition=found["partition"])
    event = made.event
    kept = Event(b"", event.partition, found["offset"], sequence, event.enqueued_time)
    return DeadLetter.of(made.key, kept, ValueError("no"), attempts=1)


class TestDiscarding:
    def test_discarded_dead_letters_no_longer_wait_and_are_kept(self, cli: Cli, sink: str) -> None:
        result = cli("dlq", "discard", "--sink", sink, "--group", "billing", "--partition", "0", "--yes", "--json")
        assert (result.code, result.json) == (0, {"deadLetters": 2, "deleted": False})
        assert listed(cli, "--sink", sink) == ["audit/0/3", "billing/1/2"]
        assert listed(cli, "--sink", sink, "--state", "discarded") == ["billing/0/3", "billing/0/10"]

    def test_single_dead_letters_are_discarded_by_their_ids(self, cli: Cli, sink: str) -> None:
        cli("dlq", "discard", "1/2", "local:/data/orders/audit/0/3", "--sink", sink, "--yes")
        assert listed(cli, "--sink", sink) == ["billing/0/3", "billing/0/10"]

    def test_deleted_dead_letters_are_gone(self, cli: Cli, sink: str) -> None:
        cli("dlq", "discard", "--sink", sink, "--error-type", "KeyError", "--delete", "--yes")
        assert listed(cli, "--sink", sink, "--state", "all") == ["audit/0/3", "billing/0/3", "billing/1/2"]

    def test_settled_dead_letters_are_tidied_up(self, cli: Cli, sink: str) -> None:
        cli("dlq", "discard", "--sink", sink, "--group", "billing", "--yes")
        refused = cli("dlq", "discard", "--sink", sink, "--state", "discarded", "--yes")
        assert refused.code == ExitCode.USAGE
        assert "Add --delete" in refused.err
        cli("dlq", "discard", "--sink", sink, "--state", "discarded", "--delete", "--yes")
        assert listed(cli, "--sink", sink, "--state", "all") == ["audit/0/3"]

    def test_without_an_answer_nothing_is_changed(self, cli: Cli, sink: str) -> None:
        result = cli("dlq", "discard", "--sink", sink)
        assert result.code == ExitCode.NOT_CONFIRMED
        assert "Discard 4 dead letters?" in result.err
        assert ["local:/data/orders/audit", "0", "waiting", "ValueError", "1"] in [
            line.split() for line in result.err.splitlines()
        ]
        assert len(listed(cli, "--sink", sink)) == 4

    def test_nothing_to_discard_is_no_failure(self, cli: Cli, sink: str) -> None:
        result = cli("dlq", "discard", "--sink", sink, "--group", "nobody")
        assert result.code == 0
        assert "no dead letters match" in result.err

    def test_discarding_again_changes_nothing(self, cli: Cli, sink: str) -> None:
        cli("dlq", "discard", "--sink", sink, "--yes")
        assert "no dead letters match" in cli("dlq", "discard", "--sink", sink, "--yes").err


class TestExporting:
    def test_lines_have_everything_and_go_to_stdout(self, cli: Cli, sink: str) -> None:
        result = cli("dlq", "export", "--sink", sink)
        assert "exported 4 dead letters" in result.err
        dead_letters = result.json_lines
        assert dead_letters[0]["id"] == "local:/data/orders/audit/0/3"
        assert dead_letters[1]["body"] == '{"n": 3}'
        assert all("traceback" in each for each in dead_letters)

    def test_lines_of_a_file_have_the_events_whole(self, cli: Cli, sink: str, tmp_path: Path) -> None:
        assert cli("dlq", "export", "--sink", sink, "--output", "out.jsonl").code == 0
        lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
        assert [line["sequenceNumber"] for line in lines] == [3, 3, 10, 2]
        assert base64.b64decode(lines[3]["bodyBase64"]) == b"\xff\x00\x01" * 200
        assert lines[1]["properties"] == {"kind": "order\x1b[31m"}
        assert ".123456" in lines[1]["enqueuedTime"]

    def test_pointers_have_no_body(self, cli: Cli, tmp_path: Path) -> None:
        url = f"sqlite:///{tmp_path}/pointers.db"
        keep(url, [dead_letter(1)], keep_dead_letter_bodies=False)
        cli("dlq", "export", "--sink", url, "--output", "out.jsonl")
        line = json.loads((tmp_path / "out.jsonl").read_text())
        assert (line["bodyKept"], line["body"], line["properties"]) == (False, None, None)

    def test_file_that_is_there_is_replaced_only_if_asked_for(self, cli: Cli, sink: str, tmp_path: Path) -> None:
        (tmp_path / "out.jsonl").write_text("precious")
        args = ("dlq", "export", "--sink", sink, "--output", "out.jsonl")
        assert cli(*args).code == ExitCode.NOT_CONFIRMED
        assert (tmp_path / "out.jsonl").read_text() == "precious"
        assert cli(*args, "--yes").code == 0
        assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 4

    def test_failed_export_leaves_what_was_there(
        self, cli: Cli, sink: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_args: object) -> None:
            raise OSError(28, "No space left on device")

        (tmp_path / "out.jsonl").write_text("precious")
        monkeypatch.setattr("hubline.cli.dlq.export.dead_letter_data", broken)
        assert cli("dlq", "export", "--sink", sink, "--output", "out.jsonl", "--yes").code == ExitCode.FAILED
        assert (tmp_path / "out.jsonl").read_text() == "precious"
        assert not list(tmp_path.glob("*.part"))
