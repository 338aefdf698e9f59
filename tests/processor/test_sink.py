"""Exactly once into SQL: what handlers return or do, dead letters and checkpoint, in one transaction."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from hubline.checkpoint_stores.sqlite import SqliteStore
from hubline.errors import ConfigError, DeadLetterLimit, Fenced, HandlerFailed, HublineError, ProcessorError, SinkError
from hubline.model.dead_letters import DeadLetter
from hubline.model.events import Event, EventBatch, new_events
from hubline.model.ownership import Checkpoint
from hubline.model.positions import Position
from hubline.processor import (
    AsyncTransaction,
    LeaseOptions,
    PartitionContext,
    Processor,
    ProcessorOptions,
    RetryPolicy,
)
from hubline.sinks import DropDuplicates, SqlSink, Transaction
from hubline.testing.simulation.virtual_processor import VirtualProcessor
from tests.support.scene import GROUP, LEASE, Scene, until, virtual

ONCE = RetryPolicy(max_attempts=1)


class Results:
    """A sink in a file, and what is in it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "results.db"
        self.url = f"sqlite:///{self.path}"
        self.execute("CREATE TABLE results (id INTEGER PRIMARY KEY, note TEXT CHECK (note <> 'bad'))")
        self.sink = SqlSink(self.url, table="results")

    def execute(self, text: str) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            return connection.execute(text).fetchall()

    @property
    def ids(self) -> list[int]:
        return [row[0] for row in self.execute("SELECT id FROM results ORDER BY id")]

    @property
    def dead_letters(self) -> list[tuple[int, str]]:
        with suppress(sqlite3.OperationalError):  # no such table yet
            return self.execute("SELECT sequence_number, stage FROM hubline_dead_letter ORDER BY sequence_number")
        return []

    @property
    def checkpoint(self) -> int | None:
        with suppress(sqlite3.OperationalError):
            for (sequence,) in self.execute("SELECT sequence_number FROM hubline_checkpoint"):
                return None if sequence is None else int(sequence)
        return None


@pytest.fixture
def results(tmp_path: Path) -> Iterator[Results]:
    found = Results(tmp_path)
    yield found
    found.sink.close()


def processor_of(
    scene: Scene,
    results: Results,
    *,
    owner_id: str = "a",
    kind: type[Processor] = VirtualProcessor,
    **options: Any,
) -> tuple[Processor, list[HublineError]]:
    """A processor into the sink, and what its on_error was given."""
    start = options.pop("start", Position.earliest())
    options = {"lease": LEASE, "handler_retry": ONCE, **options}
    processor = kind(
        scene.hub,
        scene.store,
        consumer_group=GROUP,
        starting_position=start,
        owner_id=owner_id,
        options=ProcessorOptions(**options),
        sink=results.sink,
    )
    errors: list[HublineError] = []
    processor.on_error(errors.append)
    return processor, errors


def rows_of(batch: EventBatch) -> pa.Table:
    """A row an event: its sequence number, and its body as a note."""
    sequences = batch.arrow.column("sequenceNumber")
    return pa.table(
        {"id": sequences, "note": pc.cast(batch.arrow.column("body"), pa.string()), "sequenceNumber": sequences}
    )


def bodies(scene: Scene, *texts: str, key: str | None = None) -> None:
    for text in texts:
        scene.hub.append("0", [text.encode()], partition_key=key)


class TestHungHandler:
    @pytest.mark.parametrize("takes_tx", [True, False])
    def test_a_stop_that_gave_up_commits_nothing_and_undoes_what_was_begun(
        self, results: Results, takes_tx: bool
    ) -> None:
        """In real time: a thread hangs. The program must not wait for it at its end, either."""
        entered, leave, left = threading.Event(), threading.Event(), threading.Event()

        def hang() -> None:
            entered.set()
            leave.wait(30)
            left.set()

        def handle(batch: EventBatch) -> Any:
            hang()
            return rows_of(batch)

        def handle_tx(batch: EventBatch, tx: Transaction) -> None:
            tx.insert(rows_of(batch))
            hang()

        async def main() -> None:
            scene = Scene()
            scene.append(1)
            processor, _ = processor_of(scene, results, kind=Processor, stop_timeout_seconds=0.2)
            processor.on_batch(handle_tx if takes_tx else handle)
            async with processor:
                await until(entered.is_set, seconds_max=30)

        asyncio.run(main())

        assert not left.is_set()
        leave.set()
        for thread in threading.enumerate():
            if thread.name == "hubline-0":
                thread.join(20)
        results.execute("INSERT INTO results (id) VALUES (7)")  # nothing is locked
        assert (results.ids, results.checkpoint) == ([7], None)


