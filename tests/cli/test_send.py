"""``hubline send``: lines and made-up events arrive, in order, where they were sent."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from hubline.cli.exit_codes import ExitCode
from tests.cli.conftest import Cli


def bodies(cli: Cli, hub: str, *flags: str) -> list[str]:
    events = cli("tail", hub, "--no-follow", "--json", *flags).json_lines
    return [event["body"] for event in events]


def test_lines_of_stdin_are_sent_without_their_ends(cli: Cli, hub: str) -> None:
    result = cli("send", hub, "--partition", "2", stdin=b"one\ntwo\r\n\nlast without an end")
    assert (result.code, result.out) == (0, "")
    assert "sent 4 events" in result.err
    assert bodies(cli, hub, "--partition", "2") == ["one", "two\r", "", "last without an end"]


def test_lines_of_files_are_sent_in_order(cli: Cli, hub: str) -> None:
    Path("a").write_text("1\n2\n")
    Path("b").write_text("3\n")
    assert cli("send", hub, "--file", "a", "--file", "b", "--key", "k").code == 0
    assert bodies(cli, hub) == ["1", "2", "3"]


def test_events_of_one_key_go_to_one_partition_and_carry_it(cli: Cli, hub: str) -> None:
    cli("send", hub, "--key", "k", stdin=b"a\nb\nc\n")
    events = cli("tail", hub, "--no-follow", "--json").json_lines
    assert {event["partitionKey"] for event in events} == {"k"}
    assert len({event["partition"] for event in events}) == 1


def test_events_without_a_key_go_to_all_partitions(cli: Cli, hub: str) -> None:
    cli("send", hub, "--generate", "400")
    shown = cli("hub", "show", hub, "--json").json
    assert [each["lastEnqueuedSequenceNumber"] for each in shown["partitions"]] == [99] * 4


def test_made_up_events_have_the_size_and_number_asked_for(cli: Cli, hub: str) -> None:
    result = cli("send", hub, "--generate", "12", "--size", "1KiB", "--partition", "0", "--json")
    assert result.json["events"] == 12
    assert result.json["bytes"] == 12 * 1024
    sent = bodies(cli, hub)
    assert {len(body) for body in sent} == {1024}
    assert [body.split()[0] for body in sent] == [str(number) for number in range(12)]


def test_made_up_keys_are_given_in_turn(cli: Cli, hub: str) -> None:
    cli("send", hub, "--generate", "12", "--keys", "3")
    events = cli("tail", hub, "--no-follow", "--json").json_lines
    by_key = {key: [e["partition"] for e in events if e["partitionKey"] == key] for key in ("key-0", "key-1", "key-2")}
    assert all(len(partitions) == 4 and len(set(partitions)) == 1 for partitions in by_key.values())


def test_rate_is_not_exceeded(cli: Cli, hub: str) -> None:
    started_at = time.monotonic()
    assert cli("send", hub, "--generate", "10", "--rate", "50").code == 0
    assert time.monotonic() - started_at >= 10 / 50


def test_many_lines_come_through_whole(cli: Cli, hub: str) -> None:
    lines = [f"{number:0{number % 300}d}" for number in range(20_000)]
    assert cli("send", hub, "--partition", "0", stdin="\n".join(lines).encode()).code == 0
    assert bodies(cli, hub, "--partition", "0") == lines


def test_nothing_on_stdin_sends_nothing(cli: Cli, hub: str) -> None:
    result = cli("send", hub)
    assert result.code == 0
    assert "sent 0 events" in result.err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (
            ("--partition", "0", "--key", "k"),
            "--partition and --key can't be used together, because each says where events go",
        ),
        (
            ("--generate", "1", "--keys", "2", "--key", "k"),
            "--key and --keys can't be used together, because each says where events go",
        ),
        (
            ("--generate", "1", "--file", "x"),
            "--file and --generate can't be used together, because each says what to send",
        ),
        (("--keys", "2"), "Add --generate N"),
        (("--generate", "1", "--size", "big"), "the size 'big' is unknown"),
        (("--partition", "../0"), "partition id '../0' is not allowed"),
    ],
)
def test_flags_that_contradict_each_other_send_nothing(cli: Cli, hub: str, flags: tuple[str, ...], says: str) -> None:
    result = cli("send", hub, *flags, stdin=b"a\n")
    assert result.code == ExitCode.USAGE
    assert says in result.err
    assert bodies(cli, hub) == []


def test_unknown_partition_and_missing_file_are_reported(cli: Cli, hub: str) -> None:
    assert cli("send", hub, "--partition", "9", stdin=b"a\n").code == ExitCode.NOT_FOUND
    missing = cli("send", hub, "--file", "not-there")
    assert missing.code == ExitCode.FAILED
    assert "not-there" in missing.err


def test_event_that_is_too_large_is_reported_with_what_was_sent_before(cli: Cli, hub: str) -> None:
    Path("small").write_text("a\nb\n")
    Path("large").write_text("x" * 3_000_000)
    result = cli("send", hub, "--file", "small", "--file", "large")
    assert result.code == ExitCode.FAILED
    assert "sent 2 events, then stopped" in result.err
    assert sorted(bodies(cli, hub)) == ["a", "b"]


def test_endless_line_is_refused_before_it_fills_the_memory(
    cli: Cli, hub: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hubline.cli.lines.LINE_BYTES_MAX", 1000)
    monkeypatch.setattr("hubline.cli.lines.CHUNK_BYTES", 100)
    result = cli("send", hub, stdin=b"x" * 5000)
    assert result.code == ExitCode.USAGE
    assert "longer than 1,000 bytes" in result.err
