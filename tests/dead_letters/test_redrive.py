"""Dead letters are redriven oldest first, each once; what fails stays with its new error, and what is gone is named."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from hubline.adapters import open_store
from hubline.dead_letters.event_lookup import EventLookup
from hubline.dead_letters.handler_redrive import batch_of
from hubline.dead_letters.redrive import Outcome, Progress, Redrive
from hubline.dead_letters.repository import DeadLetterRepository
from hubline.dead_letters.resend import REDRIVEN_PROPERTY, Republisher
from hubline.errors import HubUnavailable, StoreError, StoreUnavailable
from hubline.event_ids import ID_PROPERTY, event_ids, split_ids
from hubline.hubs.local import LocalHub, create_hub
from hubline.model.dead_letters import DeadLetter, DeadLetterSelection, DeadLetterState, Stage
from hubline.model.events import Event, new_events
from hubline.model.keys import GroupKey
from hubline.model.ownership import Checkpoint
from hubline.model.positions import Position
from hubline.sinks import SqlSink
from hubline.sinks.sql_sink.deduplication import deduplicate_ordered
from hubline.sinks.sql_sink.postgres import PostgresSinkConnection
from hubline.sinks.sql_sink.redrive_transaction import RedriveTransaction
from hubline.sinks.sql_sink.sqlite import SqliteSinkConnection
from tests.dead_letters.conftest import GROUP, dead_letter, keep

T = TypeVar("T")


@dataclass
class Handling:
    """Stands for a handler: it has a row for each event, fails for some, and may raise on the way."""

    failing: Iterable[int] = ()
    raises: Exception | None = None
    seen: list[int] = field(default_factory=list)

    async def __call__(self, dead_letters: Sequence[DeadLetter], transaction: RedriveTransaction) -> None:
        for each in dead_letters:
            sequence = each.event.sequence_number
            self.seen.append(sequence)
            if sequence in self.failing:
                again = DeadLetter.of(each.key, each.event, TypeError(f"still not {sequence}"), attempts=1)
                transaction.dead_letter([again])
            else:
                transaction.execute(f"INSERT INTO done VALUES ({sequence})")
        if self.raises:
            raise self.raises
        transaction.commit()


def redriven(
    url: str,
    work: Handling | None = None,
    *,
    choice: DeadLetterSelection | None = None,
    limit: int | None = None,
    bodies: EventLookup | None = None,
    removes: bool = False,
    max_batch_size: int = 3,
) -> list[Progress]:
    async def run() -> list[Progress]:
        repository = DeadLetterRepository(url)
        with closing(SqlSink(url)) as sink:
            job = Redrive(sink, choice or DeadLetterSelection(), work or Handling(), bodies, removes, max_batch_size)
            counts = await repository.count(job.selection)
            await repository.close()
            return [each async for each in job.run(counts, limit=limit)]

    return asyncio.run(run())


def outcomes(progress: Iterable[Progress]) -> dict[str, str]:
    return {
        f"{each.dead_letter.key.partition}/{each.dead_letter.event.sequence_number}": str(each.outcome)
        for part in progress
        for each in part.dead_letters
    }


def rows(url: str, table: str = "done") -> list[int]:
    with closing(SqlSink(url)) as sink, sink.database.connection() as connection:
        return [int(str(row[0])) for row in connection.execute(f"SELECT * FROM {table} ORDER BY 1", ())]


def dead_letters_in(url: str, state: DeadLetterState | None = DeadLetterState.WAITING) -> list[DeadLetter]:
    async def read() -> list[DeadLetter]:
        repository = DeadLetterRepository(url)
        try:
            return await repository.page(DeadLetterSelection(state=state), max_count=1_000)
        finally:
            await repository.close()

    return asyncio.run(read())


def numbers(dead_letters: Iterable[DeadLetter]) -> list[int]:
    return [each.event.sequence_number for each in dead_letters]


@pytest.fixture
def filled(url: str) -> str:
    """Eight dead letters of one partition, and a table for what is made of them."""
    keep(url, [dead_letter(sequence) for sequence in range(8)])
    with closing(SqlSink(url)) as sink, sink.database.connection() as connection:
        connection.execute("CREATE TABLE done (sequence BIGINT)", ())
    return url


def test_dead_letters_are_redriven_oldest_first_and_marked_with_their_rows(filled: str) -> None:
    work = Handling()
    progress = redriven(filled, work)
    assert work.seen == list(range(8))
    assert [len(part.dead_letters) for part in progress] == [3, 3, 2]
    assert rows(filled) == list(range(8))
    assert dead_letters_in(filled) == []
    assert numbers(dead_letters_in(filled, DeadLetterState.REDRIVEN)) == list(range(8))


def test_redriving_again_finds_nothing(filled: str) -> None:
    redriven(filled)
    assert redriven(filled) == []
    assert rows(filled) == list(range(8))


def test_dead_letters_are_removed_if_asked(filled: str) -> None:
    redriven(filled, removes=True)
    assert dead_letters_in(filled, None) == []


def test_what_fails_again_stays_with_its_new_error(filled: str) -> None:
    progress = redriven(filled, Handling(failing={1, 7}))
    assert {each for each, what in outcomes(progress).items() if what == "failed"} == {"0/1", "0/7"}
    assert rows(filled) == [0, 2, 3, 4, 5, 6]
    one, seven = dead_letters_in(filled)
    assert (one.event.sequence_number, one.attempts, one.error_type, one.error_text) == (
        1,
        4,
        "TypeError",
        "still not 1",
    )
    assert (seven.event.sequence_number, seven.event.body) == (7, b"event 7")


def test_work_that_raises_undoes_its_batch_and_no_other(filled: str) -> None:
    work = Handling()

    async def third_batch_raises(dead_letters: Sequence[DeadLetter], transaction: RedriveTransaction) -> None:
        if dead_letters[0].event.sequence_number == 6:
            work.raises = HubUnavailable("gone")
        await work(dead_letters, transaction)

    async def run() -> None:
        repository = DeadLetterRepository(filled)
        with closing(SqlSink(filled)) as sink:
            job = Redrive(sink, DeadLetterSelection(), third_batch_raises, max_batch_size=3)
            counts = await repository.count(job.selection)
            await repository.close()
            async for _ in job.run(counts):
                pass

    with pytest.raises(HubUnavailable):
        asyncio.run(run())
    assert rows(filled) == [0, 1, 2, 3, 4, 5]
    assert numbers(dead_letters_in(filled)) == [6, 7]


def test_limit_is_kept_over_partitions(filled: str) -> None:
    keep(filled, [dead_letter(sequence, partition="1") for sequence in range(4)])
    progress = redriven(filled, limit=10)
    assert len(outcomes(progress)) == 10
    assert len(dead_letters_in(filled)) == 2


def test_dead_letters_that_cannot_be_tried_do_not_use_up_the_limit(filled: str) -> None:
    keep(filled, [dead_letter(sequence, partition="-1") for sequence in range(4)], keep_dead_letter_bodies=False)
    done = outcomes(redriven(filled, limit=2))
    assert list(done.values()) == ["missing"] * 4 + ["redriven"] * 2


def test_commit_whose_answer_is_lost_is_not_repeated(filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit took effect, but its answer was lost. When it is run again, the redrive continues after it."""
    is_lost: list[bool] = []

    def losing(connection: Any, ending: Any) -> None:
        commit(connection, ending)
        if not is_lost:
            is_lost.append(True)
            raise StoreUnavailable("the line went dead")

    kind: Any = SqliteSinkConnection if filled.startswith("sqlite") else PostgresSinkConnection
    commit = kind.commit
    monkeypatch.setattr(kind, "commit", losing)
    monkeypatch.setattr(kind, "is_commit_unknown", property(lambda _: True))
    with pytest.raises(StoreUnavailable, match="Run the redrive again"):
        redriven(filled)
    redriven(filled)
    assert rows(filled) == list(range(8))
    assert dead_letters_in(filled) == []


