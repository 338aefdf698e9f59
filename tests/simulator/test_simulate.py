"""Users simulate programs of their own: a bug is found, named by its seed, and replayed; a correct program passes."""

from __future__ import annotations

import asyncio
import gc
import importlib
import re
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hubline
from hubline.errors import ConfigError
from hubline.model.dead_letters import DeadLetter
from hubline.model.events import Event, EventBatch
from hubline.ports import CheckpointStore
from hubline.processor import PartitionContext
from hubline.testing import Instance, SimulatedWorld, SimulationFailed, simulate

PAGE = Path(__file__).parents[2] / "docs/how-to/local/find-bugs-with-the-simulator.md"
FILE = re.compile(r'^```python title="([a-z_]+)\.py"\n(.*?)^```$', re.DOTALL | re.MULTILINE)
SHOWN = re.compile(r"^```text\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def processor_of(instance: Instance, **options: Any) -> hubline.Processor:
    options = {"starting_position": "earliest", **options}
    return hubline.Processor(instance.hub, instance.store, consumer_group="tests", **options)


def storing(instance: Instance) -> hubline.Processor:
    """Stores every event by its place: to do it again changes nothing."""
    processor = processor_of(instance)

    @processor.on_batch
    async def handle(batch: EventBatch) -> None:
        places = {(event.partition, event.sequence_number): event.body for event in batch}
        await instance.call(lambda: instance.world.durable.update(places))

    return processor


def everything_is_stored(events: list[Event], world: SimulatedWorld) -> None:
    assert len(world.durable) == len(events)


def test_a_correct_program_passes_and_says_what_it_went_through() -> None:
    reports = simulate(range(10), build=storing, after=everything_is_stored)

    assert [report.seed for report in reports] == list(range(10))
    assert sum(report.repeats_count for report in reports) > 0
    faults = {kind for report in reports for kind in report.faults}
    assert {"crash", "pause", "stop", "store_outage", "store_clock_jump", "fail_after", "latency"} <= faults


def failing_at_first(instance: Instance) -> hubline.Processor:
    processor = processor_of(instance)
    is_first = True

    @processor.on_batch
    async def handle(_: EventBatch) -> None:
        nonlocal is_first
        if is_first:
            is_first = False
            raise RuntimeError("not yet")

    return processor


def test_what_was_simulated_is_let_go_with_the_errors_that_its_handlers_raised() -> None:
    stores: list[weakref.ref[CheckpointStore]] = []

    def build(instance: Instance) -> hubline.Processor:
        stores.append(weakref.ref(instance.store))
        return failing_at_first(instance)

    [report] = simulate([4], build=build)
    gc.collect()

    assert any("not yet" in line for line in report.trace)
    assert {store() for store in stores} == {None}


def checkpointing(instance: Instance, *, is_done_before: bool) -> hubline.Processor:
    """Checkpoints by hand, after its work or before it."""
    options = hubline.ProcessorOptions(checkpoint_policy=hubline.CheckpointPolicy.manual())
    processor = processor_of(instance, options=options)

    @processor.on_batch
    async def handle(batch: EventBatch, partition: PartitionContext) -> None:
        if not is_done_before:
            await partition.checkpoint()
        places = {(event.partition, event.sequence_number): event.body for event in batch}
        await instance.call(lambda: instance.world.durable.update(places))
        if is_done_before:
            await partition.checkpoint()

    return processor


def test_a_checkpoint_before_the_work_is_done_loses_events() -> None:
    def build(instance: Instance) -> hubline.Processor:
        return checkpointing(instance, is_done_before=False)

    with pytest.raises(SimulationFailed, match="assert len") as failed:
        simulate(build=build, after=everything_is_stored)

    seed = failed.value.seed
    assert f"seed {seed} failed" in str(failed.value)
    assert f"simulate(seeds=[{seed}], build=build, after=everything_is_stored, trace=True)" in str(failed.value)


def test_a_checkpoint_by_hand_counts_as_done_though_its_answer_is_lost() -> None:
    simulate(range(12), build=lambda instance: checkpointing(instance, is_done_before=True), after=everything_is_stored)


def test_an_assertion_in_a_handler_ends_the_seed_with_its_line() -> None:
    def build(instance: Instance) -> hubline.Processor:
        processor = processor_of(instance)

        @processor.on_event
        def handle(event: Event) -> None:
            assert event.sequence_number < 7

        return processor

    with pytest.raises(SimulationFailed) as failed:
        simulate(build=build)

    where, line, error, *_ = str(failed.value).splitlines()
    assert where.startswith(f'File "{__file__}", line ')
    assert line == "    assert event.sequence_number < 7"
    assert error.startswith("AssertionError")
    assert isinstance(failed.value.__cause__, AssertionError)


def test_a_handler_that_always_fails_is_named() -> None:
    def build(instance: Instance) -> hubline.Processor:
        processor = processor_of(instance)

        @processor.on_event
        async def handle(event: Event) -> None:
            if event.body == b"3":
                raise ValueError("no such customer")

        return processor

    with pytest.raises(
        SimulationFailed, match=r'(?s)never handled.*raise ValueError\("no such customer"\)\nValueError'
    ):
        simulate(build=build)


def test_dead_letters_count_as_handled() -> None:
    def build(instance: Instance) -> hubline.Processor:
        processor = processor_of(instance, options=hubline.ProcessorOptions(on_failure="dead_letter"))

        @processor.on_batch
        async def handle(batch: EventBatch) -> None:
            if b"3" in batch.bodies:
                raise ValueError

        @processor.on_dead_letter
        async def keep(dead_letter: DeadLetter) -> None:
            instance.world.durable[dead_letter.event.partition] = dead_letter.event.body

        return processor

    def the_third_is_kept(events: list[Event], world: SimulatedWorld) -> None:
        assert list(world.durable.values()) == [b"3"]

    simulate(range(5), build=build, after=the_third_is_kept)


def test_a_sink_has_every_event_once_or_as_a_dead_letter() -> None:
    def build(instance: Instance) -> hubline.Processor:
        sink = hubline.SqlSink("sqlite:///any.db", table="written", create_table=True)
        processor = processor_of(instance, sink=sink)

        @processor.on_event
        def handle(event: Event) -> dict[str, Any]:
            if event.body.endswith(b"13"):
                raise ValueError
            return {"partition": event.partition, "sequence": event.sequence_number}

        return processor

    def all_are_there(events: list[Event], world: SimulatedWorld) -> None:
        rows = world.database.execute("SELECT partition, sequence FROM written").fetchall()
        dead = world.database.execute("SELECT partition_id, sequence_number FROM hubline_dead_letter").fetchall()
        assert sorted(rows + dead) == sorted((event.partition, event.sequence_number) for event in events)
        assert dead

    simulate(range(4), build=build, after=all_are_there)


def with_tx(instance: Instance) -> hubline.Processor:
    processor = processor_of(instance, sink=hubline.SqlSink("sqlite:///any.db"))
    processor.on_batch(lambda batch, tx: None)
    return processor


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda instance: None, "build returned NoneType. Return the hubline.Processor"),
        (lambda instance: processor_of(instance, starting_position="latest"), "Write starting_position='earliest'"),
        (lambda instance: hubline.Processor(instance.hub, "memory:", consumer_group="a", starting_position="earliest"),
         "instance.store"),
        (with_tx, "a handler that takes tx"),
        (lambda instance: processor_of(instance, sink=hubline.SqlSink("postgresql://h/d")), "a sink on SQLite"),
        (processor_of, "the processor has no handler"),
    ],
)  # fmt: skip
def test_what_cannot_be_simulated_is_refused(build: Callable[[Instance], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        simulate([0], build=build)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"faults must be a list of join, .* not \['crsh'\]"):
        simulate(build=storing, faults=["crsh"])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match=r"seeds must be whole numbers, not 5. Write range\(5\), or \[5\]"):
        simulate(5, build=storing)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="build must be a function"):
        simulate(build=None)  # type: ignore[arg-type]

    async def call() -> None:
        simulate(build=storing)

    with pytest.raises(ConfigError, match="Call it from a plain function"):
        asyncio.run(call())