class TestRows:
    @virtual
    async def test_what_a_handler_returns_is_in_the_table_with_the_checkpoint(self, results: Results) -> None:
        scene = Scene()
        scene.append(25)
        processor, errors = processor_of(scene, results, max_batch_size=10)
        processor.on_batch(rows_of)

        async with processor:
            await until(lambda: results.checkpoint == 24)

        assert (results.ids, results.dead_letters, errors) == (list(range(25)), [], [])
        assert await scene.checkpoint() == 24  # the store follows

    @virtual
    @pytest.mark.parametrize(
        "make",
        [
            lambda batch: rows_of(batch).combine_chunks().to_batches()[0],
            lambda batch: [{"id": event.sequence_number, "note": event.text()} for event in batch],
        ],
    )
    async def test_rows_come_in_any_shape(self, results: Results, make: Callable[[EventBatch], Any]) -> None:
        scene = Scene()
        scene.append(5)
        processor, _ = processor_of(scene, results)

        @processor.on_batch
        async def handle(batch: EventBatch) -> Any:
            return make(batch)

        async with processor:
            await until(lambda: results.checkpoint == 4)

        assert results.ids == list(range(5))

    @virtual
    async def test_a_handler_may_return_nothing(self, results: Results) -> None:
        scene = Scene()
        scene.append(5)
        processor, _ = processor_of(scene, results)
        processor.on_batch(lambda batch: None)

        async with processor:
            await until(lambda: results.checkpoint == 4)

        assert results.ids == []

    @virtual
    async def test_what_is_no_row_stops_the_partition(self, results: Results) -> None:
        scene = Scene()
        scene.append(5)
        processor, errors = processor_of(scene, results)
        processor.on_batch(lambda batch: 17)

        async with processor:
            await until(lambda: errors)

        assert isinstance(errors[0], SinkError)
        assert "returned int" in str(errors[0])
        assert results.checkpoint is None

    @virtual
    async def test_events_one_by_one(self, results: Results) -> None:
        scene = Scene()
        scene.append(6)
        processor, _ = processor_of(scene, results)

        @processor.on_event
        async def handle(event: Event) -> Any:
            number = event.sequence_number
            return None if number == 3 else {"id": number} if number % 2 else [{"id": number}, {"id": 100 + number}]

        async with processor:
            await until(lambda: results.checkpoint == 5)

        assert results.ids == [0, 1, 2, 4, 5, 100, 102, 104]

    @virtual
    async def test_the_sinks_checkpoint_is_where_a_partition_starts(self, results: Results) -> None:
        scene = Scene()
        scene.append(10)
        await scene.set_checkpoint(8)  # the store is ahead, and is not asked
        key = scene.group.partition("0")
        results.sink.open(key, 0).commit(Checkpoint(key, scene.hub.offset_of(3), 3))
        processor, _ = processor_of(scene, results)
        processor.on_batch(rows_of)

        async with processor:
            await until(lambda: results.checkpoint == 9)

        assert results.ids == [4, 5, 6, 7, 8, 9]

    @virtual
    async def test_the_end_is_written_down_in_the_sink(self, results: Results) -> None:
        scene = Scene()
        scene.append(4)
        processor, _ = processor_of(scene, results, start=Position.latest())
        processor.on_batch(rows_of)
        async with processor:
            await until(lambda: results.checkpoint == 3)
            scene.append(2)
            await until(lambda: results.checkpoint == 5)

        assert results.ids == [4, 5]

    @virtual
    async def test_starting_before_what_the_sink_has_is_an_error(self, results: Results) -> None:
        scene = Scene()
        scene.append(4)
        key = scene.group.partition("0")
        results.sink.open(key, 0).commit(Checkpoint(key, scene.hub.offset_of(2), 2))
        processor, errors = processor_of(scene, results)
        processor.on_batch(rows_of)

        @processor.on_assigned
        async def back(partition: PartitionContext) -> None:
            partition.seek(Position.earliest())

        async with processor:
            await until(lambda: errors)

        assert "move the sink's checkpoint back" in str(errors[0])
        assert results.ids == []

    @virtual
    async def test_a_checkpoint_by_hand_is_refused(self, results: Results) -> None:
        scene = Scene()
        scene.append(4)
        processor, errors = processor_of(scene, results, on_failure="stop")

        @processor.on_batch
        async def handle(batch: EventBatch, partition: PartitionContext) -> pa.Table:
            await partition.checkpoint()
            return rows_of(batch)

        async with processor:
            await until(lambda: errors)

        assert isinstance(errors[0].__cause__, ProcessorError)
        assert results.checkpoint is None


