"""Dead letters to a hub, for those without a database: each letter is an event that tells where it came from and why.

The body, the partition key and the properties are those of the event that failed; the rest stands in properties whose
names begin with :data:`LETTER_PREFIX`. Any client can read them; `DeadLetterHub.read`
makes a dead letter of such an event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from hubline.errors import ConfigError, EventTooLarge
from hubline.model.dead_letters import DeadLetter, DeadLetterState
from hubline.model.events import Event, new_events
from hubline.model.keys import PartitionKey
from hubline.ports import Hub, Sender
from hubline.sql.dead_letter_table import storable

LETTER_PREFIX: Final = "hubline-letter-"

ERROR_TEXT_LENGTH_LEAST: Final = 200
"""What is left of an error's text where a letter is too large for the hub: enough to know it again."""


class DeadLetterHub:
    """Keeps dead letters in a hub. Letters are added at least once; one that is there twice has the same origin twice.

    A letter that is too large for the hub goes without its traceback, then without its body: the hub that the event
    came from may have it.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._sender: Sender | None = None
        self._opening = asyncio.Lock()

    async def add(self, letters: Sequence[DeadLetter]) -> None:
        """Returns once the letters are durable. Raises HubUnavailable to try again; some may be there twice then."""
        sender = await self._opened()
        pending = list(letters)
        while pending:
            try:
                await sender.send(new_events(_outgoing(letter) for letter in pending))
            except EventTooLarge as error:
                pending[error.index] = _smaller(pending[error.index], error)
            else:
                return

    @staticmethod
    def read(event: Event) -> DeadLetter:
        """Returns the dead letter that an event of this hub holds.

        Args:
            event: An event of a hub that keeps dead letters, as any reader receives it.

        Raises:
            ConfigError: The event is not a dead letter.

        Example:
            dead_letter = DeadLetterHub.read(event)
            print(dead_letter.error_type, dead_letter.event.text())
        """
        told = {
            name.removeprefix(LETTER_PREFIX): value
            for name, value in event.properties.items()
            if name.startswith(LETTER_PREFIX)
        }
        where = f"event {event.sequence_number} of partition {event.partition}"
        try:
            key = PartitionKey(told["namespace"], told["hub"], told["group"], told["partition"])
            return DeadLetter(
                key,
                Event(
                    event.body,
                    key.partition,
                    told["offset"],
                    int(told["sequence"]),
                    datetime.fromisoformat(told["enqueued"]),
                    event.partition_key,
                    {name: value for name, value in event.properties.items() if not name.startswith(LETTER_PREFIX)},
                ),
                error_type=told["error-type"],
                error_text=told["error-text"],
                traceback=told["traceback"],
                attempts=int(told["attempts"]),
                stage=told["stage"],
                state=DeadLetterState.WAITING,
                failed_at=datetime.fromisoformat(told["failed"]),
                is_body_kept=told["body"] == "kept",
            )
        except KeyError as error:
            raise ConfigError(
                f"{where} is not a dead letter: it has no property {LETTER_PREFIX}{error.args[0]}"
            ) from None
        except ValueError as error:
            raise ConfigError(f"{where} is not a dead letter that reads back: {error}") from None

    async def close(self) -> None:
        """Closes what was opened here; the hub is its owner's to close."""
        if self._sender is not None:
            await self._sender.close()

    async def _opened(self) -> Sender:
        async with self._opening:
            if self._sender is None:
                self._sender = await self._hub.open_sender()
        return self._sender


def _outgoing(letter: DeadLetter) -> Mapping[str, object]:
    properties = letter.event.properties if letter.is_body_kept else {}
    return {
        "body": letter.event.body if letter.is_body_kept else b"",
        "partitionKey": letter.event.partition_key,
        "properties": {**_without_origin(properties.items()), **_origin(letter)},
    }


def _origin(letter: DeadLetter) -> dict[str, str]:
    key, event = letter.key, letter.event
    told = {
        "namespace": key.namespace,
        "hub": key.hub,
        "group": key.group,
        "partition": key.partition,
        "sequence": str(event.sequence_number),
        "offset": event.offset,
        "enqueued": event.enqueued_time.isoformat(),
        "stage": letter.stage,
        "error-type": letter.error_type,
        "error-text": letter.error_text,
        "traceback": letter.traceback,
        "attempts": str(letter.attempts),
        "failed": letter.failed_at.isoformat(),
        "body": "kept" if letter.is_body_kept else "left out",
    }
    return {f"{LETTER_PREFIX}{name}": storable(value) for name, value in told.items()}


def _without_origin(properties: Iterable[tuple[str, str]]) -> dict[str, str]:
    """A letter of a letter tells its own origin: the first hub of dead letters."""
    return {name: value for name, value in properties if not name.startswith(LETTER_PREFIX)}


def _smaller(letter: DeadLetter, error: EventTooLarge) -> DeadLetter:
    """The letter with less in it: each time something else is left out, and at last there is nothing more to."""
    if letter.traceback:
        return replace(letter, traceback="", error_text=letter.error_text[:ERROR_TEXT_LENGTH_LEAST])
    if letter.is_body_kept:
        return replace(letter, is_body_kept=False)
    raise error
