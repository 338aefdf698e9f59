"""``hubline tail``: events are shown from the place asked for, in order, and harmlessly."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import replace
from datetime import datetime
from typing import Any, cast

import pytest

import hubline
from hubline.adapters import open_hub
from hubline.cli.exit_codes import ExitCode
from hubline.cli.session import using_hub
from hubline.model.events import EventBatch, new_events
from hubline.model.positions import Position
from hubline.sinks.dead_letter_hub import TRACEBACK_PROPERTY, DeadLetterHub
from tests.cli.conftest import Cli, append
from tests.dead_letters.conftest import dead_letter


def test_json_carries_every_field(cli: Cli, hub: str) -> None:
    async def send_with_properties() -> None:
        opened = open_hub(hub)
        sender = await opened.open_sender()
        event = {"body": "größe", "partitionKey": "k", "properties": {"kind": "test"}}
        await sender.send(new_events([event]), partition="0")
        await sender.close()
        await opened.close()

    asyncio.run(send_with_properties())
    event = cli("tail", hub, "--no-follow", "--json").json
    assert datetime.fromisoformat(event.pop("enqueuedTime")).tzinfo is not None
    assert event.pop("offset")
    assert event == {
        "partition": "0",
        "sequenceNumber": 0,
        "partitionKey": "k",
        "properties": {"kind": "test"},
        "body": "größe",
    }


def test_body_that_is_no_text_is_base64(cli: Cli, hub: str) -> None:
    append(hub, "0", b"\xff\x00")
    event = cli("tail", hub, "--no-follow", "--json").json
    assert base64.b64decode(event["bodyBase64"]) == b"\xff\x00"
    assert "body" not in event


def test_line_shows_time_place_and_body(cli: Cli, hub: str) -> None:
    append(hub, "3", "hello")
    (line,) = cli("tail", hub, "--no-follow").out.splitlines()
    time, place, body = line.split("  ")
    assert time.endswith("Z")
    assert (place, body) == ("3/0", "hello")


def test_property_without_a_value_shows_as_a_dash(cli: Cli, hub: str) -> None:
    async def send_with_nothing() -> None:
        async with using_hub(hub) as opened:
            sender = await opened.open_sender()
            await sender.send(new_events([{"body": "x", "properties": {"note": None}}]), partition="0")
            await sender.close()

    asyncio.run(send_with_nothing())
    assert cli("tail", hub, "--no-follow").out.endswith("0/0  x  [note=-]\n")
    assert cli("tail", hub, "--no-follow", "--json").json["properties"] == {"note": None}


def test_traceback_of_a_dead_letter_is_below_its_event_the_users_line_first(cli: Cli, hub: str) -> None:
    async def keep() -> None:
        async with using_hub(hub) as opened:
            traceback = (
                f'  File "{hubline.__file__}", line 1, in call\n  File "/app/app.py", line 7, in handle\nKeyError\n'
            )
            dead_letters = DeadLetterHub(opened)
            await dead_letters.add([replace(dead_letter(3), traceback=traceback)])
            await dead_letters.close()

    asyncio.run(keep())
    event, *below = cli("tail", hub, "--no-follow").out.splitlines()
    assert "hubline-letter-error-type=" in event
    assert "traceback" not in event
    assert below == ['  File "/app/app.py", line 7, in handle', "    (1 frame of hubline not shown)"]
    assert TRACEBACK_PROPERTY in cli("tail", hub, "--no-follow", "--json").json["properties"]


def test_control_characters_cannot_reach_the_terminal(cli: Cli, hub: str) -> None:
    append(hub, "0", "\x1b]0;owned\x07\nnext", b"\xff\x1b")
    out = cli("tail", hub, "--no-follow").out
    assert len(out.splitlines()) == 2
    assert out.replace("\n", "").isprintable()
    assert cli("tail", hub, "--no-follow", "--json").out.isascii()


@pytest.mark.parametrize(
    ("position", "shown"),
    [
        ("earliest", ["0", "1", "2", "3"]),
        ("sequence:1", ["2", "3"]),
        ("sequence:1:inclusive", ["1", "2", "3"]),
        ("latest:inclusive", ["3"]),
        ("latest", []),
        ("time:-1h", ["0", "1", "2", "3"]),
        ("time:2999-12-31T00:00:00Z", []),
        ("sequence:3", []),
        ("sequence:3:inclusive", ["3"]),
    ],
)
def test_reading_starts_at_the_position(cli: Cli, hub: str, position: str, shown: list[str]) -> None:
    append(hub, "0", "0", "1", "2", "3")
    result = cli("tail", hub, "--partition", "0", "--no-follow", "--json", "--position", position)
    assert [event["body"] for event in result.json_lines] == shown


def test_nothing_comes_after_the_last_event_which_is_included_if_asked(cli: Cli, hub: str) -> None:
    append(hub, "0", "0", "1")
    last = cli("tail", hub, "--no-follow", "--json").json_lines[-1]
    read = ("tail", hub, "--partition", "0", "--no-follow", "--json", "--position")
    for kind in (f"offset:{last['offset']}", f"time:{last['enqueuedTime']}"):
        after, at = cli(*read, f"{kind}:exclusive"), cli(*read, f"{kind}:inclusive")
        assert (after.code, after.json_lines) == (ExitCode.OK, [])
        assert at.json_lines[-1] == last


class Stalling:
    """A hub, or a receiver of it, that sends nothing to who waits for less than ``stall_seconds``."""

    def __init__(self, real: Any, stall_seconds: float) -> None:
        self._real = real
        self._stall_seconds = stall_seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def open_receiver(self, partition: str, **how: Any) -> Stalling:
        return Stalling(await self._real.open_receiver(partition, **how), self._stall_seconds)

    async def receive(self, *, max_count: int, wait_seconds: float) -> EventBatch:
        if wait_seconds < self._stall_seconds:
            return EventBatch.empty("0")
        return cast("EventBatch", await self._real.receive(max_count=min(max_count, 2), wait_seconds=wait_seconds))


def test_events_that_are_there_are_waited_for(cli: Cli, hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    append(hub, "0", "0", "1", "2", "3")
    monkeypatch.setattr("hubline.cli.session.open_hub", lambda address: Stalling(open_hub(address), 10))
    result = cli("tail", hub, "--no-follow", "--json")
    assert [event["body"] for event in result.json_lines] == ["0", "1", "2", "3"]


def test_events_that_are_there_and_do_not_come_are_an_error(
    cli: Cli, hub: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(hub, "0", "0")
    monkeypatch.setattr("hubline.cli.session.open_hub", lambda address: Stalling(open_hub(address), 1e9))
    result = cli("tail", hub, "--no-follow", "--json")
    assert (result.code, result.out) == (ExitCode.UNAVAILABLE, "")
    assert "not all events were shown" in result.err


def test_position_that_is_not_there_is_an_error(cli: Cli, hub: str) -> None:
    append(hub, "0", "a")
    result = cli("tail", hub, "--partition", "0", "--position", "sequence:7")
    assert result.code == ExitCode.USAGE
    assert "after the last event" in result.err


def test_partitions_can_be_chosen(cli: Cli, hub: str) -> None:
    for partition in "0123":
        append(hub, partition, partition)
    shown = cli("tail", hub, "--no-follow", "--json", "--partition", "1", "--partition", "3").json_lines
    assert sorted(event["body"] for event in shown) == ["1", "3"]
    missing = cli("tail", hub, "--partition", "17")
    assert missing.code == ExitCode.NOT_FOUND
    assert "has no partition 17. Choose from 0, 1, 2, 3." in missing.err


def test_following_ends_after_the_count(cli: Cli, hub: str) -> None:
    append(hub, "0", *(str(number) for number in range(10)))
    result = cli("tail", hub, "--position", "earliest", "--limit", "3", "--json")
    assert result.code == 0
    assert [event["body"] for event in result.json_lines] == ["0", "1", "2"]


def test_events_of_an_added_partition_show_while_following(cli: Cli, hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hubline.cli.tail._LOOK_FOR_PARTITIONS_SECONDS", 0.01)
    real = open_hub(hub)

    class Growing:
        """A hub that shows one partition at first, and all of them from then on."""

        def __init__(self) -> None:
            self.looks = 0

        def __getattr__(self, name: str) -> object:
            return getattr(real, name)

        async def describe(self) -> object:
            properties = await real.describe()
            self.looks += 1
            if self.looks > 1:
                return properties
            return type(properties)(properties.namespace, properties.name, ("0",), properties.created_at)

    append(hub, "3", "from the added one")
    monkeypatch.setattr("hubline.cli.session.open_hub", lambda _: Growing())
    result = cli("tail", hub, "--limit", "1", "--json")
    assert result.json["partition"] == "3"


def test_tailing_takes_no_partition_from_an_epoch_reader(cli: Cli, hub: str) -> None:
    append(hub, "0", "a", "b")

    async def read_beside_tail() -> list[bytes]:
        opened = open_hub(hub)
        receiver = await opened.open_receiver("0", group="billing", position=Position.earliest(), epoch=1)
        first = await receiver.receive(max_count=1, wait_seconds=10)
        await asyncio.to_thread(cli, "tail", hub, "--no-follow")
        second = await receiver.receive(max_count=1, wait_seconds=10)
        await receiver.close()
        await opened.close()
        return first.bodies + second.bodies

    assert asyncio.run(read_beside_tail()) == [b"a", b"b"]