class TestTransaction:
    @virtual
    @pytest.mark.parametrize("is_async", [True, False])
    async def test_a_handler_writes_by_its_own_sql(self, results: Results, is_async: bool) -> None:
        scene = Scene()
        scene.append(5)
        processor, _ = processor_of(scene, results)
        insert = "INSERT INTO results (id) VALUES (?)"

        async def handle_async(batch: EventBatch, tx: AsyncTransaction) -> None:
            for event in batch:
                await tx.execute(insert, (event.sequence_number,))
            assert await tx.execute("SELECT count(*) FROM results") == [(len(batch),)]

        def handle_plain(batch: EventBatch, tx: Transaction) -> None:
            for event in batch:
                tx.execute(insert, (event.sequence_number,))

        processor.on_batch(handle_async if is_async else handle_plain)
        async with processor:
            await until(lambda: results.checkpoint == 4)

        assert results.ids == list(range(5))

    @virtual
    async def test_what_a_failing_handler_did_is_undone(self, results: Results) -> None:
        scene = Scene()
        scene.append(8)
        processor, _ = processor_of(scene, results)

        @processor.on_batch
        async def handle(batch: EventBatch, partition: PartitionContext, tx: AsyncTransaction) -> None:
            for event in batch:
                await tx.execute("INSERT INTO results (id) VALUES (?)", [event.sequence_number])
                if event.sequence_number == 5:
                    raise ValueError("five")

        async with processor:
            await until(lambda: results.checkpoint == 7)

        assert (results.ids, results.dead_letters) == ([0, 1, 2, 3, 4, 6, 7], [(5, "handler")])

    @virtual
    async def test_single_events_too(self, results: Results) -> None:
        scene = Scene()
        scene.append(6)
        processor, _ = processor_of(scene, results)

        @processor.on_event
        async def handle(event: Event, tx: AsyncTransaction) -> None:
            await tx.execute("INSERT INTO results (id) VALUES (?)", [event.sequence_number])
            if event.sequence_number in (0, 4):
                raise ValueError("no")

        async with processor:
            await until(lambda: results.checkpoint == 5)

        assert (results.ids, results.dead_letters) == ([1, 2, 3, 5], [(0, "handler"), (4, "handler")])

    @virtual
    async def test_events_of_a_plain_handler_around_an_async_one_share_a_transaction(self, results: Results) -> None:
        scene = Scene()
        scene.append(3)
        processor, _ = processor_of(scene, results)
        checkpoints: list[int | None] = []

        async def write(event: Event, tx: Transaction) -> None:
            checkpoints.append(results.checkpoint)
            tx.execute("INSERT INTO results (id) VALUES (?)", [event.sequence_number])

        processor.on_event(lambda event, tx: write(event, tx))  # noqa: PLW0108 (a plain function)
        async with processor:
            await until(lambda: results.checkpoint == 2)

        assert (results.ids, checkpoints) == ([0, 1, 2], [None] * 3)

    @virtual
    async def test_a_refused_event_takes_its_own_sql_with_it(self, results: Results) -> None:
        results.execute("CREATE TABLE sums (id INTEGER)")
        scene = Scene()
        bodies(scene, "a", "b", "bad", "d")
        processor, _ = processor_of(scene, results)

        @processor.on_batch
        async def handle(batch: EventBatch, tx: AsyncTransaction) -> pa.Table:
            for event in batch:
                await tx.execute("INSERT INTO sums (id) VALUES (?)", [event.sequence_number])
            return rows_of(batch)

        async with processor:
            await until(lambda: results.checkpoint == 3)

        assert (results.ids, results.dead_letters) == ([0, 1, 3], [(2, "sink")])
        assert results.execute("SELECT id FROM sums") == [(0,), (1,), (3,)]

    @virtual
    async def test_so_does_an_event_whose_handler_caught_its_own_cancellation(self, results: Results) -> None:
        results.execute("CREATE TABLE sums (id INTEGER)")
        scene = Scene()
        scene.append(3)
        retry = RetryPolicy(max_attempts=3, initial_backoff_seconds=0.1)
        processor, _ = processor_of(scene, results, handler_retry=retry)
        calls: list[int] = []

        @processor.on_event
        async def handle(event: Event, tx: AsyncTransaction) -> None:
            calls.append(event.sequence_number)
            await tx.execute("INSERT INTO sums (id) VALUES (?)", [event.sequence_number])
            if event.sequence_number == 1 and calls.count(1) < 3:  # in the go, and in the first retry
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)

        async with processor:
            await until(lambda: results.checkpoint == 2)

        assert calls == [0, 1, 1, 1, 2]
        assert results.execute("SELECT id FROM sums") == [(0,), (1,), (2,)]

    @virtual
    async def test_a_statement_that_the_database_cannot_run_blames_no_event(self, results: Results) -> None:
        scene = Scene()
        scene.append(4)
        processor, errors = processor_of(scene, results)

        @processor.on_event
        async def handle(event: Event, tx: AsyncTransaction) -> None:
            await tx.execute("INSERT INTO nowhere VALUES (1)")

        async with processor:
            await until(lambda: errors)

        assert isinstance(errors[0], HandlerFailed)
        assert (results.dead_letters, results.checkpoint) == ([], None)

    @virtual
    @pytest.mark.parametrize("name", ["execute", "insert"])
    @pytest.mark.parametrize("takes", ["event", "batch"])
    async def test_a_call_that_nobody_awaits_is_an_error_and_nothing_counts(
        self, results: Results, takes: str, name: str
    ) -> None:
        scene = Scene()
        scene.append(4)
        processor, errors = processor_of(scene, results)

        async def handle(given: Any, tx: AsyncTransaction) -> None:
            await tx.execute("INSERT INTO results (id) VALUES (?)", [given.sequence_number if takes == "event" else 7])
            if name == "execute":
                tx.execute("INSERT INTO results (id) VALUES (8)")  # type: ignore[unused-coroutine]
            else:
                tx.insert([{"id": 9}])  # type: ignore[unused-coroutine]

        (processor.on_event if takes == "event" else processor.on_batch)(handle)
        async with processor:
            await until(lambda: errors)

        assert isinstance(errors[0], HandlerFailed)
        assert isinstance(errors[0].__cause__, SinkError)
        assert f"await tx.{name}(...)" in str(errors[0])
        assert (results.ids, results.dead_letters, results.checkpoint) == ([], [], None)

    @virtual
    async def test_a_task_that_uses_tx_must_be_awaited_too(self, results: Results) -> None:
        scene = Scene()
        scene.append(1)
        processor, errors = processor_of(scene, results)
        tasks: list[asyncio.Task[object]] = []

        @processor.on_event
        async def handle(event: Event, tx: AsyncTransaction) -> None:
            tasks.append(asyncio.create_task(tx.execute("INSERT INTO results (id) VALUES (8)")))

        async with processor:
            await until(lambda: errors)
        await asyncio.gather(*tasks, return_exceptions=True)

        assert "before tx.execute() was done" in str(errors[0])
        assert (results.ids, results.checkpoint) == ([], None)

    def test_tx_needs_a_sink(self, tmp_path: Path) -> None:
        @virtual
        async def scenario() -> None:
            processor = Scene().bare()

            @processor.on_batch
            async def handle(batch: EventBatch, tx: AsyncTransaction) -> None: ...

            with pytest.raises(ConfigError, match="sink=SqlSink"):
                await processor.start()

        scenario()


