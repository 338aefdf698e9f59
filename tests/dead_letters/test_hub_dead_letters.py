"""Dead letters in a hub: they tell where they came from and why, to us and to everybody else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import pytest

from hubline.errors import ConfigError, HubNotFound
from hubline.hubs.local import LocalHub, create_hub
from hubline.model.dead_letters import DeadLetter
from hubline.model.events import Event, new_events
from hubline.model.positions import Position
from hubline.processor import Processor, ProcessorOptions, RetryPolicy
from hubline.sinks.dead_letter_hub import DEAD_LETTER_PREFIX, DeadLetterHub
from tests.dead_letters.conftest import GROUP, dead_letter

T = TypeVar("T")


def in_hub(root: Path, work: Callable[[LocalHub], Awaitable[T]]) -> T:
    async def run() -> T:
        await create_hub(root, "dead", partitions=1)
        hub = LocalHub(root, "dead")
        try:
            return await work(hub)
        finally:
            await hub.close()

    return asyncio.run(run())


async def events_of(hub: LocalHub) -> list[Event]:
    receiver = await hub.open_receiver("0", group="readers", position=Position.earliest())
    try:
        return list(await receiver.receive(max_count=100, wait_seconds=10))
    finally:
        await receiver.close()


def kept(root: Path, *dead_letters: DeadLetter) -> list[Event]:
    async def work(hub: LocalHub) -> list[Event]:
        box = DeadLetterHub(hub)
        await box.add(dead_letters)
        await box.close()
        return await events_of(hub)

    return in_hub(root, work)


def failed(sequence: int, **parts: object) -> DeadLetter:
    """A dead letter of an event that failed just here, so that it has a traceback."""
    try:
        raise ValueError(f"cannot take {sequence} \udcff\x00")
    except ValueError as error:
        return dead_letter(sequence, error=error, **parts)  # type: ignore[arg-type]


def test_dead_letter_reads_back_as_it_was(tmp_path: Path) -> None:
    added = failed(5, body=b"\xff\x00", key="customer-7", properties={"a": "b", "\u20ac": ""})
    (event,) = kept(tmp_path, added)
    assert event.partition_key == "customer-7"
    assert DeadLetterHub.read(event) == replace(added, error_text="cannot take 5 \\udcff\\x00")


def test_any_client_sees_the_event_and_why_it_is_there(tmp_path: Path) -> None:
    (event,) = kept(tmp_path, failed(5, properties={"a": "b"}))
    shown = {name.removeprefix(DEAD_LETTER_PREFIX): value for name, value in event.properties.items()}
    assert event.body == b"event 5"
    assert (shown["a"], shown["hub"], shown["group"], shown["sequence"]) == ("b", GROUP.hub, GROUP.group, "5")
    assert (shown["error-type"], shown["attempts"], shown["stage"]) == ("ValueError", "3", "handler")
    assert "in failed" in shown["traceback"]


def test_pointer_stays_a_pointer(tmp_path: Path) -> None:
    pointer = replace(dead_letter(5, properties={"a": "b"}), is_body_kept=False)
    (event,) = kept(tmp_path, pointer)
    read = DeadLetterHub.read(event)
    assert (read.is_body_kept, read.event.body, read.event.properties) == (False, b"", {})
    assert read.event.sequence_number == 5


def test_dead_letter_too_large_for_the_hub_goes_without_its_traceback_and_then_without_its_body(tmp_path: Path) -> None:
    largest = 1024 * 1024
    tight = replace(failed(1, body=b"x" * (largest - 5_000)), traceback="deep\n" * 2_000)
    full = failed(2, body=b"x" * (largest - 10))
    plain, first, second = (DeadLetterHub.read(event) for event in kept(tmp_path, failed(0), tight, full))
    assert plain.traceback
    assert (first.traceback, len(first.event.body)) == ("", largest - 5_000)
    assert (second.is_body_kept, second.event.body, second.event.sequence_number) == (False, b"", 2)


def test_dead_letter_of_a_dead_letter_tells_the_hub_of_the_first_one(tmp_path: Path) -> None:
    (event,) = kept(tmp_path / "first", failed(5, properties={"a": "b"}))
    again = dead_letter(event.sequence_number, properties=event.properties, body=event.body)
    (twice,) = kept(tmp_path / "second", again)
    assert DeadLetterHub.read(twice).event.properties == {"a": "b"}
    assert DeadLetterHub.read(twice).event.sequence_number == event.sequence_number


@pytest.mark.parametrize(
    ("properties", "says"),
    [
        ({}, "no property hubline-letter-namespace"),
        ({f"{DEAD_LETTER_PREFIX}sequence": "many"}, "does not read back|a dead letter that cannot be read"),
        ({f"{DEAD_LETTER_PREFIX}failed": "yesterday"}, "a dead letter that cannot be read"),
    ],
)
def test_event_that_is_no_dead_letter_is_refused(tmp_path: Path, properties: Mapping[str, str], says: str) -> None:
    (event,) = kept(tmp_path, failed(5))
    spoilt = {**event.properties, **properties} if properties else {}
    with pytest.raises(ConfigError, match=says):
        DeadLetterHub.read(replace(event, properties=spoilt))


def test_missing_hub_shows_at_the_first_dead_letter(tmp_path: Path) -> None:
    async def add() -> None:
        await DeadLetterHub(LocalHub(tmp_path, "missing")).add([dead_letter(1)])

    with pytest.raises(HubNotFound):
        asyncio.run(add())


def test_times_keep_their_microseconds(tmp_path: Path) -> None:
    time = datetime(2026, 2, 1, 0, 0, 0, 654321, tzinfo=UTC)
    (event,) = kept(tmp_path, replace(dead_letter(1), failed_at=time))
    assert (DeadLetterHub.read(event).failed_at, DeadLetterHub.read(event).event.enqueued_time.microsecond) == (
        time,
        123456,
    )


def test_processor_keeps_what_fails_in_the_hub(tmp_path: Path) -> None:
    async def run() -> list[DeadLetter]:
        for name in ("orders", "dead"):
            await create_hub(tmp_path, name, partitions=1)
        orders, dead = LocalHub(tmp_path, "orders"), LocalHub(tmp_path, "dead")
        sender = await orders.open_sender()
        await sender.send(new_events(["good", "bad", "good"]))
        await sender.close()
        done = asyncio.Event()
        processor = Processor(
            orders,
            "memory:",
            consumer_group="billing",
            starting_position=Position.earliest(),
            dead_letters=DeadLetterHub(dead),
            options=ProcessorOptions(on_failure="dead_letter", handler_retry=RetryPolicy(max_attempts=1)),
        )

        @processor.on_event
        async def handle(event: Event) -> None:
            if event.text() == "bad":
                raise LookupError("no customer")
            if event.sequence_number == 2:
                done.set()

        async with processor:
            await asyncio.wait_for(done.wait(), 60)
        dead_letters = [DeadLetterHub.read(event) for event in await events_of(dead)]
        await orders.close()
        await dead.close()
        return dead_letters

    (kept_dead_letter,) = asyncio.run(run())
    assert (kept_dead_letter.event.text(), kept_dead_letter.event.sequence_number) == ("bad", 1)
    assert (kept_dead_letter.key.group, kept_dead_letter.error_type, kept_dead_letter.error_text) == (
        "billing",
        "LookupError",
        "no customer",
    )
