"""Handlers: every way to write one works, and one that cannot be called is refused when it is registered."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any

import pyarrow as pa
import pytest

from hubline.checkpoint_stores.memory import MemoryStore
from hubline.errors import ConfigError, HandlerStalled, HublineError, SinkMissing
from hubline.model.dead_letters import DeadLetter
from hubline.model.events import Event, EventBatch
from hubline.model.keys import GroupKey
from hubline.model.ownership import Checkpoint
from hubline.model.positions import Position
from hubline.processor import (
    LeaseOptions,
    PartitionContext,
    Processor,
    ProcessorOptions,
    ReleaseReason,
    RetryPolicy,
)
from hubline.processor.handlers.matching import handler_of
from hubline.processor.handlers.thread import HandlerThread, NotDue
from hubline.sinks import Transaction
from hubline.testing.memory_hub import MemoryHub
from hubline.testing.simulation.virtual_processor import VirtualProcessor
from tests.support.scene import GROUP, LEASE, Scene, until, virtual


def made(hub: MemoryHub | None = None, cls: type[Processor] = Processor, **options: Any) -> Processor:
    return cls(
        hub or MemoryHub(1),
        MemoryStore(),
        consumer_group=GROUP,
        starting_position=Position.earliest(),
        options=ProcessorOptions(lease=LEASE, **options),
    )


async def run_until(processor: Processor, condition: Callable[[], object]) -> None:
    async with processor:
        await until(condition, seconds_max=30)


class TestSubclass:
    """Overrides instead of decorators, whose types differ: mypy takes them with an ignore."""

    class Counting(VirtualProcessor):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.happened: list[str] = []
            super().__init__(*args, **kwargs)

        async def on_batch(self, batch: EventBatch, partition: PartitionContext) -> None:  # type: ignore[override]
            self.happened.append(f"batch of {len(batch)} from {partition.partition_id}")

        async def on_assigned(self, partition: PartitionContext) -> None:  # type: ignore[override]
            self.happened.append(f"assigned {partition.partition_id}")

        def on_renewed(self, partition: PartitionContext) -> None:  # type: ignore[override]
            self.happened.append(f"renewed {partition.partition_id}")

        async def on_released(self, partition: PartitionContext, reason: ReleaseReason) -> None:  # type: ignore[override]
            self.happened.append(f"released {partition.partition_id} {reason}")

        def on_error(self, error: HublineError) -> None:  # type: ignore[override]
            self.happened.append(f"error {error}")

        async def on_dead_letter(self, dead_letter: DeadLetter) -> None:  # type: ignore[override]
            self.happened.append(f"dead letter {dead_letter.event.sequence_number}")

    @virtual
    async def test_overridden_handlers_are_called(self) -> None:
        hub = MemoryHub(1)
        hub.append("0", [b"a", b"b"])
        processor = self.Counting(
            hub,
            MemoryStore(now=asyncio.get_running_loop().time),
            consumer_group=GROUP,
            starting_position=Position.earliest(),
            options=ProcessorOptions(lease=LEASE),
        )

        async with processor:
            await until(lambda: any("renewed" in what for what in processor.happened))

        # Renewed as often as it takes: stopping renews once more.
        once = list(dict.fromkeys(processor.happened))
        assert once == ["assigned 0", "batch of 2 from 0", "renewed 0", "released 0 stopped"]

    @virtual
    async def test_a_subclass_may_override_some_and_decorate_others(self) -> None:
        class Handling(VirtualProcessor):
            async def on_batch(self, batch: EventBatch) -> None:  # type: ignore[override]
                handled.append(len(batch))

        handled: list[int] = []
        released: list[ReleaseReason] = []
        hub = MemoryHub(1)
        hub.append("0", [b"a"])
        processor = made(hub, Handling)

        @processor.on_released
        def let_go(partition: PartitionContext, reason: ReleaseReason) -> None:
            released.append(reason)

        await run_until(processor, lambda: handled)

        assert (handled, released) == ([1], [ReleaseReason.STOPPED])

    def test_an_override_that_cannot_be_called_is_refused(self) -> None:
        class Wrong(Processor):
            async def on_batch(self, batch: EventBatch, partition: PartitionContext, more: int) -> None: ...  # type: ignore[override]

        with pytest.raises(ConfigError, match="on_batch"):
            made(cls=Wrong)


class Callee:
    """Handlers of every kind, which note that they were called."""

    def __init__(self) -> None:
        self.seen: list[tuple[object, ...]] = []

    def plain(self, batch: EventBatch, partition: PartitionContext) -> None:
        self.seen.append((batch, partition))

    async def coroutine(self, batch: EventBatch, partition: PartitionContext) -> None:
        self.seen.append((batch, partition))

    async def one(self, batch: EventBatch) -> None:
        self.seen.append((batch,))

    async def anything(self, *arguments: object) -> None:
        self.seen.append(arguments)

    async def optional(self, batch: EventBatch, partition: PartitionContext | None = None, more: int = 0) -> None:
        self.seen.append((batch, partition))

    async def bound_first(self, name: str, batch: EventBatch) -> None:
        self.seen.append((batch,))

    def __call__(self, batch: EventBatch) -> None:
        self.seen.append((batch,))


class AsyncCallee(Callee):
    async def __call__(self, batch: EventBatch) -> None:  # type: ignore[override]
        self.seen.append((batch,))


def returns_a_coroutine(function: Callable[..., Any]) -> Callable[..., Any]:
    """As decorators of other libraries do: plain to look at, async to call."""

    @functools.wraps(function)
    def wrapper(*args: object) -> Any:
        return function(*args)

    return wrapper


class TestKinds:
    @pytest.mark.parametrize(
        ("handler", "arguments_count"),
        [
            (lambda callee: callee.plain, 2),
            (lambda callee: callee.coroutine, 2),
            (lambda callee: callee.one, 1),
            (lambda callee: callee.anything, 2),
            (lambda callee: callee.optional, 2),
            (lambda callee: callee, 1),
            (lambda callee: functools.partial(callee.bound_first, "name"), 1),
            (lambda callee: functools.partial(callee.plain), 2),
            (lambda callee: lambda batch: callee.seen.append((batch,)), 1),
            (lambda callee: lambda batch: callee.bound_first("name", batch), 1),
            (lambda callee: returns_a_coroutine(callee.coroutine), 2),
        ],
        ids=[
            "plain method",
            "async method",
            "one argument",
            "any arguments",
            "optional arguments",
            "callable object",
            "partial of async",
            "partial of plain",
            "lambda",
            "lambda that returns a coroutine",
            "wrapper that returns a coroutine",
        ],
    )
    def test_a_handler_of_this_kind_is_called(
        self, handler: Callable[[Callee], Callable[..., Any]], arguments_count: int
    ) -> None:
        self.check(Callee(), handler, arguments_count)

    @pytest.mark.parametrize("handler", [lambda callee: callee, functools.partial])
    def test_an_object_with_an_async_call_is_awaited(self, handler: Callable[[Callee], Callable[..., Any]]) -> None:
        self.check(AsyncCallee(), handler, 1)

    @staticmethod
    @virtual
    async def check(callee: Callee, handler: Callable[[Callee], Callable[..., Any]], arguments_count: int) -> None:
        hub = MemoryHub(1)
        hub.append("0", [b"a", b"b"])
        processor = made(hub, VirtualProcessor)
        processor.on_batch(handler(callee))

        await run_until(processor, lambda: callee.seen)

        batch, *rest = callee.seen[0]
        assert isinstance(batch, EventBatch)
        assert batch.bodies == [b"a", b"b"]
        assert len(rest) == arguments_count - 1
        assert all(isinstance(argument, PartitionContext) for argument in rest)

    def test_a_decorator_gives_the_function_back(self) -> None:
        processor = made()

        @processor.on_batch
        def handle(batch: EventBatch) -> int:
            return len(batch)

        assert handle(EventBatch.empty("0")) == 0


def wants_a_size(batch: EventBatch, size: int) -> None: ...


def wants_an_event(batch: Event) -> None: ...


def wants_a_partition_id(batch: EventBatch, partition: str) -> None: ...


class TestMatching:
    """Arguments go to parameters by name, else by annotation, else by position; what has a default keeps it."""

    @staticmethod
    def takes(name: str, function: Callable[..., Any]) -> Any:
        """What the function is given, with "A", "B" and "T" for the arguments in their order."""
        return handler_of(name, function).invoke("A", "B", "T")

    def test_a_parameter_with_a_default_of_its_own_keeps_it(self) -> None:
        seen: list[tuple[EventBatch, object]] = []

        @virtual
        async def play() -> None:
            hub = MemoryHub(1)
            hub.append("0", [b"a", b"b", b"c"])
            processor = made(hub, VirtualProcessor)

            @processor.on_batch
            async def handle(batch: EventBatch, size: int = 5) -> None:
                seen.append((batch, size))

            await run_until(processor, lambda: seen)

        play()
        assert [(len(batch), size) for batch, size in seen] == [(3, 5)]

    @pytest.mark.parametrize(
        ("function", "given"),
        [
            (lambda batch, size=5: (batch, size), ("A", 5)),
            (lambda batch, partition=None: (batch, partition), ("A", "B")),
            (lambda batch, size=5, partition=None: (batch, size, partition), ("A", 5, "B")),
            (lambda batch, *, partition: (batch, partition), ("A", "B")),
            (lambda batch, *, partition=None, size=5: (batch, partition, size), ("A", "B", 5)),
            (lambda *, batch: batch, "A"),
            (lambda partition, batch: (partition, batch), ("B", "A")),
            (lambda partition, events: (partition, events), ("B", "A")),
            (lambda events, where: (events, where), ("A", "B")),
            (lambda events, tx, where: (events, tx, where), ("A", "T", "B")),
            (lambda tx, batch: (tx, batch), ("T", "A")),
            (lambda batch, tx=None: (batch, tx), ("A", "T")),
            (lambda *arguments: arguments, ("A", "B")),
            (lambda batch, *rest, size=5: (batch, rest, size), ("A", ("B",), 5)),
            (lambda *rest, partition: (rest, partition), (("A",), "B")),
            (lambda batch, size=5, *rest: (batch, size, rest), ("A", 5, ())),
            (lambda batch, **more: (batch, more), ("A", {})),
        ],
    )
    def test_by_name(self, function: Callable[..., Any], given: object) -> None:
        assert self.takes("on_batch", function) == given

    def test_by_annotation(self) -> None:
        def context(events: EventBatch, where: PartitionContext | None = None, size: int = 5) -> object:
            return events, where, size

        def other_order(where: Annotated[PartitionContext, "where"], events: EventBatch) -> object:
            return where, events

        def for_type_checkers_alone(events: object, where: object = None) -> object:
            return events, where

        for_type_checkers_alone.__annotations__ = {
            "events": "nowhere.EventBatch",
            "where": "nowhere.PartitionContext | None",
        }

        def transaction(events: EventBatch, within: Transaction, more: Any) -> object:
            return events, within, more

        assert self.takes("on_batch", context) == ("A", "B", 5)
        assert self.takes("on_batch", other_order) == ("B", "A")
        assert self.takes("on_batch", for_type_checkers_alone) == ("A", "B")
        assert self.takes("on_batch", transaction) == ("A", "T", "B")

    def test_the_other_handlers_too(self) -> None:
        def released(partition: PartitionContext, reason: str) -> object:
            return partition, reason

        def failed(error: Exception, seen: int = 0) -> object:
            return error, seen

        assert self.takes("on_released", released) == ("A", "B")
        assert self.takes("on_error", failed) == ("A", 0)
        assert self.takes("on_error", lambda partition, problem: (partition, problem)) == ("B", "A")

    def test_the_rest_of_a_partial_function_is_given_by_name(self) -> None:
        def handle(batch: EventBatch, size: int, partition: PartitionContext) -> object:
            return batch, size, partition

        assert self.takes("on_batch", functools.partial(handle, size=5)) == ("A", 5, "B")

    @pytest.mark.parametrize(
        ("name", "function", "message"),
        [
            ("on_batch", wants_a_size, r"its partition \(PartitionContext\) as 'size', which is annotated as int"),
            ("on_batch", wants_an_event, r"its batch \(EventBatch\) as 'batch', which is annotated as .*Event"),
            ("on_batch", wants_a_partition_id, r"as 'partition', which is annotated as str"),
            ("on_batch", lambda batch, partion=None: None, r"no 'partion' \(did you mean partition\?\)"),
            ("on_batch", lambda partition: None, "takes no batch"),
            ("on_batch", lambda size=5: None, "takes no arguments"),
            ("on_released", lambda reason: None, "takes no partition"),
            ("on_batch", lambda batch, *, database: None, r"'database'.*keyword"),
            ("on_batch", lambda batch, size=5, partition=None, /: None, "positional-only"),
        ],
    )
    def test_what_cannot_be_matched_is_refused(self, name: str, function: Callable[..., Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            getattr(made(), name)(function)


class TestRefusal:
    @pytest.mark.parametrize(
        ("name", "handler", "message"),
        [
            ("on_batch", lambda: None, r"\(batch, partition\).*takes no arguments"),
            ("on_batch", lambda a, b, c: None, r"\(batch, partition\).*takes 3 arguments"),
            ("on_assigned", lambda a, b: None, r"\(partition\).*takes 2 arguments"),
            ("on_released", lambda a, b, c: None, r"\(partition, reason\)"),
            ("on_batch", "handle", "must be given a function, not 'handle'"),
            ("on_batch", None, "must be given a function, not None"),
        ],
    )
    def test_a_handler_that_cannot_be_called_is_refused(self, name: str, handler: Any, message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            getattr(made(), name)(handler)

    def test_a_generator_is_refused_since_its_body_would_never_run(self) -> None:
        def plain(batch: EventBatch) -> Any:
            yield batch

        async def coroutine(batch: EventBatch) -> Any:
            yield batch

        for handle in (plain, coroutine):
            with pytest.raises(ConfigError, match=r"generator.*yield"):
                made().on_batch(handle)

    def test_a_decorator_with_parentheses_is_explained(self) -> None:
        with pytest.raises(ConfigError, match=r"@processor\.on_batch, without parentheses"):
            made().on_batch()

    def test_a_second_handler_does_not_silently_replace_the_first(self) -> None:
        processor = made()
        processor.on_batch(lambda batch: None)

        with pytest.raises(ConfigError, match="on_batch already has a handler"):
            processor.on_batch(lambda batch: None)

    @virtual
    async def test_a_handler_that_comes_after_the_start_is_refused(self) -> None:
        async with Scene().processor().processor as processor:
            with pytest.raises(ConfigError, match="while the processor runs"):
                processor.on_renewed(lambda partition: None)


class TestPlainHandlers:
    """In real time: threads have no virtual one."""

    def test_a_partition_has_a_thread_and_gets_one_batch_at_a_time(self) -> None:
        running: dict[str, int] = {}
        overlaps: list[str] = []
        threads: dict[str, set[int]] = {"0": set(), "1": set()}
        counts = {"0": 0, "1": 0}
        both = threading.Barrier(2, timeout=20)

        def handle(batch: EventBatch) -> None:
            partition = batch.partition
            running[partition] = running.get(partition, 0) + 1
            if running[partition] > 1:
                overlaps.append(partition)
            threads[partition].add(threading.get_ident())
            if not counts[partition]:
                both.wait()  # passed only if the two partitions are handled at the same time
            counts[partition] += len(batch)
            running[partition] -= 1

        async def main() -> None:
            hub = MemoryHub(2)
            for partition in counts:
                hub.append(partition, [b"x"] * 20)
            processor = made(hub, max_batch_size=1)
            processor.on_batch(handle)
            await run_until(processor, lambda: counts == {"0": 20, "1": 20})

        asyncio.run(main())

        assert overlaps == []
        assert [len(idents) for idents in threads.values()] == [1, 1]
        assert threads["0"] != threads["1"]

    def test_a_plain_handler_may_ask_whether_its_partition_is_lost(self) -> None:
        answers: list[bool] = []

        async def main() -> None:
            hub = MemoryHub(1)
            hub.append("0", [b"x"])
            processor = made(hub)

            @processor.on_batch
            def handle(batch: EventBatch, partition: PartitionContext) -> None:
                answers.append(partition.is_lost)

            await run_until(processor, lambda: answers)

        asyncio.run(main())

        assert answers == [False]

    def test_a_plain_handler_does_not_block_the_event_loop(self) -> None:
        entered, leave = threading.Event(), threading.Event()

        async def main() -> None:
            hub = MemoryHub(1)
            hub.append("0", [b"x"])
            processor = made(hub)

            @processor.on_batch
            def handle(batch: EventBatch) -> None:
                entered.set()
                assert leave.wait(20)

            async with processor:
                await until(entered.is_set, seconds_max=20)
                await asyncio.sleep(0)  # the loop still turns
                leave.set()

        asyncio.run(main())

    def test_nothing_is_left_running(self) -> None:
        before = set(threading.enumerate())

        async def main() -> None:
            hub = MemoryHub(4)
            for partition in range(4):
                hub.append(str(partition), [b"x"])
            processor = made(hub)
            seen: list[str] = []
            processor.on_batch(lambda batch: seen.append(batch.partition))
            processor.on_error(lambda error: None)
            await run_until(processor, lambda: len(seen) == 4)

        asyncio.run(main())

        deadline = time.monotonic() + 20
        while left := set(threading.enumerate()) - before:
            assert time.monotonic() < deadline, f"threads are left running: {left}"
            next(iter(left)).join(1)


class Hanging:
    """A plain handler that hangs until it is let go, well after a stop has given up on it."""

    def __init__(self) -> None:
        self.entered, self.leave, self.left = threading.Event(), threading.Event(), threading.Event()

    def hang(self) -> None:
        self.entered.set()
        self.leave.wait(30)
        self.left.set()

    def let_go(self, thread_name: str) -> None:
        """Returns once the thread is at its end."""
        self.leave.set()
        for thread in threading.enumerate():
            if thread.name == thread_name:
                thread.join(20)
                assert not thread.is_alive()


class TestHungHandler:
    """In real time, and to the end of the program: what is left behind must not keep it."""

    def test_nothing_is_called_behind_it_once_the_stop_gave_up(self) -> None:
        hanging = Hanging()
        released: list[str] = []

        async def main() -> None:
            hub = MemoryHub(1)
            hub.append("0", [b"x"])
            processor = made(hub, stop_timeout_seconds=0.2)
            processor.on_batch(lambda batch: hanging.hang())
            processor.on_released(lambda partition: released.append(partition.partition_id))
            await run_until(processor, hanging.entered.is_set)
            assert [task.get_name() for task in asyncio.all_tasks() if "pump" in task.get_name()] == []

        asyncio.run(main())

        assert not hanging.left.is_set()
        hanging.let_go("hubline-0")
        assert released == []

    def test_a_batch_that_waits_for_another_handler_is_not_handled_after_the_stop_gave_up(self) -> None:
        hanging = Hanging()
        handled: list[int] = []
        errors: list[HublineError] = []

        async def main() -> None:
            hub = MemoryHub(1)
            lease = LeaseOptions(lease_seconds=10.0, load_balancing_interval_seconds=0.5, startup_delay_seconds=0.1)
            options = ProcessorOptions(lease=lease, stop_timeout_seconds=0.2, slow_handler_seconds=0.5)
            processor = Processor(
                hub, MemoryStore(), consumer_group=GROUP, starting_position=Position.earliest(), options=options
            )
            processor.on_batch(lambda batch: handled.append(len(batch)))
            processor.on_renewed(lambda partition: hanging.hang())
            processor.on_error(errors.append)
            async with processor:
                await until(hanging.entered.is_set, seconds_max=30)
                hub.append("0", [b"x"])
                await until(lambda: errors, seconds_max=30)

        asyncio.run(main())

        assert not hanging.left.is_set()
        hanging.let_go("hubline-0")
        assert handled == []
        assert isinstance(errors[0], HandlerStalled)
        assert "on_batch of partition 0 has been waiting" in str(errors[0])
        assert "while on_renewed runs in the same thread" in str(errors[0])

    def test_a_batch_that_waits_for_another_handler_is_not_handled_once_its_lease_is_over(self) -> None:
        async def main() -> None:
            thread = HandlerThread("hubline-0")
            hanging = Hanging()
            is_due = True
            handled: list[int] = []
            before = asyncio.create_task(thread.call(hanging.hang))
            handler = handler_of("on_batch", handled.append)
            after = asyncio.create_task(
                handler.run(functools.partial(handled.append, 1), thread=thread, name="on_batch", is_due=lambda: is_due)
            )
            await until(hanging.entered.is_set, seconds_max=30)

            is_due = False
            hanging.leave.set()

            with pytest.raises(NotDue):
                await after
            await before
            thread.shutdown()
            assert handled == []

        asyncio.run(main())


class Panic(BaseException):
    """As a library that is not written in Python raises it."""


class Textless(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


class TestWhatHandlersRaise:
    @pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
    @pytest.mark.parametrize(
        ("error", "says"),
        [
            (StopIteration("no next"), "StopIteration"),
            (asyncio.CancelledError(), "cancelled itself|CancelledError"),
            (GeneratorExit(), "the handler raised GeneratorExit"),
            (Panic("index out of bounds"), "the handler raised Panic: index out of bounds"),
            (
                BaseExceptionGroup("two", [Panic("one")]),
                r"the handler raised BaseExceptionGroup: two \(1 sub-exception\)",
            ),
            (Textless(), "the handler raised Textless, whose text cannot be made"),
        ],
        ids=lambda each: type(each).__name__ if isinstance(each, BaseException) else "",
    )
    def test_whatever_it_is_the_handler_is_retried_and_its_failure_reported(
        self, error: BaseException, says: str, is_async: bool
    ) -> None:
        calls: list[int] = []
        errors: list[HublineError] = []

        def fail_twice(batch: EventBatch) -> None:
            calls.append(len(batch))
            if len(calls) <= 2:
                raise error

        async def fail_twice_async(batch: EventBatch) -> None:
            fail_twice(batch)

        async def main() -> None:
            hub = MemoryHub(1)
            hub.append("0", [b"x"])
            quick = RetryPolicy(max_attempts=2, initial_backoff_seconds=0.01)
            processor = made(hub, handler_retry=quick, reconnect_backoff=quick)
            processor.on_error(errors.append)
            processor.on_batch(fail_twice_async if is_async else fail_twice)
            await run_until(processor, lambda: len(calls) > 2 and errors)

        asyncio.run(main())

        assert len(calls) == 3
        [failed] = errors
        assert re.search(f"in attempt 2: RuntimeError: .*({says})", str(failed))

    @pytest.mark.parametrize("error", [Panic("index out of bounds"), Textless()])
    @virtual
    async def test_its_event_becomes_a_dead_letter_that_tells_where_it_was_raised(self, error: BaseException) -> None:
        dead_letters: list[DeadLetter] = []
        hub = MemoryHub(1)
        hub.append("0", [b"x"])
        processor = made(hub, VirtualProcessor, on_failure="dead_letter")
        processor.on_dead_letter(dead_letters.append)

        @processor.on_batch
        async def fail(batch: EventBatch) -> None:
            raise error

        await run_until(processor, lambda: dead_letters)

        assert dead_letters[0].error_text.startswith(f"the handler raised {type(error).__name__}")
        assert dead_letters[0].traceback.endswith("in fail\n")

    @pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
    @pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
    def test_what_ends_a_program_ends_it(self, error: BaseException, is_async: bool) -> None:
        def leave(batch: EventBatch) -> None:
            raise error

        async def leave_async(batch: EventBatch) -> None:
            raise error

        hub = MemoryHub(1)
        hub.append("0", [b"x"])
        processor = made(hub)
        processor.on_batch(leave_async if is_async else leave)

        with pytest.raises(type(error)):
            processor.run()

    @pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
    @pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
    def test_what_ends_a_program_leaves_what_was_handled_checkpointed(
        self, error: BaseException, is_async: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        """In the partition of the handler that raised it, and in the others."""
        released: list[tuple[str, ReleaseReason]] = []
        other_went_on = threading.Event()

        def handle(batch: EventBatch) -> None:
            if (batch.partition, batch.first_sequence) == ("1", 3):
                other_went_on.set()
            if (batch.partition, batch.first_sequence) == ("0", 2):
                assert other_went_on.wait(30)
                raise error

        async def handle_async(batch: EventBatch) -> None:
            if (batch.partition, batch.first_sequence) == ("0", 2):
                await until(other_went_on.is_set, seconds_max=30)
            handle(batch)

        hub, store = MemoryHub(2), MemoryStore()
        for partition in ("0", "1"):
            hub.append(partition, [b"x"] * 4)
        options = ProcessorOptions(lease=LEASE, max_batch_size=1)
        processor = Processor(hub, store, consumer_group=GROUP, starting_position="earliest", options=options)
        processor.on_batch(handle_async if is_async else handle)
        processor.on_released(lambda partition, reason: released.append((partition.partition_id, reason)))

        with pytest.raises(type(error)):
            processor.run()

        checkpoints = asyncio.run(store.list_checkpoints(GroupKey(hub.namespace, hub.name, GROUP)))
        sequences = {each.key.partition: each.sequence_number for each in checkpoints}
        assert sequences["0"] == 1
        assert sequences["1"] in (2, 3)  # the last one was on its way
        assert sorted(released) == [("0", ReleaseReason.STOPPED), ("1", ReleaseReason.STOPPED)]
        error.__traceback__ = None  # it keeps the tasks
        del processor
        gc.collect()
        assert "never retrieved" not in caplog.text

    def test_what_ends_a_program_ends_it_where_the_partition_is_lost_before_the_last_checkpoint(self) -> None:
        class Hanging(MemoryStore):
            async def update_checkpoint(self, checkpoint: Checkpoint, *, epoch: int) -> None:
                (held,) = (await self.list_ownership(checkpoint.key.group_key)).ownerships
                await self.claim_ownership([replace(held, owner_id="another", epoch=held.epoch + 1)])
                await asyncio.sleep(1e9)

        hub = MemoryHub(1)
        hub.append("0", [b"x"] * 2)
        lease = LeaseOptions(lease_seconds=10.0, load_balancing_interval_seconds=0.5, startup_delay_seconds=0.1)
        options = ProcessorOptions(lease=lease, max_batch_size=1)
        processor = Processor(
            hub, Hanging(), consumer_group=GROUP, starting_position=Position.earliest(), options=options
        )

        @processor.on_batch
        def handle(batch: EventBatch) -> None:
            if batch.first_sequence == 1:
                sys.exit(3)

        # Else it would continue, as if nobody had asked it to end.
        stopping = threading.Timer(20, lambda: os.kill(os.getpid(), signal.SIGTERM))
        stopping.start()
        try:
            with pytest.raises(SystemExit):
                processor.run()
        finally:
            stopping.cancel()


class TestLog:
    """What a failing handler leaves in the log: its own file and line first, and none of hubline's frames."""

    @staticmethod
    def parse(text: str) -> int:
        return int(text)

    @pytest.mark.parametrize("is_async", [True, False], ids=["async", "plain"])
    def test_a_failure_is_logged_with_the_users_line(self, is_async: bool, caplog: pytest.LogCaptureFixture) -> None:
        def handle(batch: EventBatch) -> None:
            self.parse(batch[0].text())

        async def handle_async(batch: EventBatch) -> None:
            handle(batch)

        async def main() -> None:
            hub = MemoryHub(1)
            hub.append("0", [b"x"])
            processor = made(hub, handler_retry=RetryPolicy(max_attempts=2, initial_backoff_seconds=0.01))
            errors: list[HublineError] = []
            processor.on_batch(handle_async if is_async else handle)
            processor.on_error(errors.append)
            await run_until(processor, lambda: errors)

        with caplog.at_level(logging.WARNING, "hubline"):
            asyncio.run(main())

        line = self.parse.__code__.co_firstlineno + 2
        retried = next(text for text in caplog.messages if text.startswith("handler_retry"))
        assert f"at={__file__}:{line}" in retried
        failed = next(text for text in caplog.messages if text.startswith("error ")).splitlines()
        assert "HandlerFailed: on_batch failed for partition 0" in failed[0]
        assert failed[1] == f'  File "{__file__}", line {line}, in parse'
        assert failed[2] == f'    called by File "{__file__}", line {handle.__code__.co_firstlineno + 1}, in handle'
        assert failed[-1].endswith("frames of hubline not shown)")
        assert not any("src/hubline" in text for text in failed)

    @virtual
    async def test_so_is_a_failure_of_the_error_handler(self, caplog: pytest.LogCaptureFixture) -> None:
        hub = MemoryHub(1)
        hub.append("0", [b"x"])
        processor = made(hub, VirtualProcessor, handler_retry=RetryPolicy(max_attempts=1))
        errors: list[HublineError] = []

        @processor.on_batch
        async def handle(batch: EventBatch) -> None:
            raise ValueError("always")

        @processor.on_error
        async def report(error: HublineError) -> None:
            errors.append(error)
            self.parse("no number")

        with caplog.at_level(logging.ERROR, "hubline"):
            await run_until(processor, lambda: errors)

        (failed, *_) = (text.splitlines() for text in caplog.messages if text.startswith("on_error_failed"))
        assert failed[0] == "on_error_failed ValueError: invalid literal for int() with base 10: 'no number'"
        assert failed[1] == f'  File "{__file__}", line {self.parse.__code__.co_firstlineno + 2}, in parse'
        assert not any("src/hubline" in text for text in failed)