class TestPauses:
    """While hubline waits before it tries again, other writers of the file must get their turn: lease renewals too."""

    @virtual
    @pytest.mark.parametrize("is_async", [True, False])
    async def test_no_transaction_is_open_between_the_attempts_at_an_event(
        self, results: Results, is_async: bool
    ) -> None:
        scene = Scene()
        scene.append(20)
        retry = RetryPolicy(max_attempts=3, initial_backoff_seconds=0.1)
        processor, errors = processor_of(scene, results, handler_retry=retry, max_batch_size=20, max_wait_seconds=1)
        calls: list[int] = []

        def fails(event: Event) -> bool:
            number = event.sequence_number
            if calls and calls[-1] == number:
                results.execute("BEGIN IMMEDIATE")  # times out where a transaction is open
            calls.append(number)
            return number in (7, 8) or (number in (0, 12) and calls.count(number) < 3)

        async def handle_async(event: Event, tx: AsyncTransaction) -> dict[str, object]:
            has_failed = fails(event)
            await tx.execute("INSERT INTO results (id) VALUES (?)", [100 + event.sequence_number])
            if has_failed:
                raise ValueError("not now")
            return {"id": event.sequence_number}

        def handle(event: Event, tx: Transaction) -> dict[str, object]:
            has_failed = fails(event)
            tx.execute("INSERT INTO results (id) VALUES (?)", [100 + event.sequence_number])
            if has_failed:
                raise ValueError("not now")
            return {"id": event.sequence_number}

        processor.on_event(handle_async if is_async else handle)
        async with processor:
            await until(lambda: results.checkpoint == 19)

        good = [number for number in range(20) if number not in (7, 8)]
        assert calls == [number for number in range(20) for _ in range(3 if number in (0, 7, 8, 12) else 1)]
        assert (results.ids, errors) == (good + [100 + number for number in good], [])
        assert results.dead_letters == [(7, "handler"), (8, "handler")]
        assert results.execute("SELECT attempts FROM hubline_dead_letter") == [(3,), (3,)]

    @virtual
    async def test_nor_between_the_attempts_at_a_batch_and_its_halves(self, results: Results) -> None:
        scene = Scene()
        scene.append(16)
        retry = RetryPolicy(max_attempts=2, initial_backoff_seconds=0.1)
        processor, errors = processor_of(scene, results, handler_retry=retry, max_batch_size=16, max_wait_seconds=1)
        calls: list[tuple[int, int]] = []

        @processor.on_batch
        async def handle(batch: EventBatch, tx: AsyncTransaction) -> None:
            calls.append((batch.first_sequence, batch.last_sequence))
            results.execute("BEGIN IMMEDIATE")
            for event in batch:
                await tx.execute("INSERT INTO results (id) VALUES (?)", [event.sequence_number])
                if event.sequence_number == 5:
                    raise ValueError("never")

        async with processor:
            await until(lambda: results.checkpoint == 15)

        assert calls == [(0, 15), (0, 15), (0, 7), (0, 3), (4, 7), (4, 5), (4, 4), (5, 5), (6, 7), (8, 15)]
        assert results.ids == [number for number in range(16) if number != 5]
        assert (results.dead_letters, errors) == ([(5, "handler")], [])

    @virtual
    async def test_a_slow_handler_of_events_lets_others_in_between_two_of_them(self, results: Results) -> None:
        scene = Scene()
        scene.append(40)
        processor, errors = processor_of(scene, results, max_batch_size=40, max_wait_seconds=1)
        checkpoints: list[int | None] = []

        @processor.on_event
        async def handle(event: Event, tx: AsyncTransaction) -> None:
            checkpoints.append(results.checkpoint)
            await tx.execute("INSERT INTO results (id) VALUES (?)", [event.sequence_number])
            await asyncio.sleep(0.1)

        async with processor:
            await until(lambda: results.checkpoint == 39)

        assert (results.ids, results.dead_letters, errors) == (list(range(40)), [], [])
        assert len(set(checkpoints)) == 4  # a second of work each

    def test_renewals_get_through_with_store_and_sink_in_one_file(self, results: Results) -> None:
        """In real time, with real locks: the leases are shorter than the pauses of one batch together."""

        async def main() -> None:
            scene = Scene()
            scene.append(12)
            scene.store = cast("Any", SqliteStore(results.path))
            lease = LeaseOptions(lease_seconds=1.5, load_balancing_interval_seconds=0.5, startup_delay_seconds=0)
            retry = RetryPolicy(max_attempts=3, initial_backoff_seconds=0.5)
            processor, errors = processor_of(scene, results, kind=Processor, lease=lease, handler_retry=retry)

            @processor.on_event
            def handle(event: Event, tx: Transaction) -> None:
                tx.execute("INSERT INTO results (id) VALUES (?)", [event.sequence_number])
                if event.sequence_number in (1, 2, 3):
                    raise ValueError("never")

            async with processor:
                await until(lambda: results.checkpoint == 11, seconds_max=60)
            await scene.store.close()
            assert errors == []

        asyncio.run(main())

        assert results.ids == [0, *range(4, 12)]
        assert [sequence for sequence, _ in results.dead_letters] == [1, 2, 3]


