"""Redriving: dead letters that wait are run or sent again in batches, oldest first in each partition.

Batches of a partition follow each other, each in a transaction of its own
(:mod:`hubline.sinks.sql_sink.redrive_transaction`). A redrive that comes to a partition while another one has it leaves
that partition alone.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from hubline.dead_letters.event_lookup import EventLookup
from hubline.dead_letters.repository import DeadLetterCount
from hubline.model.dead_letters import DeadLetter, DeadLetterSelection, DeadLetterState, Stage
from hubline.model.keys import PartitionKey
from hubline.sinks.sql_sink.redrive_transaction import MAX_BATCH_SIZE, Chunk, PartitionBusy, RedriveTransaction
from hubline.sinks.sql_sink.sink import SqlSink

Result = TypeVar("Result")


class Outcome(enum.StrEnum):
    """What became of a dead letter."""

    REDRIVEN = "redriven"
    FAILED = "failed"
    """It failed again, and waits with its new error."""
    MISSING = "missing"
    """Its body is not kept, and the hub does not have it any more. It waits as it was."""
    HELD = "held"
    """An earlier dead letter of its partition key still waits, and it was kept to follow that one. It waits as it
    was."""


@dataclass(frozen=True, slots=True)
class Redriven:
    """What became of one dead letter, and why."""

    dead_letter: DeadLetter
    outcome: Outcome
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Progress:
    """What one transaction did: the dead letters of a batch; or that another redrive has the partition
    (``is_busy``)."""

    key: PartitionKey
    dead_letters: Sequence[Redriven] = ()
    is_busy: bool = False

    @property
    def tried_count(self) -> int:
        """How many were run or sent. Those that could not be do not count: they would use up every limit forever."""
        return sum(each.outcome in (Outcome.REDRIVEN, Outcome.FAILED) for each in self.dead_letters)


class Work(Protocol):
    """What is done with dead letters: they are run by a handler, or sent to a hub."""

    async def __call__(self, dead_letters: Sequence[DeadLetter], transaction: RedriveTransaction) -> None:
        """Called once for every batch, with dead letters that have their bodies. Commits the transaction that settles
        them.

        Tells what failed by ``transaction.dead_letter``. What it raises undoes the batch, and ends the redrive.
        """
        ...


@dataclass(frozen=True, slots=True)
class Redrive:
    """A redrive: which dead letters, by what, and where the bodies come from that are not kept.

    ``removes`` takes the dead letters of what succeeded away; otherwise they are kept, marked as redriven.
    """

    sink: SqlSink
    selection: DeadLetterSelection
    work: Work
    bodies: EventLookup | None = None
    removes: bool = False
    max_batch_size: int = MAX_BATCH_SIZE

    async def run(self, counts: Sequence[DeadLetterCount], *, limit: int | None = None) -> AsyncIterator[Progress]:
        """Redrives what was counted, and nothing that came since; tries at most ``limit`` dead letters."""
        left = limit
        for key, last_sequence in partitions_of(counts).items():
            async for progress in self._run_partition(key, last_sequence, left):
                yield progress
                if left is not None:
                    left -= progress.tried_count

    async def _run_partition(self, key: PartitionKey, last_sequence: int, limit: int | None) -> AsyncIterator[Progress]:
        selection = replace(self.selection, state=DeadLetterState.WAITING)
        stuck_keys: set[str] = set()
        after, left = -1, limit
        while left is None or left > 0:
            max_count = self.max_batch_size if left is None else min(left, self.max_batch_size)
            chunk = Chunk(key, selection, after, last_sequence, max_count)
            try:
                dead_letters = await self._run_chunk(chunk, stuck_keys)
            except PartitionBusy:
                yield Progress(key, is_busy=True)
                return
            if not dead_letters:
                return
            progress = Progress(key, dead_letters)
            yield progress
            after = dead_letters[-1].dead_letter.event.sequence_number
            left = None if left is None else left - progress.tried_count

    async def _run_chunk(self, chunk: Chunk, stuck_keys: set[str]) -> list[Redriven]:
        """One transaction. ``stuck_keys`` are those of dead letters that still wait: others may have to stay behind
        them."""
        transaction = RedriveTransaction(self.sink.database, chunk, removes=self.removes)
        try:
            taken = await in_thread(transaction.take)
            ready, others = await self._sorted_out(chunk.key, taken, transaction, stuck_keys)
            transaction.leave(each.dead_letter for each in others)
            if ready:
                await self.work(ready, transaction)
            outcomes = {**_outcomes(transaction), **{_number(each.dead_letter): each for each in others}}
        finally:
            # Nothing, if it was committed.
            await in_thread(transaction.rollback)
        stuck_keys.update(
            each.dead_letter.event.partition_key
            for each in outcomes.values()
            if each.outcome is not Outcome.REDRIVEN and each.dead_letter.event.partition_key is not None
        )
        return [outcomes[_number(dead_letter)] for dead_letter in taken]

    async def _sorted_out(
        self, key: PartitionKey, taken: Sequence[DeadLetter], transaction: RedriveTransaction, stuck_keys: set[str]
    ) -> tuple[list[DeadLetter], list[Redriven]]:
        """Those that can be redriven, with their bodies; and the others, which stay."""
        fetched = await self._fetched(key, [dead_letter for dead_letter in taken if not dead_letter.is_body_kept])
        ready: list[DeadLetter] = []
        others: list[Redriven] = []
        stuck = set(stuck_keys)
        for dead_letter in taken:
            number, partition_key = _number(dead_letter), dead_letter.event.partition_key
            follows = dead_letter.stage == Stage.QUARANTINE
            if number in transaction.ahead:
                reason = "the checkpoint was moved back before it, so the processor processes its event again"
                others.append(Redriven(dead_letter, Outcome.HELD, reason))
            elif follows and (partition_key in stuck or number in transaction.behind):
                reason = f"an earlier dead letter of the key {partition_key!r} still waits"
                others.append(Redriven(dead_letter, Outcome.HELD, reason))
            elif dead_letter.is_body_kept:
                ready.append(dead_letter)
                continue
            elif isinstance(body := fetched[number], DeadLetter):
                ready.append(body)
                continue
            else:
                others.append(Redriven(dead_letter, Outcome.MISSING, body))
            if partition_key is not None:
                stuck.add(partition_key)
        return ready, others

    async def _fetched(self, key: PartitionKey, pointers: Sequence[DeadLetter]) -> dict[int, DeadLetter | str]:
        """The dead letters with their bodies, or why there is none, by sequence number."""
        if not pointers:
            return {}
        if self.bodies is None or not self.bodies.is_for(key):
            reason = f"its body is not kept, and no hub was given to read it from: add the hub of {key}"
            return {_number(dead_letter): reason for dead_letter in pointers}
        fetched = await self.bodies.fetch(pointers)
        return {**fetched.dead_letters, **fetched.missing}


async def in_thread(function: Callable[[], Result]) -> Result:
    """Calls what blocks, in a thread. Also when cancelled, returns only when that is over."""
    running = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


def partitions_of(counts: Sequence[DeadLetterCount]) -> dict[PartitionKey, int]:
    """The partitions that have dead letters waiting, and the newest dead letter of each."""
    found: dict[PartitionKey, int] = {}
    for each in counts:
        if each.state == DeadLetterState.WAITING:
            found[each.key] = max(each.last_sequence, found.get(each.key, -1))
    return found


def _outcomes(transaction: RedriveTransaction) -> dict[int, Redriven]:
    failed = {
        _number(dead_letter): Redriven(
            dead_letter, Outcome.FAILED, f"{dead_letter.error_type}: {dead_letter.error_text}"
        )
        for dead_letter in transaction.failed
    }
    done = {_number(dead_letter): Redriven(dead_letter, Outcome.REDRIVEN) for dead_letter in transaction.settled}
    held = {
        _number(dead_letter): Redriven(dead_letter, Outcome.HELD, "an earlier dead letter of its key failed again")
        for dead_letter in transaction.followers
    }
    return {**done, **held, **failed}


def _number(dead_letter: DeadLetter) -> int:
    return dead_letter.event.sequence_number
