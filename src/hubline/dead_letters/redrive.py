"""Redriving: letters that wait are run or sent again, lot by lot, oldest first in each partition.

Lots of a partition follow each other, each in a transaction of its own (:mod:`.transaction`). A redrive that comes to a
partition while another one has it leaves that partition alone.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from hubline.dead_letters.event_lookup import fetch_bodies
from hubline.dead_letters.redrive_transaction import LETTERS_COUNT_MAX, Chunk, LetterTransaction, PartitionBusy
from hubline.dead_letters.repository import DeadLetterCount
from hubline.model.dead_letters import DeadLetter, DeadLetterSelection, DeadLetterState, Stage
from hubline.model.keys import PartitionKey
from hubline.ports import Hub
from hubline.sinks.sql_sink.sink import SqlSink

Result = TypeVar("Result")


class Outcome(enum.StrEnum):
    """What became of a letter."""

    REDRIVEN = "redriven"
    FAILED = "failed"
    """It failed again, and waits with its new error."""
    MISSING = "missing"
    """Its body is not kept, and the hub does not have it any more. It waits as it was."""
    HELD = "held"
    """An earlier letter of its partition key still waits, and it was kept to follow that one. It waits as it was."""


@dataclass(frozen=True, slots=True)
class Redriven:
    """What became of one letter, and why."""

    letter: DeadLetter
    outcome: Outcome
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """What one transaction did: the letters of a lot; or that another redrive has the partition (``is_busy``)."""

    key: PartitionKey
    letters: Sequence[Redriven] = ()
    is_busy: bool = False

    @property
    def tried_count(self) -> int:
        """How many were run or sent. Those that could not be do not count: they would use up every limit for ever."""
        return sum(each.outcome in (Outcome.REDRIVEN, Outcome.FAILED) for each in self.letters)


class Work(Protocol):
    """What is done with letters: they are run by a handler, or sent to a hub."""

    async def __call__(self, letters: Sequence[DeadLetter], transaction: LetterTransaction) -> None:
        """Called once for every lot, with letters that have their bodies. Commits the transaction that settles them.

        Tells what failed by ``transaction.dead_letter``. What it raises undoes the lot, and ends the redrive.
        """
        ...


@dataclass(frozen=True, slots=True)
class EventLookup:
    """Where bodies that are not kept are read: as which consumer group, which must not be one with processors."""

    hub: Hub
    group: str

    def are_of(self, key: PartitionKey) -> bool:
        return (self.hub.namespace, self.hub.name) == (key.namespace, key.hub)


@dataclass(frozen=True, slots=True)
class Redrive:
    """A redrive: which letters, by what, and where the bodies come from that are not kept.

    ``removes`` takes the letters of what succeeded away; otherwise they are kept, marked as redriven.
    """

    sink: SqlSink
    choice: DeadLetterSelection
    work: Work
    bodies: EventLookup | None = None
    removes: bool = False
    lot_count_max: int = LETTERS_COUNT_MAX

    async def run(self, counts: Sequence[DeadLetterCount], *, limit: int | None = None) -> AsyncIterator[Progress]:
        """Redrives what was counted, and nothing that came since; tries at most ``limit`` letters."""
        left = limit
        for key, last_sequence in partitions_of(counts).items():
            async for progress in self._run_partition(key, last_sequence, left):
                yield progress
                if left is not None:
                    left -= progress.tried_count

    async def _run_partition(self, key: PartitionKey, last_sequence: int, limit: int | None) -> AsyncIterator[Progress]:
        choice = replace(self.choice, state=DeadLetterState.WAITING)
        stuck_keys: set[str] = set()
        after, left = -1, limit
        while left is None or left > 0:
            max_count = self.lot_count_max if left is None else min(left, self.lot_count_max)
            lot = Chunk(key, choice, after, last_sequence, max_count)
            try:
                letters = await self._run_lot(lot, stuck_keys)
            except PartitionBusy:
                yield Progress(key, is_busy=True)
                return
            if not letters:
                return
            progress = Progress(key, letters)
            yield progress
            after = letters[-1].letter.event.sequence_number
            left = None if left is None else left - progress.tried_count

    async def _run_lot(self, lot: Chunk, stuck_keys: set[str]) -> list[Redriven]:
        """One transaction. ``stuck_keys`` are those of letters that still wait: others may have to stay behind them."""
        transaction = LetterTransaction(self.sink, lot, removes=self.removes)
        try:
            taken = await in_thread(transaction.take)
            ready, others = await self._sorted_out(lot.key, taken, transaction, stuck_keys)
            transaction.leave(each.letter for each in others)
            if ready:
                await self.work(ready, transaction)
            outcomes = {**_outcomes(transaction), **{_number(each.letter): each for each in others}}
        finally:
            # Nothing, if it was committed.
            await in_thread(transaction.rollback)
        stuck_keys.update(
            each.letter.event.partition_key
            for each in outcomes.values()
            if each.outcome is not Outcome.REDRIVEN and each.letter.event.partition_key is not None
        )
        return [outcomes[_number(letter)] for letter in taken]

    async def _sorted_out(
        self, key: PartitionKey, taken: Sequence[DeadLetter], transaction: LetterTransaction, stuck_keys: set[str]
    ) -> tuple[list[DeadLetter], list[Redriven]]:
        """Those that can be redriven, with their bodies; and the others, which stay."""
        fetched = await self._fetched(key, [letter for letter in taken if not letter.is_body_kept])
        ready: list[DeadLetter] = []
        others: list[Redriven] = []
        stuck = set(stuck_keys)
        for letter in taken:
            number, partition_key = _number(letter), letter.event.partition_key
            follows = letter.stage == Stage.QUARANTINE
            if number in transaction.ahead:
                reason = "the checkpoint was set back before it: its event comes again, and answers the letter"
                others.append(Redriven(letter, Outcome.HELD, reason))
            elif follows and (partition_key in stuck or number in transaction.behind):
                reason = f"an earlier letter of the key {partition_key!r} still waits"
                others.append(Redriven(letter, Outcome.HELD, reason))
            elif letter.is_body_kept:
                ready.append(letter)
                continue
            elif isinstance(body := fetched[number], DeadLetter):
                ready.append(body)
                continue
            else:
                others.append(Redriven(letter, Outcome.MISSING, body))
            if partition_key is not None:
                stuck.add(partition_key)
        return ready, others

    async def _fetched(self, key: PartitionKey, pointers: Sequence[DeadLetter]) -> dict[int, DeadLetter | str]:
        """The letters with their bodies, or why there is none, by sequence number."""
        if not pointers:
            return {}
        if self.bodies is None or not self.bodies.are_of(key):
            reason = f"its body is not kept, and no hub was given to read it from: add the hub of {key}"
            return {_number(letter): reason for letter in pointers}
        fetched = await fetch_bodies(self.bodies.hub, pointers, group=self.bodies.group)
        return {**fetched.letters, **fetched.missing}


async def in_thread(function: Callable[[], Result]) -> Result:
    """Calls what blocks, in a thread. Also when cancelled, returns only when that is over."""
    running = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


def partitions_of(counts: Sequence[DeadLetterCount]) -> dict[PartitionKey, int]:
    """The partitions that have letters waiting, and the newest letter of each."""
    found: dict[PartitionKey, int] = {}
    for each in counts:
        if each.state == DeadLetterState.WAITING:
            found[each.key] = max(each.last_sequence, found.get(each.key, -1))
    return found


def _outcomes(transaction: LetterTransaction) -> dict[int, Redriven]:
    failed = {
        _number(letter): Redriven(letter, Outcome.FAILED, f"{letter.error_type}: {letter.error_text}")
        for letter in transaction.failed
    }
    done = {_number(letter): Redriven(letter, Outcome.REDRIVEN) for letter in transaction.settled}
    held = {
        _number(letter): Redriven(letter, Outcome.HELD, "an earlier letter of its key failed again")
        for letter in transaction.followers
    }
    return {**done, **held, **failed}


def _number(letter: DeadLetter) -> int:
    return letter.event.sequence_number
