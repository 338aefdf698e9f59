"""The SQL sink on PostgreSQL with fsync on: beside bare COPY, and beside the flow of a careful consumer in SQL.

Events of 200 bytes, a row each. A commit of the sink is a fenced transaction: lock, rows, dead letters, checkpoint. The
limit sends the same rows, encoded beforehand, by binary COPY in a transaction that does nothing else. The classic flow
is the one that people write: for each event a try and an INSERT, then the failed ones, the checkpoint, and the commit.
Rounds take turns, and each pair of figures is of the same rounds: the machine is shared.

Partitions in parallel are as in the processor: each has a thread of its own for as long as it is owned, and takes
its next batch without waiting for the others.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Final

import pgpq
import psycopg
import pyarrow as pa

from benchmarks.harness import Result, benchmark
from hubline.event_ids import ID_PROPERTY
from hubline.model.dead_letters import DeadLetter
from hubline.model.events import EVENT_SCHEMA, Event, EventBatch
from hubline.model.keys import GroupKey, PartitionKey
from hubline.model.ownership import Checkpoint
from hubline.sinks import SqlSink
from tests.support.postgres import PostgresServer

BODY: Final = json.dumps({"device": "sensor-17", "temperature": 21.5, "note": "x" * 140}).encode().ljust(200)
GROUP: Final = GroupKey("namespace.example", "readings", "bench")
ROUND_COUNT: Final = 15
MANY_ROUNDS_COUNT: Final = 60
"""For batches of 5,000, where figures lie close together: medians of fewer differ by more than what is looked for."""
PARALLEL_COUNT: Final = 4
IN_ROW_COUNT: Final = 4
"""Batches of a partition in a round of several partitions."""
POISON_SHARE: Final = 0.01

_TABLE: Final = "CREATE TABLE {} (sequence bigint NOT NULL, enqueued timestamptz NOT NULL, body text NOT NULL)"


@benchmark("sql-sink-50000")
def sql_sink_50000() -> Iterator[Result]:
    """Batches of 50,000 events."""
    yield from _against_copy(50_000)


@benchmark("sql-sink-5000")
def sql_sink_5000() -> Iterator[Result]:
    """Batches of 5,000 events."""
    yield from _against_copy(5_000)


@benchmark("sql-sink-500")
def sql_sink_500() -> Iterator[Result]:
    """Batches of 500 events."""
    with _Scene() as scene:
        rate, ratio = _compared(scene.sink_rounds(500), scene.classic_rounds(500), count=500)
    yield Result("sql-sink-500", rate, "rows/s", ratio, "a try and an INSERT for each event, one transaction")


@benchmark("sql-sink-parallel")
def sql_sink_parallel() -> Iterator[Result]:
    """Four partitions at once, in batches of 5,000."""
    with _Scene() as scene:
        four, one = (scene.partition_rounds(partitions, 5_000) for partitions in (PARALLEL_COUNT, 1))
        rate, ratio = _compared(four, one, count=5_000 * IN_ROW_COUNT * PARALLEL_COUNT)
    yield Result("sql-sink-parallel", rate, "rows/s", ratio * PARALLEL_COUNT, "one partition")


@benchmark("sql-sink-poison")
def sql_sink_poison() -> Iterator[Result]:
    """One event in a hundred is poison, in batches of 5,000."""
    with _Scene() as scene:
        rate, ratio = _compared(scene.poison_rounds(5_000), scene.sink_rounds(5_000), count=5_000)
        yield Result("sql-sink-poison", rate, "events/s", ratio, "the same without poison")
        rate, ratio = _compared(scene.checked_rounds(POISON_SHARE), scene.checked_rounds(0.0), count=5_000)
        yield Result("sql-sink-rejected", rate, "events/s", ratio, "the same without rows to refuse")


@benchmark("sql-sink-duplicates")
def sql_sink_duplicates() -> Iterator[Result]:
    """Batches of 5,000 events that carry ids, deduplicated by the highest of their origin partition."""
    with _Scene() as scene:
        works = (scene.deduplicated_rounds(is_deduplicated=is_deduplicated) for is_deduplicated in (True, False))
        rate, ratio = _compared(*works, count=5_000)
    yield Result("sql-sink-duplicates", rate, "rows/s", ratio, "the same without looking for duplicates")


def _against_copy(count: int) -> Iterator[Result]:
    with _Scene() as scene:
        rate, ratio = _compared(scene.sink_rounds(count), scene.copy_rounds(count), count=count)
    yield Result(f"sql-sink-{count}", rate, "rows/s", ratio, "binary COPY of the same rows, encoded beforehand")


def _compared(work: Callable[[], None], other: Callable[[], None], *, count: int) -> tuple[float, float]:
    """How many of ``count`` a second some work does, and how many times as fast as the other it is.

    They take turns, and each round is compared with the one beside it: what else the machine does goes up and down. The
    medians count.
    """
    work()
    other()
    repeats = max(1, 10_000 // count)
    rounds = [(_seconds(work, repeats), _seconds(other, repeats)) for _ in range(_round_count(count))]
    rate = count / statistics.median(mine for mine, _ in rounds)
    return rate, statistics.median(its / mine for mine, its in rounds)


def _seconds(work: Callable[[], None], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        work()
    return (time.perf_counter() - start) / repeats


def _round_count(count: int) -> int:
    return MANY_ROUNDS_COUNT if count == 5_000 else ROUND_COUNT


class _Scene:
    """A server with a table for each way of writing."""

    def __enter__(self) -> _Scene:
        self._server = PostgresServer.start()
        self._url = self._server.new_database().reveal()
        self._written: list[pa.Table] = []
        self._sink = SqlSink(self._url, table="of_sink")
        self._driver = psycopg.connect(self._url)
        for table in ("of_sink", "of_copy", "of_classic"):
            self._driver.execute(_TABLE.format(table).encode())
        self._driver.execute(_TABLE.format("of_checked").replace("NOT NULL)", "CHECK (body <> 'poison'))").encode())
        self._driver.execute(
            "CREATE TABLE checkpoint (topic text, partition text, sequence bigint, PRIMARY KEY (topic, partition))"
        )
        self._driver.execute("INSERT INTO checkpoint VALUES ('readings', '0', 0)")
        self._driver.execute("CREATE TABLE dead_letter (sequence bigint, failed_at timestamptz, error text)")
        self._driver.commit()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            ((written,),) = self._driver.execute("SELECT count(*) FROM of_sink").fetchall()
            assert written == sum(map(len, self._written)), "what was measured did not write what it was given"
        self._driver.close()
        self._sink.close()
        self._server.close()

    def sink_rounds(self, count: int) -> Callable[[], None]:
        return self._sink_work(GROUP.partition("0"), count, poison_share=0.0)

    def poison_rounds(self, count: int) -> Callable[[], None]:
        return self._sink_work(GROUP.partition("poison"), count, poison_share=POISON_SHARE)

    def partition_rounds(self, partitions: int, count: int) -> Callable[[], None]:
        names = [f"{number} of {partitions}" for number in range(partitions)]
        works = [self._sink_work(GROUP.partition(name), count, poison_share=0.0) for name in names]
        threads = [ThreadPoolExecutor(1) for _ in names]

        def in_row(one: Callable[[], None]) -> None:
            for _ in range(IN_ROW_COUNT):
                one()

        def work() -> None:
            for running in [thread.submit(in_row, one) for thread, one in zip(threads, works, strict=True)]:
                running.result()

        return work

    def checked_rounds(self, refused_share: float) -> Callable[[], None]:
        """What the handler lets pass and a CHECK of the database does not: found by trying."""
        count = 5_000
        key = GROUP.partition(f"checked {refused_share}")
        partition = SqlSink(self._url, table="of_checked").open(key, 1)
        rows = _rows(count)
        bodies = rows.column("body").to_pylist()
        bodies[:: int(1 / refused_share) if refused_share else count + 1] = (
            ["poison"] * int(count * refused_share) if refused_share else bodies[:1]
        )
        rows = rows.set_column(2, "body", pa.array(bodies)).append_column("sequenceNumber", rows.column("sequence"))
        last = -1

        def work() -> None:
            nonlocal last
            last += count
            assert len(partition.commit(Checkpoint(key, str(last), last), rows)) == int(count * refused_share)

        return work

    def copy_rounds(self, count: int) -> Callable[[], None]:
        batch = _rows(count).combine_chunks().to_batches()[0]
        encoder = pgpq.ArrowToPostgresBinaryEncoder(batch.schema)
        data = encoder.write_header() + encoder.write_batch(batch) + encoder.finish()

        def work() -> None:
            with self._driver.cursor().copy("COPY of_copy FROM STDIN (FORMAT binary)") as copy:
                copy.write(data)
            self._driver.commit()

        return work

    def classic_rounds(self, count: int) -> Callable[[], None]:
        """As the document has it: a list of failures, a transaction, a try for each event, dead letters, checkpoint."""
        enqueued = datetime.now(UTC)
        events = [Event(BODY, "0", str(number), number, enqueued) for number in range(count)]
        driver = self._driver

        def work() -> None:
            failed: list[tuple[Event, datetime, Exception]] = []
            with driver.transaction():
                for event in events:
                    try:
                        driver.execute(
                            "INSERT INTO of_classic (sequence, enqueued, body) VALUES (%s, %s, %s)",
                            (event.sequence_number, event.enqueued_time, event.text()),
                        )
                    except Exception as error:  # noqa: BLE001 - that is the flow
                        failed.append((event, datetime.now(UTC), error))
                for event, failed_at, why in failed:
                    driver.execute(
                        "INSERT INTO dead_letter VALUES (%s, %s, %s)", (event.sequence_number, failed_at, str(why))
                    )
                driver.execute("UPDATE checkpoint SET sequence = sequence + 1 WHERE topic = 'readings'")

        return work

    def deduplicated_rounds(self, *, is_deduplicated: bool) -> Callable[[], None]:
        count = 5_000
        key = GROUP.partition("deduplicated" if is_deduplicated else "unsifted")
        partition = SqlSink(self._url, table="of_sink", drop_duplicates="ordered").open(key, 1)
        rows, last = _rows(count), -1
        rounds = iter([_batch(number * count, count) for number in range(2 * MANY_ROUNDS_COUNT + 1)])

        def work() -> None:
            nonlocal last
            last += count
            batch = next(rounds)
            with partition.transaction(Checkpoint(key, str(last), last)) as transaction:
                if is_deduplicated:
                    deduplicated = partition.deduplicate(batch)
                    assert len(deduplicated.batch) == count
                    transaction.record_ids(partition, deduplicated)
                transaction.insert(rows)
            self._written.append(rows)

        return work

    def _sink_work(self, key: PartitionKey, count: int, *, poison_share: float) -> Callable[[], None]:
        partition = self._sink.open(key, 1)
        poison_count = int(count * poison_share)
        rows = _rows(count - poison_count)
        enqueued = datetime.now(UTC)
        last = 0

        def work() -> None:
            nonlocal last
            last += count
            failed = range(last - count + 1, last + 1, count // poison_count) if poison_count else ()
            dead_letters = [
                DeadLetter.of(key, Event(BODY, "0", str(number), number, enqueued), _poisoned(), attempts=1)
                for number in failed
            ]
            partition.commit(Checkpoint(key, str(last), last), rows, dead_letters=dead_letters)
            self._written.append(rows)

        return work


def _rows(count: int) -> pa.Table:
    return pa.table(
        {
            "sequence": pa.array(range(count), pa.int64()),
            "enqueued": pa.array([datetime.now(UTC)] * count, pa.timestamp("us", "UTC")),
            "body": pa.array([BODY.decode()] * count),
        }
    )


def _batch(first: int, count: int) -> EventBatch:
    """Events whose ids an earlier stage gave them."""
    now, numbers = datetime.now(UTC), range(first, first + count)
    columns = [
        pa.array([BODY] * count, pa.binary()),
        pa.array(["0"] * count),
        pa.array([str(number) for number in numbers]),
        pa.array(numbers, pa.int64()),
        pa.array([now] * count, EVENT_SCHEMA.field("enqueuedTime").type),
        pa.nulls(count, pa.string()),
        pa.array(
            [[(ID_PROPERTY, f"namespace.example/first@1700000000000/3/{number}/0")] for number in numbers],
            EVENT_SCHEMA.field("properties").type,
        ),
    ]
    return EventBatch("0", pa.RecordBatch.from_arrays(columns, schema=EVENT_SCHEMA))


def _poisoned() -> Exception:
    """As a handler's error comes: with where it was raised."""
    try:
        raise ValueError("poison")
    except ValueError as error:
        return error
