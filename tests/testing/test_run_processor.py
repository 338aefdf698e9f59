"""`run_processor` as users call it, beyond what docs/how-to/local/test-your-code.md shows."""

from __future__ import annotations

import asyncio

import pytest

import hubline
from hubline.dead_letters import DeadLetter
from hubline.errors import ConfigError, HandlerStalled
from hubline.model.events import Event, EventBatch
from hubline.processor import PartitionContext
from hubline.sinks import Transaction
from hubline.testing import run_processor


def processor_of(**options: object) -> hubline.Processor:
    """Of hubs and stores that are nowhere: to open one would fail."""
    return hubline.Processor(
        "local:/nowhere/raw",
        "postgresql://nobody@nowhere/none",
        consumer_group="tests",
        starting_position="latest",
        load_balancing=hubline.Fixed(1),
        **options,  # type: ignore[arg-type]
    )


def test_rows_of_a_sink_are_written_as_its_options_say() -> None:
    sink = hubline.SqlSink("postgresql://nobody@nowhere/none", table="store.last", upsert_key="device")
    processor = processor_of(sink=sink)

    @processor.on_batch
    def last(batch: EventBatch) -> list[dict[str, object]]:
        return [{"device": event.partition_key, "celsius": float(event.body)} for event in batch]

    def event(key: str, body: str) -> dict[str, str]:
        return {"body": body, "partitionKey": key}

    result = run_processor(processor, [event("a", "1"), event("b", "2"), event("a", "3")], partitions=3)
    assert sorted((row["device"], row["celsius"]) for row in result.rows) == [("a", 3.0), ("b", 2.0)]
    assert sum(sequence + 1 for sequence in result.checkpoints.values()) == 3
    assert run_processor(processor, []).rows == []  # each run begins with nothing


def test_a_failure_that_stops_the_partition_is_raised_and_the_processor_can_run_again() -> None:
    processor = processor_of()
    reported: list[Exception] = []
    processor.on_error(reported.append)

    @processor.on_event
    async def handle(event: Event) -> None:
        await asyncio.sleep(100)  # no time at all
        int(event.body)

    before = dict(vars(processor))
    with pytest.raises(ValueError, match="invalid literal"):
        run_processor(processor, ["1", "x", "2"])
    assert vars(processor) == before
    reported.clear()

    result = run_processor(processor, ["1", "2", "3"], partitions=2)
    assert result.checkpoints == {"0": 1, "1": 0}
    assert [type(error) for error in result.errors] == [HandlerStalled] * 3
    assert reported == result.errors


def test_dead_letters_of_a_handler_of_ones_own_are_kept() -> None:
    processor = processor_of(options=hubline.ProcessorOptions(on_failure="dead_letter"))
    stored: list[DeadLetter] = []
    processor.on_dead_letter(stored.append)
    processor.on_event(lambda event: int(event.body))

    result = run_processor(processor, ["1", "x"])
    assert [each.error_text for each in result.dead_letters] == ["invalid literal for int() with base 10: b'x'"]
    assert stored == result.dead_letters


def test_a_subclass_keeps_what_its_handlers_note() -> None:
    class Counting(hubline.Processor):
        count = 0

        def on_event(self, event: Event) -> None:  # type: ignore[override]
            self.count += 1

    processor = Counting("local:/nowhere/raw", "memory:", consumer_group="tests", starting_position="latest")
    run_processor(processor, ["1", "2"])
    run_processor(processor, ["3"])
    assert processor.count == 3


def test_a_handler_may_stop_its_processor_or_never_end() -> None:
    processor = processor_of()

    @processor.on_event
    async def handle(event: Event, partition: PartitionContext) -> None:
        if event.body == b"stop":
            stopping.append(asyncio.create_task(processor.stop()))
        elif event.body == b"hang":
            await asyncio.Event().wait()

    stopping: list[asyncio.Task[None]] = []
    assert run_processor(processor, ["1", "stop"]).checkpoints == {"0": 1}
    with pytest.raises(TimeoutError, match="did not handle all events within 20 virtual seconds"):
        run_processor(processor, ["1", "hang"], seconds=20)


def test_what_cannot_be_run_is_refused() -> None:
    processor = processor_of(sink=hubline.SqlSink("sqlite:///results.db", table="results"))

    @processor.on_event
    def handle(event: Event, tx: Transaction) -> None:
        tx.execute("DELETE FROM results")

    with pytest.raises(ConfigError, match="a handler that takes tx cannot be run here"):
        run_processor(processor, ["1"])

    async def within_a_loop() -> None:
        run_processor(processor, ["1"])

    with pytest.raises(ConfigError, match=r"run_processor runs event loops of its own\. Call it from a plain function"):
        asyncio.run(within_a_loop())
