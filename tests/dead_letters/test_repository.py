"""Dead letters are found by what they are, page by page in a stable order, and tidied up once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest

from hubline.dead_letters.dead_letter_ids import parse_dead_letter_id
from hubline.dead_letters.repository import DeadLetterRepository
from hubline.errors import ConfigError, RecordDamaged, StoreError, StoreNotFound
from hubline.model.dead_letters import DeadLetter, DeadLetterId, DeadLetterSelection, DeadLetterState
from hubline.model.keys import GroupKey
from tests.dead_letters.conftest import GROUP, dead_letter, keep

T = TypeVar("T")
OTHER = GroupKey("local:/data", "orders", "audit")


def on(url: str, work: Callable[[DeadLetterRepository], Awaitable[T]]) -> T:
    async def run() -> T:
        repository = DeadLetterRepository(url)
        try:
            return await work(repository)
        finally:
            await repository.close()

    return asyncio.run(run())


def chosen(url: str, choice: DeadLetterSelection, **how: Any) -> list[str]:
    """Partition and sequence number of each dead letter."""
    dead_letters = on(url, lambda repository: repository.page(choice, **how))
    return [f"{each.key.partition}/{each.event.sequence_number}" for each in dead_letters]


class Refused(Exception):
    """An error with a module."""


@pytest.fixture
def filled(url: str) -> str:
    keep(
        url,
        [
            dead_letter(3),
            dead_letter(10, error=KeyError("50% off: O'Brien")),
            dead_letter(2, partition="1", error=Refused("No Such Customer")),
            dead_letter(7, partition="10"),
            dead_letter(3, group=OTHER),
        ],
    )
    return url


def test_dead_letter_reads_back_as_it_was(url: str) -> None:
    kept = dead_letter(5, body=b"\xff\x00\x80", key="k\u20ac", properties={"a": "b", "nul": "\x00", "\u20ac": ""})
    keep(url, [kept])
    found = on(url, lambda repository: repository.find(parse_dead_letter_id("0/5")))
    assert replace(found, failed_at=kept.failed_at) == kept
    assert abs(found.failed_at - datetime.now(UTC)) < timedelta(minutes=5)


def test_pointer_has_no_body_and_says_so(url: str) -> None:
    keep(url, [dead_letter(5, properties={"a": "b"})], keep_dead_letter_bodies=False)
    found = on(url, lambda repository: repository.find(parse_dead_letter_id("0/5")))
    assert (found.is_body_kept, found.event.body, found.event.properties) == (False, b"", {})


def test_page_without_bodies_still_says_that_they_are_kept(filled: str) -> None:
    (first, *_) = on(filled, lambda repository: repository.page(DeadLetterSelection(), bodies=False))
    assert (first.is_body_kept, first.event.body) == (True, b"")


CHOICES = [
    (DeadLetterSelection(), ["0/3", "0/3", "0/10", "1/2", "10/7"]),
    (DeadLetterSelection(group="billing"), ["0/3", "0/10", "1/2", "10/7"]),
    (DeadLetterSelection(hub="orders", namespace="local:/data", group="audit"), ["0/3"]),
    (DeadLetterSelection(hub="others"), []),
    (DeadLetterSelection(partitions=("1", "10")), ["1/2", "10/7"]),
    (DeadLetterSelection(error_type="KeyError"), ["0/10"]),
    (DeadLetterSelection(error_type="Refused"), ["1/2"]),
    (DeadLetterSelection(error_type="tests.dead_letters.test_repository.Refused"), ["1/2"]),
    (DeadLetterSelection(error_type="efused"), []),
    (DeadLetterSelection(error_type="a.very.long.name.of.a.type.that.no.dead_letter.has.Refused"), []),
    (DeadLetterSelection(error_text="no such"), ["1/2"]),
    (DeadLetterSelection(error_text="50% off: o'brien"), ["0/10"]),
    (DeadLetterSelection(error_text="_"), []),
    (DeadLetterSelection(state=DeadLetterState.DISCARDED), []),
    (DeadLetterSelection(state=None, partitions=("10",)), ["10/7"]),
    (DeadLetterSelection(ids=(parse_dead_letter_id("0/3"), parse_dead_letter_id("1/2"))), ["0/3", "0/3", "1/2"]),
    (DeadLetterSelection(ids=(parse_dead_letter_id("local:/data/orders/audit/0/3"),)), ["0/3"]),
    (DeadLetterSelection(since=datetime(2100, 1, 1, tzinfo=UTC)), []),
    (DeadLetterSelection(until=datetime(2020, 1, 1, tzinfo=UTC)), []),
    (DeadLetterSelection(since=datetime.min.replace(tzinfo=UTC), partitions=("10",)), ["10/7"]),
    (DeadLetterSelection(partitions=("1'; DROP TABLE hubline_dead_letter; --",)), []),
]


def test_dead_letters_are_chosen_by_what_they_are(filled: str) -> None:
    async def work(repository: DeadLetterRepository) -> list[list[str]]:
        pages = [await repository.page(choice) for choice, _ in CHOICES]
        return [[f"{each.key.partition}/{each.event.sequence_number}" for each in page] for page in pages]

    found = on(filled, work)
    assert [(choice, page) for (choice, _), page in zip(CHOICES, found, strict=True)] == CHOICES


def test_times_are_those_of_the_database_to_the_microsecond(filled: str) -> None:
    dead_letters = on(filled, lambda repository: repository.page(DeadLetterSelection()))
    newest = max(each.failed_at for each in dead_letters)
    step = timedelta(milliseconds=1)
    assert len(chosen(filled, DeadLetterSelection(until=newest))) == 5
    assert chosen(filled, DeadLetterSelection(since=newest + step)) == []
    assert on(filled, lambda repository: repository.now()) >= newest


def test_pages_follow_each_other_whatever_is_added_meanwhile(filled: str) -> None:
    first = on(filled, lambda repository: repository.page(DeadLetterSelection(group="billing"), max_count=2))
    keep(filled, [dead_letter(1, group=GroupKey("local:/data", "orders", "a new one"))])
    after = DeadLetterId.of(first[-1])
    assert chosen(filled, DeadLetterSelection(group="billing"), after=after) == ["1/2", "10/7"]


def test_all_pages_give_every_dead_letter_once(url: str) -> None:
    keep(url, [dead_letter(sequence) for sequence in range(250)])

    async def read(repository: DeadLetterRepository) -> list[int]:
        return [each.event.sequence_number async for page in repository.pages(DeadLetterSelection()) for each in page]

    assert on(url, read) == list(range(250))


def test_count_tells_where_they_are_and_what_of(filled: str) -> None:
    counts = on(filled, lambda repository: repository.count(DeadLetterSelection(group="billing")))
    assert [(each.key.partition, each.error_type, each.state, each.count) for each in counts] == [
        ("0", "KeyError", "waiting", 1),
        ("0", "ValueError", "waiting", 1),
        ("1", "tests.dead_letters.test_repository.Refused", "waiting", 1),
        ("10", "ValueError", "waiting", 1),
    ]


def test_marking_ends_when_nothing_is_left(filled: str) -> None:
    async def work(repository: DeadLetterRepository) -> list[int]:
        choice = DeadLetterSelection(group="billing")
        return [await repository.mark_some(choice, DeadLetterState.DISCARDED) for _ in range(2)]

    assert on(filled, work) == [4, 0]
    assert chosen(filled, DeadLetterSelection()) == ["0/3"]
    assert chosen(filled, DeadLetterSelection(state=DeadLetterState.DISCARDED)) == ["0/3", "0/10", "1/2", "10/7"]


def test_removed_dead_letters_are_gone(filled: str) -> None:
    assert on(filled, lambda repository: repository.delete_some(DeadLetterSelection(partitions=("0",)))) == 3
    assert chosen(filled, DeadLetterSelection(state=None)) == ["1/2", "10/7"]


def test_ambiguous_dead_letter_is_asked_for_by_its_whole_id(filled: str) -> None:
    with pytest.raises(ConfigError, match="local:/data/orders/audit/0/3 or local:/data/orders/billing/0/3"):
        on(filled, lambda repository: repository.find(parse_dead_letter_id("0/3")))
    found = on(
        filled, lambda repository: repository.find(parse_dead_letter_id("0/3"), DeadLetterSelection(group="audit"))
    )
    assert found.key.group == "audit"


def test_missing_dead_letter_is_an_error(filled: str) -> None:
    with pytest.raises(StoreError, match="no dead letter 0/99"):
        on(filled, lambda repository: repository.find(parse_dead_letter_id("0/99")))


def test_row_that_somebody_damaged_is_named(tmp_path: Any) -> None:
    import sqlite3

    url = f"sqlite:///{tmp_path}/dead_letters.db"
    keep(url, [dead_letter(3)])
    with sqlite3.connect(tmp_path / "dead_letters.db") as connection:
        connection.execute("UPDATE hubline_dead_letter SET state = 'lost'")
    connection.close()
    with pytest.raises(RecordDamaged, match="local:/data/orders/billing/0/3 cannot be read"):
        on(url, lambda repository: repository.page(DeadLetterSelection(state=None)))


def test_file_that_is_not_there_is_not_made(tmp_path: Any) -> None:
    with pytest.raises(StoreNotFound, match="no such file"):
        DeadLetterRepository(f"sqlite:///{tmp_path}/nothing.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "0", "0/", "/1", "0/x", "a/b/0/1", "0/1/2", "0/99999999999999999999", "0/-1"])
def test_what_is_no_dead_letter_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_dead_letter_id(text)


def test_id_reads_back(filled: str) -> None:
    dead_letters: list[DeadLetter] = on(filled, lambda repository: repository.page(DeadLetterSelection()))
    for each in dead_letters:
        assert parse_dead_letter_id(str(DeadLetterId.of(each))) == DeadLetterId.of(each)


def test_group_of_a_dead_letter_is_its_own() -> None:
    assert DeadLetterId.of(dead_letter(1)).group == GROUP