class TestErrorHandler:
    def test_one_that_hangs_does_not_hang_the_stop(self) -> None:
        leave = threading.Event()
        reported = threading.Event()

        def hang(error: HublineError) -> None:
            reported.set()
            leave.wait(60)

        async def main() -> None:
            hub = MemoryHub(1)
            hub.append("0", [b"x"])
            processor = made(hub, stop_timeout_seconds=0.2, handler_retry=RetryPolicy(max_attempts=1))
            processor.on_error(hang)

            @processor.on_batch
            async def fail(batch: EventBatch) -> None:
                raise ValueError("always")

            async with asyncio.timeout(30):
                await run_until(processor, reported.is_set)

        try:
            asyncio.run(main())
        finally:
            leave.set()

    @pytest.mark.parametrize("own", [RuntimeError("the pager is down"), Panic("the pager is down")])
    @virtual
    async def test_its_own_failure_is_logged_and_changes_nothing(
        self, own: BaseException, caplog: pytest.LogCaptureFixture
    ) -> None:
        scene = Scene()
        scene.append(1)
        processor = made(scene.hub, VirtualProcessor)
        attempts: list[int] = []

        @processor.on_batch
        async def handle(batch: EventBatch) -> None:
            attempts.append(len(batch))
            if len(attempts) <= 3:
                raise ValueError("not yet")

        @processor.on_error
        async def fail(error: HublineError) -> None:
            raise own

        with caplog.at_level(logging.ERROR, "hubline"):
            await run_until(processor, lambda: len(attempts) == 4)

        assert "on_error_failed" in caplog.text
        assert "the pager is down" in caplog.text


