"""Dead letters to a hub, for those without a database: each dead letter is an event that tells where it came from and
why.

The body, the partition key and the properties are those of the event that failed; the rest stands in properties whose
names begin with :data:`DEAD_LETTER_PREFIX`. Any client can read them; `DeadLetterHub.read`
makes a dead letter of such an event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Final

from hubline.addresses.option_checks import checked
from hubline.addresses.option_kinds import Meant
from hubline.errors import ConfigError, EventTooLarge
from hubline.model.dead_letters import DeadLetter, DeadLetterState
from hubline.model.events import Event, new_events
from hubline.model.keys import PartitionKey
from hubline.ports import Hub, Sender
from hubline.sinks.meant import meant_hub
from hubline.sql.dead_letter_table import storable

DEAD_LETTER_PREFIX: Final = "hubline-letter-"
TRACEBACK_PROPERTY: Final = f"{DEAD_LETTER_PREFIX}traceback"

ERROR_TEXT_LENGTH_LEAST: Final = 200
"""What is left of an error's text where a dead letter is too large for the hub: enough to recognize it."""


class DeadLetterHub:
    """Keep dead letters as events of a hub. Use it for `Processor(dead_letters=...)` where there is no SQL sink.

    Each dead letter is added at least once. After a crash one may be there twice, with the same source event. One that
    is too large for the hub is kept without its traceback, then without its body.

    Args:
        hub: An open hub, as `hubline.open_hub` gives it. It stays open.

    Raises:
        ConfigError: It is not a hub.

    Example:
        dead_letters = DeadLetterHub(hubline.open_hub("local:./data/dead"))
    """

    @checked
    def __init__(self, hub: Annotated[Hub, Meant(meant_hub)]) -> None:
        self._hub = hub
        self._sender: Sender | None = None
        self._opening = asyncio.Lock()

    async def add(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Add dead letters, and return once the hub has kept them.

        Args:
            dead_letters: The dead letters.

        Raises:
            HubUnavailable: The hub could not be reached. Try again; some may then be there twice.
        """
        sender = await self._opened()
        pending = list(dead_letters)
        while pending:
            try:
                await sender.send(new_events(_outgoing(dead_letter) for dead_letter in pending))
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
        origin = {
            name.removeprefix(DEAD_LETTER_PREFIX): value
            for name, value in event.properties.items()
            if name.startswith(DEAD_LETTER_PREFIX)
        }
        where = f"event {event.sequence_number} of partition {event.partition}"
        try:
            key = PartitionKey(origin["namespace"], origin["hub"], origin["group"], origin["partition"])
            return DeadLetter(
                key,
                Event(
                    event.body,
                    key.partition,
                    origin["offset"],
                    int(origin["sequence"]),
                    datetime.fromisoformat(origin["enqueued"]),
                    event.partition_key,
                    {
                        name: value
                        for name, value in event.properties.items()
                        if not name.startswith(DEAD_LETTER_PREFIX)
                    },
                ),
                error_type=origin["error-type"],
                error_text=origin["error-text"],
                traceback=origin["traceback"],
                attempts=int(origin["attempts"]),
                stage=origin["stage"],
                state=DeadLetterState.WAITING,
                failed_at=datetime.fromisoformat(origin["failed"]),
                is_body_kept=origin["body"] == "kept",
            )
        except KeyError as error:
            raise ConfigError(
                f"{where} is not a dead letter, because it has no property {DEAD_LETTER_PREFIX}{error.args[0]}. "
                "Use a hub for dead letters only."
            ) from None
        except ValueError as error:
            raise ConfigError(
                f"{where} is a dead letter that cannot be read ({error}). Use a hub for dead letters only, to "
                "which only hubline writes."
            ) from None

    async def close(self) -> None:
        """Closes what was opened here; the hub is its owner's to close."""
        if self._sender is not None:
            await self._sender.close()

    async def _opened(self) -> Sender:
        async with self._opening:
            if self._sender is None:
                self._sender = await self._hub.open_sender()
        return self._sender


def _outgoing(dead_letter: DeadLetter) -> Mapping[str, object]:
    properties = dead_letter.event.properties if dead_letter.is_body_kept else {}
    return {
        "body": dead_letter.event.body if dead_letter.is_body_kept else b"",
        "partitionKey": dead_letter.event.partition_key,
        "properties": {**_without_origin(properties.items()), **_origin(dead_letter)},
    }


def _origin(dead_letter: DeadLetter) -> dict[str, str]:
    key, event = dead_letter.key, dead_letter.event
    origin = {
        "namespace": key.namespace,
        "hub": key.hub,
        "group": key.group,
        "partition": key.partition,
        "sequence": str(event.sequence_number),
        "offset": event.offset,
        "enqueued": event.enqueued_time.isoformat(),
        "stage": dead_letter.stage,
        "error-type": dead_letter.error_type,
        "error-text": dead_letter.error_text,
        "traceback": dead_letter.traceback,
        "attempts": str(dead_letter.attempts),
        "failed": dead_letter.failed_at.isoformat(),
        "body": "kept" if dead_letter.is_body_kept else "left out",
    }
    return {f"{DEAD_LETTER_PREFIX}{name}": storable(value) for name, value in origin.items()}


def _without_origin(properties: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The dead letter of a dead letter has its own origin: the first hub of dead letters."""
    return {name: value for name, value in properties if not name.startswith(DEAD_LETTER_PREFIX)}


def _smaller(dead_letter: DeadLetter, error: EventTooLarge) -> DeadLetter:
    """The dead letter with less in it: each time something else is left out, and at last there is nothing more to."""
    if dead_letter.traceback:
        return replace(dead_letter, traceback="", error_text=dead_letter.error_text[:ERROR_TEXT_LENGTH_LEAST])
    if dead_letter.is_body_kept:
        return replace(dead_letter, is_body_kept=False)
    raise error
