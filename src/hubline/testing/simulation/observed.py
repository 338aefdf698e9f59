"""The handlers of a processor, with all that they are given and have done entered into the ledger."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from hubline.model.dead_letters import DeadLetter
from hubline.model.events import Event, EventBatch
from hubline.model.ownership import ReleaseReason
from hubline.ports import DeadLetterSink
from hubline.processor import PartitionContext
from hubline.processor.handlers.handler import HANDLER_ARGUMENTS, Handler
from hubline.testing.simulation.ledger import Ledger, Session
from hubline.tracebacks import text_of

Entry = Callable[..., None]
"""Takes the arguments of a handler."""


class Observer:
    """Looks over the shoulder of one processor. ``broken`` takes an assertion of a handler's that failed."""

    def __init__(self, process: str, ledger: Ledger, broken: Callable[[AssertionError], None]) -> None:
        self._process = process
        self._ledger = ledger
        self._broken = broken
        self._sessions: dict[str, Session] = {}

    def observe(self, handlers: dict[str, Handler]) -> None:
        """Puts itself around the handlers."""
        for name in ("on_batch", "on_event"):
            if name in handlers:
                handlers[name] = self._around(handlers[name], name, self._handling, self._handled)
        handlers["on_assigned"] = self._around(handlers.get("on_assigned"), "on_assigned", self._assigned, _nothing)
        handlers["on_released"] = self._around(handlers.get("on_released"), "on_released", self._released, _nothing)
        if keep := handlers.get("on_dead_letter"):
            handlers["on_dead_letter"] = self._around(keep, "on_dead_letter", _nothing, self._dead_lettered)

    def observed(self, dead_letters: DeadLetterSink) -> DeadLetterSink:
        """The same sink of dead letters, observed."""
        return _ObservedDeadLetters(dead_letters, self._dead_lettered)

    def _assigned(self, partition: PartitionContext) -> None:
        self._sessions[partition.partition_id] = self._ledger.session(
            self._process, partition.partition_id, partition.epoch, partition.initial_checkpoint
        )

    def _handling(self, given: EventBatch | Event, partition: PartitionContext, *_: object) -> None:
        if (ends := _ends(given)) is not None:
            self._ledger.handling(self._sessions[partition.partition_id], *ends)

    def _handled(self, given: EventBatch | Event, partition: PartitionContext, *_: object) -> None:
        if (ends := _ends(given)) is not None:
            self._ledger.handled(self._sessions[partition.partition_id], *ends)

    def _dead_lettered(self, dead_letter: DeadLetter, *_: object) -> None:
        event = dead_letter.event
        self._ledger.dead_lettered(self._sessions[event.partition], event.sequence_number)

    def _released(self, partition: PartitionContext, reason: ReleaseReason) -> None:
        self._ledger.note(f"{self._process} released {partition.partition_id} {reason}")

    def _around(self, handler: Handler | None, name: str, before: Entry, after: Entry) -> Handler:
        arguments_count = len(HANDLER_ARGUMENTS[name]) + (name in ("on_batch", "on_event"))  # and tx
        places = tuple(range(arguments_count))
        if handler is None:
            return Handler(_as_async(before), True, places)

        async def awaited(running: Awaitable[object], arguments: Sequence[Any]) -> object:
            try:
                returned = await running
            except Exception as error:
                self._failed(name, error)
                raise
            after(*arguments)
            return returned

        async def call_async(*arguments: Any) -> object:
            before(*arguments)
            return await awaited(handler.invoke(*arguments), arguments)

        def call(*arguments: Any) -> object:
            before(*arguments)
            try:
                returned = handler.invoke(*arguments)
            except Exception as error:
                self._failed(name, error)
                raise
            if inspect.isawaitable(returned):  # its work has not begun yet
                return awaited(returned, arguments)
            after(*arguments)
            return returned

        return Handler(call_async if handler.is_async else call, handler.is_async, places)

    def _failed(self, name: str, error: Exception) -> None:
        if isinstance(error, AssertionError):
            self._broken(error)
            return
        self._ledger.last_failure = error
        self._ledger.note(f"{self._process} {name} failed: {type(error).__name__}: {text_of(error)}")


class _ObservedDeadLetters:
    def __init__(self, dead_letters: DeadLetterSink, added: Callable[[DeadLetter], None]) -> None:
        self._dead_letters = dead_letters
        self._added = added

    async def add(self, dead_letters: Sequence[DeadLetter]) -> None:
        await self._dead_letters.add(dead_letters)
        for dead_letter in dead_letters:
            self._added(dead_letter)

    async def close(self) -> None:
        await self._dead_letters.close()


def _ends(given: EventBatch | Event) -> tuple[int, int] | None:
    """The first and the last event; None for a heartbeat."""
    if isinstance(given, Event):
        return given.sequence_number, given.sequence_number
    return (given.first_sequence, given.last_sequence) if len(given) else None


def _nothing(*_: object) -> None:
    return


def _as_async(entry: Entry) -> Callable[..., Awaitable[None]]:
    async def call(*arguments: object) -> None:
        entry(*arguments)

    return call
