"""Dead letters through the handler that failed them: the same calls, the same rows, the same transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hubline
from hubline.dead_letters.handler_redrive import HandlerRedrive, batch_of
from hubline.dead_letters.redrive import Progress
from hubline.dead_letters.repository import DeadLetterRepository
from hubline.errors import ConfigError, HandlerFailed
from hubline.event_ids import ID_PROPERTY, event_ids
from hubline.model.dead_letters import DeadLetter, DeadLetterSelection
from hubline.model.events import Event, EventBatch
from hubline.model.keys import GroupKey
from hubline.model.ownership import Checkpoint
from hubline.model.positions import Position
from hubline.processor import PartitionContext, Processor, ProcessorOptions, RetryPolicy
from hubline.processor.handlers.caller import HandlerCaller
from hubline.sinks import DropDuplicates, SqlSink, Transaction
from tests.dead_letters.conftest import dead_letter, keep
from tests.dead_letters.test_redrive import dead_letters_in, numbers, outcomes, quarantined

RETRY = RetryPolicy(max_attempts=2, initial_backoff_seconds=0.0, max_backoff_seconds=0.0)


class Scene:
    """A processor that could not take some events, and its sink."""

    def __init__(self, root: Path, url: str) -> None:
        self.root = root
        self.url = url
        self.group = GroupKey(f"local:{root}", "orders", "billing")
        with closing(SqlSink(url)) as sink, sink.database.connection() as connection:
            connection.execute("CREATE TABLE readings (n BIGINT PRIMARY KEY, body TEXT)", ())

    def keep(self, *dead_letters: DeadLetter) -> None:
        keep(self.url, dead_letters)

    def dead_letters(self, *sequences: int) -> list[DeadLetter]:
        return [dead_letter(sequence, group=self.group) for sequence in sequences]

    def processor(
        self, *, table: str | None = "readings", drop_duplicates: DropDuplicates = "off", **options: Any
    ) -> Processor:
        return Processor(
            f"local:{self.root}/orders",
            "memory:",
            consumer_group="billing",
            starting_position=Position.earliest(),
            sink=SqlSink(self.url, table=table, drop_duplicates=drop_duplicates),
            options=ProcessorOptions(**{"handler_retry": RETRY, **options}),
        )

    def redrive(self, processor: Processor, choice: DeadLetterSelection | None = None) -> list[Progress]:
        async def run() -> list[Progress]:
            rerun = HandlerRedrive.of(processor)
            job = rerun.redrive(choice or DeadLetterSelection(), body_group="readers")
            repository = DeadLetterRepository(self.url)
            counts = await repository.count(job.selection)
            await repository.close()
            try:
                return [each async for each in job.run(counts)]
            finally:
                rerun.sink.close()

        return asyncio.run(run())

    def rows(self) -> list[tuple[int, str]]:
        with closing(SqlSink(self.url)) as sink, sink.database.connection() as connection:
            found = connection.execute("SELECT n, body FROM readings ORDER BY n", ())
        return [(int(str(n)), str(body)) for n, body in found]

    def checkpoints(self) -> list[int]:
        with closing(SqlSink(self.url)) as sink, sink.database.connection() as connection:
            found = connection.execute("SELECT sequence_number FROM hubline_checkpoint", ())
        return [int(str(sequence)) for (sequence,) in found]

    @property
    def placeholder(self) -> str:
        return "?" if self.url.startswith("sqlite") else "%s"


@pytest.fixture
def scene(tmp_path: Path, url: str) -> Scene:
    return Scene(tmp_path, url)


def on_event_rows(scene: Scene, processor: Processor) -> None:
    @processor.on_event
    def handle(event: Event) -> dict[str, object]:
        return {"n": event.sequence_number, "body": event.text()}


def on_event_async_rows(scene: Scene, processor: Processor) -> None:
    @processor.on_event
    async def handle(event: Event, partition: PartitionContext) -> dict[str, object]:
        assert partition.partition_id == event.partition
        return {"n": event.sequence_number, "body": event.text()}


def on_event_tx(scene: Scene, processor: Processor) -> None:
    @processor.on_event
    def handle(event: Event, tx: Transaction) -> None:
        tx.execute(f"INSERT INTO readings VALUES ({event.sequence_number}, {scene.placeholder})", [event.text()])


def on_batch_arrow(scene: Scene, processor: Processor) -> None:
    @processor.on_batch
    def handle(batch: EventBatch) -> pa.Table:
        return pa.table({"n": batch.arrow.column("sequenceNumber"), "body": [each.decode() for each in batch.bodies]})


def on_batch_async_tx(scene: Scene, processor: Processor) -> None:
    @processor.on_batch
    async def handle(batch: EventBatch, tx: Any) -> None:
        for event in batch:
            await tx.execute(
                f"INSERT INTO readings VALUES ({event.sequence_number}, {scene.placeholder})", [event.text()]
            )


HANDLERS = [on_event_rows, on_event_async_rows, on_event_tx, on_batch_arrow, on_batch_async_tx]


@pytest.mark.parametrize("register", HANDLERS, ids=lambda each: each.__name__)
def test_every_kind_of_handler_redrives(scene: Scene, register: Callable[[Scene, Processor], None]) -> None:
    scene.keep(*scene.dead_letters(*range(45)))
    processor = scene.processor()
    register(scene, processor)
    progress = scene.redrive(processor)
    assert set(outcomes(progress).values()) == {"redriven"}
    assert scene.rows() == [(each, f"event {each}") for each in range(45)]
    assert dead_letters_in(scene.url) == []
    assert scene.checkpoints() == [44]
    assert scene.redrive(processor) == []


@pytest.mark.parametrize("register", HANDLERS, ids=lambda each: each.__name__)
def test_row_that_the_database_refuses_leaves_its_dead_letter(
    scene: Scene, register: Callable[[Scene, Processor], None]
) -> None:
    scene.keep(*scene.dead_letters(1, 2, 3, 4))
    with closing(SqlSink(scene.url)) as sink, sink.database.connection() as connection:
        connection.execute("INSERT INTO readings VALUES (3, 'is here')", ())
    processor = scene.processor()
    register(scene, processor)
    done = outcomes(scene.redrive(processor))
    assert done == {"0/1": "redriven", "0/2": "redriven", "0/3": "failed", "0/4": "redriven"}
    assert scene.rows() == [(1, "event 1"), (2, "event 2"), (3, "is here"), (4, "event 4")]
    (left,) = dead_letters_in(scene.url)
    assert left.attempts > 3
    assert left.error_type != "ValueError"


def test_handler_that_fails_again_is_retried_and_its_dead_letter_stays(scene: Scene) -> None:
    scene.keep(*scene.dead_letters(1, 2, 3))
    processor = scene.processor()
    tries: list[int] = []

    @processor.on_event
    def handle(event: Event) -> dict[str, object]:
        tries.append(event.sequence_number)
        if event.sequence_number == 2:
            raise LookupError("no customer")
        return {"n": event.sequence_number, "body": ""}

    assert outcomes(scene.redrive(processor)) == {"0/1": "redriven", "0/2": "failed", "0/3": "redriven"}
    assert tries == [1, 2, 2, 3]
    (left,) = dead_letters_in(scene.url)
    assert (left.attempts, left.error_type, left.error_text) == (5, "LookupError", "no customer")
    assert "in handle" in left.traceback


def test_attempts_count_on_where_an_event_succeeds_in_between(scene: Scene) -> None:
    """A retry undoes what the handler wrote by its tx for the events before it, and they are handled once more."""
    scene.keep(*scene.dead_letters(1, 2, 3))
    processor = scene.processor()
    tries: list[int] = []

    @processor.on_event
    def handle(event: Event, tx: Transaction) -> None:
        tries.append(event.sequence_number)
        tx.execute(f"INSERT INTO readings VALUES ({event.sequence_number}, 'x')")
        is_every_second = event.sequence_number == 1 and tries.count(1) % 2 == 0
        if (is_every_second or event.sequence_number == 2) and len(tries) < 50:
            raise ValueError("busy")

    assert outcomes(scene.redrive(processor)) == {"0/1": "redriven", "0/2": "failed", "0/3": "redriven"}
    assert tries == [1, 2, 1, 1, 2, 3]
    assert scene.rows() == [(1, "x"), (3, "x")]


def test_plain_handler_around_an_async_one_redrives_by_its_tx(scene: Scene) -> None:
    scene.keep(*scene.dead_letters(1, 2, 3))
    processor = scene.processor()
    tries: list[int] = []

    async def write(event: Event, tx: Transaction) -> None:
        tx.execute(f"INSERT INTO readings VALUES ({event.sequence_number}, 'x')")

    @processor.on_event
    def handle(event: Event, tx: Transaction) -> Any:
        tries.append(event.sequence_number)
        return write(event, tx) if len(tries) < 50 else None

    assert set(outcomes(scene.redrive(processor)).values()) == {"redriven"}
    assert tries == [1, 2, 3]
    assert scene.rows() == [(1, "x"), (2, "x"), (3, "x")]


@pytest.mark.parametrize("takes_tx", [True, False])
def test_others_may_write_while_a_retry_waits(scene: Scene, monkeypatch: pytest.MonkeyPatch, *, takes_tx: bool) -> None:
    """On SQLite, an open transaction keeps all of them out: the renewals of a processor that runs, too."""
    scene.keep(*scene.dead_letters(1, 2, 3))
    processor = scene.processor()
    pauses: list[int] = []

    async def pause(self: HandlerCaller, failed: HandlerFailed) -> None:
        pauses.append(failed.first_sequence)
        with closing(SqlSink(scene.url)) as sink, sink.database.connection() as connection:
            connection.execute(f"INSERT INTO readings VALUES ({100 + len(pauses)}, 'other')", ())

    monkeypatch.setattr(HandlerCaller, "pause", pause)

    def write(event: Event, tx: Any) -> None:
        tx.execute(f"INSERT INTO readings VALUES ({event.sequence_number}, 'x')")
        if event.sequence_number == 2:
            raise LookupError

    def give(event: Event) -> dict[str, object]:
        if event.sequence_number == 2:
            raise LookupError
        return {"n": event.sequence_number, "body": "x"}

    processor.on_event(write if takes_tx else give)

    assert outcomes(scene.redrive(processor)) == {"0/1": "redriven", "0/2": "failed", "0/3": "redriven"}
    assert pauses == [2]
    assert scene.rows() == [(1, "x"), (3, "x"), (101, "other")]


def test_rows_of_a_failed_attempt_are_undone(scene: Scene) -> None:
    scene.keep(*scene.dead_letters(1, 2))
    processor = scene.processor()

    @processor.on_event
    def handle(event: Event, tx: Any) -> None:
        tx.execute(f"INSERT INTO readings VALUES ({event.sequence_number}, 'x')")
        if event.sequence_number == 1:
            raise LookupError

    scene.redrive(processor)
    assert scene.rows() == [(2, "x")]
    assert numbers(dead_letters_in(scene.url)) == [1]


def test_more_failures_than_a_partition_may_have_do_not_stop_a_redrive(scene: Scene) -> None:
    scene.keep(*scene.dead_letters(*range(150)))
    processor = scene.processor(
        handler_retry=RetryPolicy(max_attempts=1), on_failure="stop", max_consecutive_failures=1
    )

    @processor.on_event
    def handle(event: Event) -> None:
        raise LookupError

    assert set(outcomes(scene.redrive(processor)).values()) == {"failed"}
    assert {each.attempts for each in dead_letters_in(scene.url)} == {4}


@pytest.mark.parametrize("preserve_key_order", [True, False])
def test_keys_in_quarantine_stay_in_order(scene: Scene, preserve_key_order: bool) -> None:
    scene.keep(
        dead_letter(2, group=scene.group, key="a"),
        *(quarantined(sequence, "a", group=scene.group) for sequence in (3, 4)),
        dead_letter(5, group=scene.group, key="b"),
    )
    processor = scene.processor(preserve_key_order=preserve_key_order)
    seen: list[int] = []
    is_fixed = False

    @processor.on_event
    def handle(event: Event) -> None:
        seen.append(event.sequence_number)
        if event.sequence_number == 2 and not is_fixed:
            raise LookupError

    assert outcomes(scene.redrive(processor)) == {"0/2": "failed", "0/3": "held", "0/4": "held", "0/5": "redriven"}
    assert seen == [2, 2, 5]
    assert [each.attempts for each in dead_letters_in(scene.url)] == [5, 3, 3]
    is_fixed = True
    assert set(outcomes(scene.redrive(processor)).values()) == {"redriven"}
    assert seen == [2, 2, 5, 2, 3, 4]


@pytest.mark.parametrize("drop_duplicates", ["ordered", "any_order"])
def test_dead_letters_do_not_pass_for_duplicates_of_themselves(scene: Scene, drop_duplicates: DropDuplicates) -> None:
    """Their ids were taken when they failed, and higher ones since."""
    ids = [event_ids("local:/first@1", "0", sequence).as_py() for sequence in (9, 5, 7)]
    with closing(SqlSink(scene.url, drop_duplicates=drop_duplicates)) as sink:
        opened = sink.open(scene.group.partition("0"), 0)
        kept = [dead_letter(place, group=scene.group, properties={ID_PROPERTY: one}) for place, one in enumerate(ids)]
        deduplicated = opened.deduplicate(batch_of(kept))
        with opened.transaction(Checkpoint(opened.key, "offset-9", 9)) as transaction:
            transaction.dead_letter(kept)
            assert transaction.record_ids(opened, deduplicated)
    processor = scene.processor(drop_duplicates=drop_duplicates)
    on_event_rows(scene, processor)
    assert set(outcomes(scene.redrive(processor)).values()) == {"redriven"}
    assert [n for n, _ in scene.rows()] == [0, 1, 2]


def test_dead_letters_of_other_groups_are_not_its(scene: Scene) -> None:
    other = GroupKey(scene.group.namespace, "orders", "audit")
    scene.keep(dead_letter(1, group=other), *scene.dead_letters(2))
    processor = scene.processor()
    on_event_rows(scene, processor)
    assert outcomes(scene.redrive(processor)) == {"0/2": "redriven"}
    assert numbers(dead_letters_in(scene.url)) == [1]


def test_processor_without_a_sink_cannot_redrive(tmp_path: Path) -> None:
    processor = Processor(
        f"local:{tmp_path}/orders", "memory:", consumer_group="billing", starting_position=Position.earliest()
    )
    processor.on_batch(lambda batch: None)
    with pytest.raises(ConfigError, match="has no sink"):
        HandlerRedrive.of(processor)


def test_processor_without_a_handler_cannot_redrive(scene: Scene) -> None:
    with pytest.raises(ConfigError, match="has no handler"):
        HandlerRedrive.of(scene.processor())


def test_table_that_is_gone_ends_the_redrive_and_blames_no_dead_letter(scene: Scene) -> None:
    scene.keep(*scene.dead_letters(1))
    processor = scene.processor(table="missing")
    on_event_rows(scene, processor)
    with pytest.raises(Exception, match="missing") as raised:
        scene.redrive(processor)
    assert isinstance(raised.value, hubline.errors.SinkError | HandlerFailed)
    (left,) = dead_letters_in(scene.url)
    assert left.attempts == 3
