"""A dead letter: an event that failed, with its error."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Self

from hubline.errors import ConfigError
from hubline.model.events import Event
from hubline.model.keys import GroupKey, PartitionKey
from hubline.tracebacks import frames_of, text_of, type_of


class DeadLetterState(enum.StrEnum):
    """What became of a dead letter."""

    WAITING = "waiting"
    """Nothing yet: somebody has to look."""
    REDRIVEN = "redriven"
    """Its event was handled after all, or sent to a hub again."""
    DISCARDED = "discarded"
    """Somebody decided that it is not needed."""


class Stage(enum.StrEnum):
    """Where an event failed."""

    HANDLER = "handler"
    """Its handler raised."""
    SINK = "sink"
    """The database refused what its handler made of it."""
    QUERY = "query"
    """A Spark query found it wrong."""
    QUARANTINE = "quarantine"
    """An earlier event of its partition key failed, and order per key was asked for."""


ERROR_TEXT_LENGTH_MAX = 4_000
TRACEBACK_LENGTH_MAX = 16_000
"""A dead letter says what went wrong; the whole of a runaway message or recursion would say no more."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that could not be processed, with its error. `on_dead_letter` gets it; `of` makes one.

    Attributes:
        key: The partition, with its hub and consumer group.
        event: The event. Without its body and properties, if `is_body_kept` is False.
        error_type: The name of the exception's class.
        error_text: The text of the exception, at most 4,000 characters.
        traceback: Files, lines and functions, without values. At most 16,000 characters.
        attempts: How often the handler was called with it.
        stage: Where it failed: `"handler"`, `"sink"`, `"query"` or `"quarantine"`.
        state: `"waiting"`, `"redriven"` or `"discarded"`.
        failed_at: When it failed, by the processor's clock; once it is stored, by the database's.
        is_body_kept: Whether the event is whole. If not, the hub that it came from may still have it.
    """

    key: PartitionKey
    event: Event
    error_type: str
    error_text: str
    traceback: str
    attempts: int
    stage: str = Stage.HANDLER
    state: DeadLetterState = DeadLetterState.WAITING
    failed_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    is_body_kept: bool = True

    @classmethod
    def of(
        cls, key: PartitionKey, event: Event, error: BaseException, *, attempts: int, stage: str = Stage.HANDLER
    ) -> DeadLetter:
        """Make the dead letter of an event that failed with an exception.

        The traceback names files, lines and functions. It shows no values, which may be secret.

        Args:
            key: The partition, with its hub and consumer group.
            event: The event.
            error: The exception.
            attempts: How often the handler was called with it.
            stage: Where it failed. Default: `"handler"`.
        """
        return cls(
            key,
            event,
            error_type=type_of(error),
            error_text=_bounded(text_of(error), ERROR_TEXT_LENGTH_MAX),
            traceback=_bounded("".join(f"  {frame}\n" for frame in frames_of(error)), TRACEBACK_LENGTH_MAX),
            attempts=attempts,
            stage=stage,
        )


@dataclass(frozen=True, slots=True)
class DeadLetterId:
    """The key of a dead letter. `str()` gives `NAMESPACE/HUB/GROUP/PARTITION/SEQUENCE`.

    Attributes:
        group: The consumer group and its hub; None stands for any.
        partition: The partition id.
        sequence_number: The sequence number of the event.
    """

    group: GroupKey | None
    partition: str
    sequence_number: int

    @classmethod
    def of(cls, dead_letter: DeadLetter) -> Self:
        """Returns the id of a dead letter."""
        return cls(dead_letter.key.group_key, dead_letter.key.partition, dead_letter.event.sequence_number)

    def __str__(self) -> str:
        own = f"{self.partition}/{self.sequence_number}"
        return own if self.group is None else f"{self.group}/{own}"


@dataclass(frozen=True, slots=True)
class DeadLetterSelection:
    """Which dead letters are meant. By default, all that wait.

    Attributes:
        namespace: The namespace of their hub.
        hub: The name of their hub.
        group: Their consumer group.
        partitions: Their partitions; empty for all.
        since: The earliest time of the last failure.
        until: The latest time of the last failure.
        error_type: The name of the exception's type, with its module or without.
        error_text: A part of the error's message, in upper or lower case.
        state: Their state; None for every state.
        ids: Their ids; empty for all.
    """

    namespace: str | None = None
    hub: str | None = None
    group: str | None = None
    partitions: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    error_type: str | None = None
    error_text: str | None = None
    state: DeadLetterState | None = DeadLetterState.WAITING
    ids: tuple[DeadLetterId, ...] = ()

    def __post_init__(self) -> None:
        for name, time in (("since", self.since), ("until", self.until)):
            if time is not None and time.tzinfo is None:
                raise ConfigError(f"{name} has no time zone. Give one, such as datetime.now(UTC).")
        if self.since is not None and self.until is not None and self.since > self.until:
            raise ConfigError("since is later than until, so no dead letter can be between them. Exchange them.")


def _bounded(text: str, length_max: int) -> str:
    """The text, without its middle where it is too long: the first and the last words of an error tell most."""
    if len(text) <= length_max:
        return text
    half = length_max // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters ...\n{text[-half:]}"