class TestDeadLetters:
    @virtual
    async def test_failing_events_are_kept_and_the_rest_is_written(self, results: Results) -> None:
        scene = Scene()
        scene.append(20)
        reported: list[DeadLetter] = []
        processor, errors = processor_of(
            scene, results, handler_retry=RetryPolicy(max_attempts=3, initial_backoff_seconds=0.1)
        )
        processor.on_dead_letter(reported.append)

        @processor.on_batch
        async def handle(batch: EventBatch) -> pa.Table:
            if {3, 11} & set(batch.arrow.column("sequenceNumber").to_pylist()):
                raise ValueError("cannot")
            return rows_of(batch)

        async with processor:
            await until(lambda: results.checkpoint == 19 and len(reported) == 2)

        assert results.ids == [number for number in range(20) if number not in (3, 11)]
        assert (results.dead_letters, errors) == ([(3, "handler"), (11, "handler")], [])

    @virtual
    async def test_an_event_is_retried_by_policy_first(self, results: Results) -> None:
        scene = Scene()
        scene.append(3)
        processor, _ = processor_of(
            scene, results, handler_retry=RetryPolicy(max_attempts=3, initial_backoff_seconds=0.1)
        )
        calls: list[int] = []

        @processor.on_event
        async def handle(event: Event) -> dict[str, int]:
            calls.append(event.sequence_number)
            if (event.sequence_number == 1 and calls.count(1) < 3) or event.sequence_number == 2:
                raise ValueError("not yet")
            return {"id": event.sequence_number}

        async with processor:
            await until(lambda: results.checkpoint == 2)

        assert calls == [0, 1, 1, 1, 2, 2, 2]
        assert (results.ids, results.dead_letters) == ([0, 1], [(2, "handler")])
        assert results.execute("SELECT attempts FROM hubline_dead_letter") == [(3,)]

    @virtual
    @pytest.mark.parametrize("is_traced", [True, False])
    async def test_rows_that_the_database_refuses_are_traced_to_their_events(
        self, results: Results, is_traced: bool
    ) -> None:
        """By their sequence numbers; without these, by handing over halves of the batch."""
        scene = Scene()
        bodies(scene, "a", "bad", "c", "d", "e", "bad", "g")
        processor, errors = processor_of(scene, results, max_batch_size=100, max_wait_seconds=1)
        seen: list[int] = []

        @processor.on_batch
        async def handle(batch: EventBatch) -> pa.Table:
            seen.append(len(batch))
            rows = rows_of(batch)
            return rows if is_traced else rows.drop_columns("sequenceNumber")

        async with processor:
            await until(lambda: results.checkpoint == 6)

        assert (results.ids, results.dead_letters, errors) == ([0, 2, 3, 4, 6], [(1, "sink"), (5, "sink")], [])
        assert (seen == [7]) is is_traced

    @virtual
    async def test_events_before_a_retry_are_written_though_others_are_refused_after_it(self, results: Results) -> None:
        """Rows that name no events are traced by halves: the half that is retried begins after rows that count."""
        scene = Scene()
        bodies(scene, "a", "b", "c", "d", "bad", "f", "g", "h")
        retry = RetryPolicy(max_attempts=2, initial_backoff_seconds=0.1)
        processor, _ = processor_of(scene, results, max_batch_size=8, max_wait_seconds=1, handler_retry=retry)
        calls: list[tuple[int, int]] = []

        @processor.on_batch
        def handle(batch: EventBatch) -> list[dict[str, object]]:
            calls.append((batch.first_sequence, batch.last_sequence))
            if calls[-1] == (4, 7) and calls.count((4, 7)) == 1:
                raise ValueError("once")
            return [{"id": event.sequence_number, "note": event.text()} for event in batch]

        async with processor:
            await until(lambda: results.checkpoint == 7)

        assert (results.ids, results.dead_letters) == ([0, 1, 2, 3, 5, 6, 7], [(4, "sink")])

    @virtual
    async def test_on_dead_letter_comes_after_the_commit_alone(self, results: Results) -> None:
        """What is found while refused rows are traced is undone with the rest, and found once more."""
        scene = Scene()
        bodies(scene, "a", "b", "bad", "d")
        processor, _ = processor_of(scene, results, max_wait_seconds=1)
        seen: list[tuple[int, bool]] = []

        @processor.on_dead_letter
        def note(dead_letter: DeadLetter) -> None:
            sequence = dead_letter.event.sequence_number
            seen.append((sequence, (sequence, "sink") in results.dead_letters))

        @processor.on_batch
        def handle(batch: EventBatch, tx: Transaction) -> list[dict[str, object]]:
            events = [(event.sequence_number, event.text()) for event in batch]
            tx.insert([{"id": 9 + n, "note": "bad" if n == 1 else "", "sequenceNumber": n} for n, _ in events])
            return [{"id": n, "note": text} for n, text in events]  # naming no events

        async with processor:
            await until(lambda: results.checkpoint == 3)

        assert seen == [(1, True), (2, True)]

    @virtual
    async def test_values_that_make_no_column_are_traced_too(self, results: Results) -> None:
        scene = Scene()
        scene.append(4)
        processor, _ = processor_of(scene, results)

        @processor.on_event
        async def handle(event: Event) -> dict[str, object]:
            return {"id": event.sequence_number, "note": "lone \ud800" if event.sequence_number == 2 else "fine"}

        async with processor:
            await until(lambda: results.checkpoint == 3)

        assert (results.ids, results.dead_letters) == ([0, 1, 3], [(2, "sink")])

    @virtual
    async def test_on_failure_stop_keeps_nothing_and_stops(self, results: Results) -> None:
        scene = Scene()
        bodies(scene, "a", "bad")
        processor, errors = processor_of(scene, results, on_failure="stop")
        processor.on_batch(rows_of)

        async with processor:
            await until(lambda: errors)

        assert isinstance(errors[0], SinkError)
        assert (results.ids, results.dead_letters, results.checkpoint) == ([], [], None)

    @virtual
    async def test_a_dropped_table_stops_the_partition_until_it_is_back(self, results: Results) -> None:
        scene = Scene()
        scene.append(3)
        processor, errors = processor_of(scene, results)
        processor.on_batch(rows_of)
        async with processor:
            await until(lambda: results.checkpoint == 2)
            results.execute("DROP TABLE results")
            scene.append(3)
            await until(lambda: errors)
            results.execute("CREATE TABLE results (id INTEGER PRIMARY KEY, note TEXT)")
            await until(lambda: results.checkpoint == 5)

        assert isinstance(errors[0], SinkError)
        assert (results.ids, results.dead_letters) == ([3, 4, 5], [])