def outline(text: str) -> list[str]:
    """What the user's code said, that there is a seed, and how to replay it: without the numbers."""
    lines = re.sub(r"\d+", "#", text).splitlines()
    return [*lines[:5], lines[5].partition("with")[0], lines[6], lines[-1]]


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, str]]]:
    """The files of the page, in a folder from which they can be imported."""
    files = FILE.findall(PAGE.read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield files
    for name, _ in files:
        sys.modules.pop(name, None)


def test_the_page_finds_its_bug_shows_it_as_printed_replays_it_and_fixes_it(
    page: list[tuple[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (_, with_bug), (_, test), (_, fixed), (_, into_sink) = page
    (tmp_path / "payments.py").write_text(with_bug)
    (tmp_path / "test_payments.py").write_text(test)
    (tmp_path / "test_sink.py").write_text(into_sink)
    payments = importlib.import_module("test_payments")

    with pytest.raises(SimulationFailed) as failed:
        payments.test_payments()
    said = str(failed.value).replace(f"{tmp_path}/", "")
    # Which seed it is, and what happens in it, may change with every callback more or less in a processor.
    shown = SHOWN.findall(PAGE.read_text())[0].rstrip("\n")
    assert outline(said) == outline(shown)

    replay = said.rpartition("replay it alone: ")[2]
    with pytest.raises(SimulationFailed) as again:
        eval(replay, vars(payments))  # noqa: S307 - the page's
    assert str(again.value) == str(failed.value)
    assert capsys.readouterr().out.splitlines() == again.value.report.trace

    namespace: dict[str, Any] = {}
    exec(fixed, namespace)  # noqa: S102
    simulate(range(5), build=namespace["build"], after=payments.each_payment_counts_once)
    importlib.import_module("test_sink").test_sink()
