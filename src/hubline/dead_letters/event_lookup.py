"""Reads from the hub the events of dead letters whose bodies are not kept."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from hubline.errors import HublineError, HubUnavailable, PositionInvalid
from hubline.hubs.reconnecting_receiver import ReconnectingReceiver, ReconnectPolicy
from hubline.model.dead_letters import DeadLetter
from hubline.model.events import Event
from hubline.model.keys import PartitionKey
from hubline.model.positions import Position
from hubline.ports import Hub, Receiver
from hubline.retry import RetryPolicy

log = logging.getLogger("hubline.dead_letters")

READ_ON_COUNT_MAX: Final = 1_000
"""Events between two dead letters that are read and left aside: opening a reader again takes longer."""

WAIT_SECONDS_MAX: Final = 30.0
"""The hub has said that the events are there: what does not come within this time was lost on the way."""


def _note_retry(error: HublineError) -> None:
    log.warning("read_again %s", error)


_POLICY: Final = ReconnectPolicy(
    RetryPolicy(initial_backoff_seconds=0.5, max_backoff_seconds=5.0), _note_retry, outage_seconds=WAIT_SECONDS_MAX
)


@dataclass(frozen=True, slots=True)
class Fetched:
    """The dead letters with what the hub still had of them, and why it had nothing of the others."""

    dead_letters: Mapping[int, DeadLetter]
    missing: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class EventLookup:
    """Reads the events of dead letters whose bodies are not kept. Disturbs no other reader.

    Attributes:
        hub: The hub that they came from.
        group: The consumer group to read as. It must not be one with processors.
    """

    hub: Hub
    group: str

    def is_for(self, key: PartitionKey) -> bool:
        """Whether the events of a partition are read from this hub."""
        return (self.hub.namespace, self.hub.name) == (key.namespace, key.hub)

    async def fetch(self, dead_letters: Sequence[DeadLetter]) -> Fetched:
        """Reads the events of dead letters of one partition, by sequence number.

        An event counts only if it has the dead letter's offset and sequence number: a hub that was re-created has
        others.
        """
        found: dict[int, DeadLetter] = {}
        missing: dict[int, str] = {}
        reader = _Reader(self.hub, self.group)
        try:
            for dead_letter in sorted(dead_letters, key=lambda dead_letter: dead_letter.event.sequence_number):
                sequence = dead_letter.event.sequence_number
                try:
                    event = await reader.read(dead_letter.event)
                except PositionInvalid as error:
                    await reader.close()
                    missing[sequence] = f"the hub has forgotten the event: {error}"
                    continue
                if event is None:
                    missing[sequence] = f"hub {self.hub.name} has another event there: it was re-created since"
                else:
                    found[sequence] = replace(dead_letter, event=event, is_body_kept=True)
        finally:
            await reader.close()
        return Fetched(found, missing)


class _Reader:
    """Reads single events in ascending order; what lies between two that are close is read on, and left aside."""

    def __init__(self, hub: Hub, group: str) -> None:
        self._hub = hub
        self._group = group
        self._receiver: Receiver | None = None
        self._next_sequence = 0

    async def read(self, wanted: Event) -> Event | None:
        """The event as the hub has it; None if the hub has another one in its place."""
        if self._receiver is None or wanted.sequence_number - self._next_sequence > READ_ON_COUNT_MAX:
            await self._open(wanted)
        while self._next_sequence <= wanted.sequence_number:
            event = await self._last_of_next(wanted)
        is_same = (event.sequence_number, event.offset) == (wanted.sequence_number, wanted.offset)
        if not is_same:
            await self.close()
        return event if is_same else None

    async def close(self) -> None:
        if self._receiver is not None:
            receiver, self._receiver = self._receiver, None
            await receiver.close()

    async def _open(self, wanted: Event) -> None:
        await self.close()
        held = await self._hub.describe_partition(wanted.partition)
        if not held.begin_sequence <= wanted.sequence_number <= held.last_sequence:
            is_expired = wanted.sequence_number < held.begin_sequence
            raise PositionInvalid(
                f"partition {wanted.partition} of hub {self._hub.name} holds events {held.begin_sequence} to "
                f"{held.last_sequence}, but not event {wanted.sequence_number}, which expired or is of another "
                "hub. Discard its dead letter.",
                hub=self._hub.name,
                partition=wanted.partition,
                reason="expired" if is_expired else "beyond",
                begin_sequence=held.begin_sequence,
                last_sequence=held.last_sequence,
            )
        # By number, and not by offset: that the event there is the one in question is looked at when it has come.
        position = Position.sequence(wanted.sequence_number, inclusive=True)
        self._receiver = ReconnectingReceiver(
            self._hub, wanted.partition, group=self._group, position=position, policy=_POLICY
        )
        self._next_sequence = wanted.sequence_number

    async def _last_of_next(self, wanted: Event) -> Event:
        """The last of the events that come next, up to the wanted one."""
        assert self._receiver is not None  # noqa: S101 (opened before)
        max_count = wanted.sequence_number - self._next_sequence + 1
        batch = await self._receiver.receive(max_count=max_count, wait_seconds=WAIT_SECONDS_MAX)
        if not len(batch):
            raise HubUnavailable(
                f"partition {wanted.partition} of hub {self._hub.name} sent nothing from event "
                f"{self._next_sequence} on within {WAIT_SECONDS_MAX:g} s. Try again.",
                hub=self._hub.name,
                partition=wanted.partition,
            )
        self._next_sequence = batch.last_sequence + 1
        return batch[-1]