class TestLimits:
    @virtual
    @pytest.mark.parametrize(
        ("options", "bad", "limit"),
        [
            ({"max_consecutive_failures": 5}, range(10, 16), "in a row"),
            ({"max_failure_ratio": 0.1}, range(0, 200, 5), "ratio"),
        ],
    )
    async def test_too_many_stop_the_partition_and_nothing_of_the_batch_counts(
        self, results: Results, options: dict[str, Any], bad: range, limit: str
    ) -> None:
        scene = Scene()
        scene.append(200)
        processor, errors = processor_of(scene, results, max_batch_size=200, max_wait_seconds=1, **options)

        @processor.on_event
        async def handle(event: Event) -> dict[str, int]:
            if event.sequence_number in bad:
                raise ValueError("no")
            return {"id": event.sequence_number}

        async with processor:
            await until(lambda: errors)

        assert isinstance(errors[0], DeadLetterLimit)
        assert errors[0].limit == limit
        assert (results.ids, results.dead_letters, results.checkpoint) == ([], [], None)

    @virtual
    async def test_as_many_as_allowed_pass(self, results: Results) -> None:
        scene = Scene()
        scene.append(200)
        processor, errors = processor_of(scene, results, max_consecutive_failures=5)

        @processor.on_event
        async def handle(event: Event) -> None:
            if 10 <= event.sequence_number < 15:
                raise ValueError("no")

        async with processor:
            await until(lambda: results.checkpoint == 199)

        assert (len(results.dead_letters), errors) == (5, [])