@pytest.mark.parametrize("last_sequence", [3, None])
def test_dead_letters_whose_events_come_again_are_left_to_them(filled: str, last_sequence: int | None) -> None:
    key = GROUP.partition("0")

    async def set_back() -> None:
        store = open_store(filled)
        place = None if last_sequence is None else Checkpoint(key, f"offset-{last_sequence}", last_sequence)
        await store.reset_checkpoint(key, place)
        await store.close()

    asyncio.run(set_back())
    done = outcomes(redriven(filled))

    redriven_count = 0 if last_sequence is None else last_sequence + 1
    assert list(done.values()) == ["redriven"] * redriven_count + ["held"] * (8 - redriven_count)
    assert rows(filled) == list(range(redriven_count))


def test_choice_leaves_the_others(filled: str) -> None:
    redriven(filled, choice=DeadLetterSelection(error_text="take 5"))
    assert numbers(dead_letters_in(filled)) == [0, 1, 2, 3, 4, 6, 7]


def test_settled_dead_letters_are_not_redriven_whatever_the_choice_says(filled: str) -> None:
    redriven(filled)
    assert redriven(filled, choice=DeadLetterSelection(state=None)) == []
    assert rows(filled) == list(range(8))


def test_two_redrives_at_once_run_no_dead_letter_twice(filled: str) -> None:
    keep(filled, [dead_letter(sequence, partition="1") for sequence in range(8)])

    async def run() -> None:
        repository = DeadLetterRepository(filled)
        counts = await repository.count(DeadLetterSelection())
        await repository.close()

        async def one(work: Handling) -> None:
            with closing(SqlSink(filled)) as sink:
                async for _ in Redrive(sink, DeadLetterSelection(), work, max_batch_size=1).run(counts):
                    pass

        await asyncio.gather(one(first), one(second))

    first, second = Handling(), Handling()
    asyncio.run(run())
    # Where they met, one left the partition to the other, which went on: what is left is nobody's.
    assert len(rows(filled)) == len(first.seen) + len(second.seen)
    assert len(dead_letters_in(filled)) == 16 - len(rows(filled))
    redriven(filled)
    assert rows(filled) == sorted([*range(8), *range(8)])