class TestRowsWithoutSink:
    """Nothing takes what a handler returns: were it ignored, the rows would be lost with a checkpoint after them."""

    @virtual
    @pytest.mark.parametrize("is_async", [True, False])
    @pytest.mark.parametrize("takes", ["on_event", "on_batch"])
    @pytest.mark.parametrize(
        "rows",
        [{"id": 1}, [{"id": 1}], pa.table({"id": [1]}), pa.record_batch({"id": [1]}), (each for each in list[int]())],
    )
    async def test_rows_stop_the_partition(self, rows: object, takes: str, is_async: bool) -> None:
        scene = Scene()
        scene.append(3)
        processor = scene.bare()
        errors: list[HublineError] = []
        processor.on_error(errors.append)

        async def handle_async(given: object) -> object:
            return rows

        getattr(processor, takes)(handle_async if is_async else lambda given: rows)
        async with processor:
            await until(lambda: errors)

        assert isinstance(errors[0], SinkMissing)
        assert errors[0].partition == "0"
        assert await scene.checkpoint() is None

    @virtual
    @pytest.mark.parametrize("takes", ["on_event", "on_batch"])
    async def test_anything_else_is_ignored(self, takes: str) -> None:
        scene = Scene()
        scene.append(3)
        processor = scene.bare()
        returned = iter([None, 1, "text", [], [1, 2], object()])
        getattr(processor, takes)(lambda given: next(returned, None))
        async with processor:
            await until(lambda: [each.handled_count for each in processor.partitions] == [3])