class TestQuarantine:
    @virtual
    @pytest.mark.parametrize("by", ["event", "batch", "sink"])
    async def test_later_events_of_a_failed_key_follow_it(self, results: Results, by: str) -> None:
        scene = Scene()
        bodies(scene, "a", key="x")
        bodies(scene, "bad", key="y")
        bodies(scene, "b", key="x")
        bodies(scene, "c", key="y")
        processor, _ = processor_of(scene, results, preserve_key_order=True, max_wait_seconds=1)

        async def each(event: Event) -> dict[str, object]:
            if event.body == b"bad":
                raise ValueError("bad")
            return {"id": event.sequence_number}

        async def all_at_once(batch: EventBatch) -> pa.Table:
            if by == "batch" and b"bad" in batch.bodies:
                raise ValueError("bad")
            return rows_of(batch)

        if by == "event":
            processor.on_event(each)
        else:
            processor.on_batch(all_at_once)
        async with processor:
            await until(lambda: results.checkpoint == 3)
            bodies(scene, "d", key="y")
            bodies(scene, "e")
            await until(lambda: results.checkpoint == 5)

        stage = "sink" if by == "sink" else "handler"
        assert results.ids == [0, 2, 5]
        assert results.dead_letters == [(1, stage), (3, "quarantine"), (4, "quarantine")]

    @virtual
    async def test_events_before_a_retry_are_written_though_others_follow_a_refused_one(self, results: Results) -> None:
        scene = Scene()
        bodies(scene, "a", "once")
        bodies(scene, "bad", "c", key="k")
        retry = RetryPolicy(max_attempts=2, initial_backoff_seconds=0.1)
        processor, _ = processor_of(scene, results, max_wait_seconds=1, handler_retry=retry, preserve_key_order=True)
        calls: list[int] = []

        @processor.on_event
        def handle(event: Event) -> dict[str, object]:
            calls.append(event.sequence_number)
            if calls.count(1) == 1 and event.sequence_number == 1:
                raise ValueError("once")
            return {"id": event.sequence_number, "note": event.text()}

        async with processor:
            await until(lambda: results.checkpoint == 3)

        assert (results.ids, results.dead_letters) == ([0, 1], [(2, "sink"), (3, "quarantine")])

    @virtual
    @pytest.mark.parametrize("takes_tx", [True, False])
    async def test_refused_rows_are_traced_also_behind_a_follower(self, results: Results, takes_tx: bool) -> None:
        scene = Scene()
        bodies(scene, "bad", key="k")
        processor, _ = processor_of(scene, results, max_wait_seconds=1, preserve_key_order=True)
        calls: list[list[int]] = []

        def handle(batch: EventBatch) -> list[dict[str, object]]:
            calls.append([event.sequence_number for event in batch])
            if len(calls) > 20:  # it would never end
                return []
            return [{"id": event.sequence_number, "note": event.text()} for event in batch]  # naming no events

        def handle_tx(batch: EventBatch, tx: Transaction) -> list[dict[str, object]]:
            return handle(batch)

        processor.on_batch(handle_tx if takes_tx else handle)
        async with processor:
            await until(lambda: results.checkpoint == 0)
            bodies(scene, "follower", key="k")
            bodies(scene, "ok", "bad", "ok")
            await until(lambda: results.checkpoint == 4)

        assert (results.ids, results.dead_letters) == ([2, 4], [(0, "sink"), (1, "quarantine"), (3, "sink")])

    @virtual
    async def test_a_key_is_free_again_when_none_of_it_waits(self, results: Results) -> None:
        scene = Scene()
        bodies(scene, "bad", key="y")
        processor, _ = processor_of(scene, results, preserve_key_order=True)
        processor.on_batch(rows_of)
        async with processor:
            await until(lambda: results.checkpoint == 0)
            results.execute("UPDATE hubline_dead_letter SET state = 'redriven'")
            bodies(scene, "b", key="y")
            await until(lambda: results.checkpoint == 1)

        assert results.ids == [1]


class TestSetBack:
    """The checkpoint is set back, and events come again of which dead letters wait."""

    async def read_again(self, scene: Scene, results: Results, *, failing: set[int], last: int, **options: Any) -> None:
        processor, _ = processor_of(scene, results, **options)

        @processor.on_event
        def handle(event: Event) -> dict[str, object]:
            if event.sequence_number in failing:
                raise ValueError("bad")
            return {"id": event.sequence_number}

        async with processor:
            await until(lambda: results.checkpoint == last)

    def set_back(self, results: Results) -> None:
        results.execute('UPDATE hubline_checkpoint SET "offset" = NULL, sequence_number = NULL, epoch = epoch + 1')

    def states(self, results: Results) -> list[tuple[int, str, str]]:
        return results.execute("SELECT sequence_number, stage, state FROM hubline_dead_letter ORDER BY sequence_number")

    @virtual
    async def test_dead_letters_are_answered_by_events_that_succeed_and_replaced_by_those_that_fail(
        self, results: Results
    ) -> None:
        scene = Scene()
        scene.append(5)
        results.sink = SqlSink(results.url, table="results", upsert_key="id")
        await self.read_again(scene, results, failing={1, 3}, last=4)
        self.set_back(results)
        await self.read_again(scene, results, failing={3, 4}, last=4, owner_id="b")

        assert results.ids == [0, 1, 2, 4]
        assert self.states(results) == [
            (1, "handler", "redriven"),
            (3, "handler", "waiting"),
            (4, "handler", "waiting"),
        ]

    @virtual
    async def test_a_dead_letter_of_a_later_event_holds_up_no_earlier_one_of_its_key(self, results: Results) -> None:
        scene = Scene()
        bodies(scene, "a", "b", "c", key="x")
        results.sink = SqlSink(results.url, table="results", upsert_key="id")
        await self.read_again(scene, results, failing={1}, last=2, preserve_key_order=True)
        assert self.states(results) == [(1, "handler", "waiting"), (2, "quarantine", "waiting")]
        self.set_back(results)
        await self.read_again(scene, results, failing=set(), last=2, preserve_key_order=True, owner_id="b")

        assert results.ids == [0, 1, 2]
        assert [state for _, _, state in self.states(results)] == ["redriven", "redriven"]