def test_partition_that_another_redrive_has_is_left_to_it(postgres_database: object, tmp_path: Path) -> None:
    url = postgres_database.reveal()  # type: ignore[attr-defined]
    keep(url, [dead_letter(1), dead_letter(2, partition="1")])

    async def nested(dead_letters: Sequence[DeadLetter], transaction: RedriveTransaction) -> None:
        if dead_letters[0].key.partition == "0":
            inner.append(await asyncio.to_thread(redriven, url, Sending()))
        transaction.commit()

    class Sending(Handling):
        async def __call__(self, dead_letters: Sequence[DeadLetter], transaction: RedriveTransaction) -> None:
            transaction.commit()

    inner: list[list[Progress]] = []

    async def run() -> list[Progress]:
        repository = DeadLetterRepository(url)
        counts = await repository.count(DeadLetterSelection())
        await repository.close()
        with closing(SqlSink(url)) as sink:
            return [each async for each in Redrive(sink, DeadLetterSelection(), nested).run(counts)]

    outer = asyncio.run(run())
    assert [(part.key.partition, part.is_busy) for part in inner[0]] == [("0", True), ("1", False)]
    assert outcomes(outer) == {"0/1": "redriven"}
    assert dead_letters_in(url) == []


def quarantined(sequence: int, key: str, *, group: GroupKey = GROUP) -> DeadLetter:
    return replace(dead_letter(sequence, key=key, group=group), stage=Stage.QUARANTINE)


class TestOrderOfKeys:
    def test_what_followed_a_failed_event_stays_behind_it(self, filled: str) -> None:
        keep(filled, [dead_letter(10, key="a"), quarantined(11, "a"), quarantined(12, "b"), quarantined(20, "a")])
        progress = redriven(filled, Handling(failing={10}), choice=DeadLetterSelection(), max_batch_size=1)
        done = outcomes(progress)
        assert (done["0/10"], done["0/11"], done["0/12"], done["0/20"]) == ("failed", "held", "redriven", "held")
        assert [each.attempts for each in dead_letters_in(filled)] == [4, 3, 3]

    def test_it_is_redriven_once_that_one_succeeded(self, filled: str) -> None:
        keep(filled, [dead_letter(10, key="a"), quarantined(11, "a")])
        work = Handling()
        redriven(filled, work)
        assert work.seen[-2:] == [10, 11]
        assert dead_letters_in(filled) == []

    def test_it_stays_behind_one_that_was_not_chosen(self, filled: str) -> None:
        keep(filled, [dead_letter(10, key="a"), quarantined(11, "a"), dead_letter(12, key="a")])
        progress = redriven(filled, choice=DeadLetterSelection(error_text="take 11"))
        assert outcomes(progress) == {"0/11": "held"}
        progress = redriven(filled, choice=DeadLetterSelection(error_text="take 12"))
        assert outcomes(progress) == {"0/12": "redriven"}