class TestOwners:
    @virtual
    async def test_an_owner_that_was_fenced_in_the_sink_writes_nothing(self, results: Results) -> None:
        scene = Scene()
        processor, errors = processor_of(scene, results)
        processor.on_batch(rows_of)
        async with processor:
            await until(lambda: processor.partitions)
            results.sink.open(scene.group.partition("0"), 50)
            scene.append(3)
            await until(lambda: results.checkpoint == 2)
            assert processor.partitions[0].epoch > 50  # it claimed the partition again, above the fence

        assert any(isinstance(error, Fenced) for error in errors)
        assert results.ids == [0, 1, 2]

    @virtual
    @pytest.mark.parametrize("is_async", [True, False])
    async def test_a_checkpoint_that_is_set_in_the_sink_is_seen_while_nothing_comes(
        self, results: Results, is_async: bool
    ) -> None:
        """The store is another database, in which nothing was changed."""
        scene = Scene()
        scene.append(5)
        seen: list[int] = []
        processor, errors = processor_of(scene, results)

        async def handle_async(batch: EventBatch) -> None:
            seen.extend(event.sequence_number for event in batch)

        def handle(batch: EventBatch) -> None:
            seen.extend(event.sequence_number for event in batch)

        processor.on_batch(handle_async if is_async else handle)
        async with processor:
            await until(lambda: results.checkpoint == 4)
            set_back = f"sequence_number = 2, \"offset\" = '{scene.hub.offset_of(2)}'"
            results.execute(f"UPDATE hubline_checkpoint SET epoch = epoch + 1, {set_back}")
            await until(lambda: results.checkpoint == 4)

        assert (seen, errors) == ([0, 1, 2, 3, 4, 3, 4], [])

    @virtual
    async def test_hand_overs_write_every_event_once(self, results: Results) -> None:
        scene = Scene(3)
        processors = [processor_of(scene, results, owner_id=name)[0] for name in "ab"]
        for processor in processors:
            processor.on_batch(
                lambda batch: [{"note": f"{batch.partition}/{event.sequence_number}"} for event in batch]
            )
        await processors[0].start()
        for number in range(40):
            if number == 10:
                await processors[1].start()
            if number == 30:
                await processors[0].stop()
            scene.append(3, partition=str(number % 3))
            await until(lambda: True)
        total = 3 * 40
        await until(lambda: results.execute("SELECT count(*) FROM results") == [(total,)])
        await processors[1].stop()

        assert len({note for (note,) in results.execute("SELECT note FROM results")}) == total

    @virtual
    async def test_without_a_sink_events_come_one_by_one_too(self, results: Results) -> None:
        scene = Scene()
        scene.append(5)
        processor = scene.bare(handler_retry=ONCE, on_failure="dead_letter")
        seen: list[int] = []
        dead_letters: list[DeadLetter] = []
        processor.on_dead_letter(dead_letters.append)

        @processor.on_event
        async def handle(event: Event) -> None:
            if event.sequence_number == 2:
                raise ValueError("no")
            seen.append(event.sequence_number)

        async with processor:
            await until(lambda: 4 in seen)

        assert (seen, [dead_letter.event.sequence_number for dead_letter in dead_letters]) == ([0, 1, 3, 4], [2])
        assert await scene.checkpoint() == 4


class TestRepeats:
    @virtual
    @pytest.mark.parametrize("how", ["ordered", "any_order"])
    async def test_what_an_earlier_stage_published_twice_is_written_once(
        self, results: Results, how: DropDuplicates
    ) -> None:
        results.sink.close()
        results.sink = SqlSink(results.url, table="results", drop_duplicates=how)
        scene = Scene()
        sender = await scene.hub.open_sender()
        numbers = [0, 1, 2, 1, 2, 3, 4, 3, 4]
        events = [{"body": str(n), "properties": {"hubline-id": f"ns/first@1/0/{n}/0"}} for n in numbers]
        await sender.send(new_events(events), partition="0")
        processor, errors = processor_of(scene, results, max_batch_size=4)
        processor.on_event(lambda event: {"note": event.text()})

        async with processor:
            await until(lambda: results.checkpoint == 8)

        assert results.execute("SELECT note FROM results") == [("0",), ("1",), ("2",), ("3",), ("4",)]
        assert errors == []