class TestBodies:
    """Dead letters that are pointers, and a hub that has their events, or has forgotten them."""

    def play(self, root: Path, url: str, work: Callable[[LocalHub], Awaitable[T]], *, count: int = 5) -> T:
        async def run() -> T:
            await create_hub(root, "orders", partitions=1)
            hub = LocalHub(root, "orders")
            sender = await hub.open_sender()
            await sender.send(
                new_events({"body": f"body {each}", "properties": {"n": str(each)}} for each in range(count)),
                partition="0",
            )
            await sender.close()
            events = await events_of(hub)
            key = GroupKey(hub.namespace, hub.name, "billing").partition("0")
            kept = [DeadLetter.of(key, event, ValueError("no"), attempts=1) for event in events]
            await asyncio.to_thread(keep, url, kept, keep_dead_letter_bodies=False)
            try:
                return await work(hub)
            finally:
                await hub.close()

        return asyncio.run(run())

    def test_they_are_read_from_the_hub(self, url: str, tmp_path: Path) -> None:
        seen: list[Event] = []

        async def handle(dead_letters: Sequence[DeadLetter], transaction: RedriveTransaction) -> None:
            seen.extend(each.event for each in dead_letters)
            transaction.commit()

        async def work(hub: LocalHub) -> list[Progress]:
            return await redriven_by(url, handle, EventLookup(hub, "readers"))

        done = self.play(tmp_path, url, work)
        assert set(outcomes(done).values()) == {"redriven"}
        assert [(event.body, event.properties) for event in seen] == [
            (f"body {each}".encode(), {"n": str(each)}) for each in range(5)
        ]

    def test_dead_letters_whose_events_are_gone_are_named_and_stay(self, url: str, tmp_path: Path) -> None:
        async def work(hub: LocalHub) -> list[Progress]:
            from hubline.hubs.local import delete_hub

            await delete_hub(tmp_path, "orders")
            await create_hub(tmp_path, "orders", partitions=1)
            recreated = LocalHub(tmp_path, "orders")
            sender = await recreated.open_sender()
            await sender.send(new_events(["another"] * 3), partition="0")
            await sender.close()
            try:
                return await redriven_by(url, Handling(), EventLookup(recreated, "readers"))
            finally:
                await recreated.close()

        done = self.play(tmp_path, url, work)
        reason = [each.reason for part in done for each in part.dead_letters]
        assert set(outcomes(done).values()) == {"missing"}
        assert "re-created" in reason[0]
        assert "forgotten" in reason[4]
        assert [each.attempts for each in dead_letters_in(url)] == [1] * 5

    def test_without_a_hub_they_stay(self, url: str) -> None:
        keep(url, [dead_letter(1)], keep_dead_letter_bodies=False)
        (done,) = redriven(url)
        assert done.dead_letters[0].outcome is Outcome.MISSING
        assert "no hub was given" in done.dead_letters[0].reason


async def redriven_by(url: str, work: object, bodies: EventLookup | None = None) -> list[Progress]:
    repository = DeadLetterRepository(url)
    counts = await repository.count(DeadLetterSelection())
    await repository.close()
    with closing(SqlSink(url)) as sink:
        job = Redrive(sink, DeadLetterSelection(), work, bodies)  # type: ignore[arg-type]
        return [each async for each in job.run(counts)]


async def events_of(hub: LocalHub, partition: str = "0") -> list[Event]:
    receiver = await hub.open_receiver(partition, group="readers", position=Position.earliest())
    try:
        held = await hub.describe_partition(partition)
        events: list[Event] = []
        while len(events) < held.last_sequence - held.begin_sequence + 1:
            events += list(await receiver.receive(max_count=1_000, wait_seconds=10))
        return events
    finally:
        await receiver.close()


class TestRepublishing:
    def sent(
        self, root: Path, url: str, *, times: int = 1, partitions: int = 2, hub_name: str = "again"
    ) -> list[Event]:
        """What is in the hub after dead letters were sent to it; so many times, as if their marks had been lost."""

        async def run() -> list[Event]:
            await create_hub(root, hub_name, partitions=partitions)
            hub = LocalHub(root, hub_name)
            sender = await hub.open_sender()
            for time in range(times):
                if time:
                    with closing(SqlSink(url)) as sink, sink.database.connection() as connection:
                        connection.execute("UPDATE hubline_dead_letter SET state = 'waiting'", ())
                await redriven_by(url, Republisher(hub, sender))
            await sender.close()
            events = [event for partition in range(partitions) for event in await events_of(hub, str(partition))]
            await hub.close()
            return events

        return asyncio.run(run())

    def test_events_are_as_they_were_and_say_what_they_are(self, url: str, tmp_path: Path) -> None:
        keep(url, [dead_letter(3, key="k", properties={"a": "b"}, body=b"\xff")])
        (event,) = self.sent(tmp_path, url)
        assert (event.body, event.partition_key, event.properties["a"]) == (b"\xff", "k", "b")
        assert event.properties[REDRIVEN_PROPERTY] == "local:/data/orders/billing/0/3"
        assert dead_letters_in(url) == []

    def test_sent_twice_they_have_the_same_id_twice(self, url: str, tmp_path: Path) -> None:
        keep(url, [dead_letter(sequence, key="k") for sequence in range(3)])
        events = self.sent(tmp_path, url, times=2)
        ids = [event.properties[ID_PROPERTY] for event in events]
        assert ids[:3] == ids[3:]
        assert len(set(ids)) == 3

    def test_late_event_is_above_no_highest_id(self, url: str, tmp_path: Path) -> None:
        own = event_ids("local:/data/first@1", "7", 3, 2).as_py()
        keep(url, [dead_letter(3, properties={ID_PROPERTY: own}), dead_letter(4, properties={ID_PROPERTY: "not ours"})])
        first, second = self.sent(tmp_path, url, partitions=1)
        parts = split_ids(_column([first, second])).to_pylist()
        assert (parts[0]["partition"], parts[0]["sequenceNumber"], parts[0]["index"]) == ("7", 3, 2)
        assert parts[0]["origin"].startswith("local:/data/first@1~redriven.")
        assert parts[1]["origin"].startswith("local:/data/orders~redriven.")
        assert parts[0]["origin"] != parts[1]["origin"]

    def test_sink_that_keeps_the_highest_id_takes_it_once(self, url: str, tmp_path: Path) -> None:
        own = event_ids("local:/data/first@1", "7", 3).as_py()
        keep(url, [dead_letter(3, key="k", properties={ID_PROPERTY: own})])
        first, again = self.sent(tmp_path, url, times=2)
        marks = {"local:/data/first@1/7": (900, 0)}
        sent, repeated = (
            batch_of([dead_letter(1, properties=each.properties)]).arrow.column("properties") for each in (first, again)
        )
        taken = deduplicate_ordered(sent, marks)
        assert taken.is_fresh.tolist() == [True]
        assert deduplicate_ordered(repeated, {**marks, **taken.marks}).is_fresh.tolist() == [False]

    def test_redriven_and_failed_again_elsewhere_it_has_a_new_id_of_the_same_length(
        self, url: str, tmp_path: Path
    ) -> None:
        keep(url, [dead_letter(3)])
        (event,) = self.sent(tmp_path, url, partitions=1)
        keep(url, [dead_letter(9, properties=event.properties)])
        (again,) = self.sent(tmp_path, url, partitions=1, hub_name="once-more")
        assert again.properties[ID_PROPERTY] != event.properties[ID_PROPERTY]
        assert again.properties[ID_PROPERTY].count("~redriven.") == 1

    def test_dead_letter_that_is_too_large_with_its_properties_stays(self, url: str, tmp_path: Path) -> None:
        keep(url, [dead_letter(1), dead_letter(2, body=b"x" * (1024 * 1024 - 10)), dead_letter(3, key="k")])
        events = self.sent(tmp_path, url)
        assert {event.body for event in events} >= {b"event 1", b"event 3"}
        (left,) = dead_letters_in(url)
        assert (left.event.sequence_number, left.attempts) == (2, 4)
        assert left.error_type.endswith("EventTooLarge")

    def test_events_without_a_key_go_home_to_their_partition(self, url: str, tmp_path: Path) -> None:
        home = GroupKey(f"local:{tmp_path}", "orders", "billing")
        keep(url, [dead_letter(sequence, group=home, partition="1") for sequence in range(4)])
        events = self.sent(tmp_path, url, hub_name="orders", partitions=3)
        assert [event.partition for event in events] == ["1"] * 4


def _column(events: Sequence[Event]) -> object:
    import pyarrow as pa

    return pa.array([event.properties[ID_PROPERTY] for event in events], pa.string())


def test_table_that_is_gone_raises_a_store_error(url: str) -> None:
    keep(url, [dead_letter(1)])
    with pytest.raises(StoreError):
        redriven(url)
    assert numbers(dead_letters_in(url)) == [1]
