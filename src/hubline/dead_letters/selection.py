"""Which dead letters are meant: by hub, group, partition, time, error and state, or by their ids."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Self

from hubline.addresses.names import validate_partition_id
from hubline.errors import ConfigError
from hubline.model.dead_letters import DeadLetter, LetterState
from hubline.model.keys import GroupKey

_SEQUENCE = re.compile(r"[0-9]{1,19}")
_SEQUENCE_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LetterId:
    """A letter by its key: ``NAMESPACE/HUB/GROUP/PARTITION/SEQUENCE``, or ``PARTITION/SEQUENCE`` of any group."""

    group: GroupKey | None
    partition: str
    sequence_number: int

    @classmethod
    def of(cls, letter: DeadLetter) -> Self:
        return cls(letter.key.group_key, letter.key.partition, letter.event.sequence_number)

    @classmethod
    def parse(cls, text: str) -> Self:
        # From the right: the namespace of an embedded hub is a path, and has slashes of its own.
        *group, partition, sequence = text.rsplit("/", 4) if text.count("/") > 1 else ("", *text.partition("/")[::2])
        group = [part for part in group if part]
        if len(group) not in (0, 3) or not _SEQUENCE.fullmatch(sequence) or int(sequence) > _SEQUENCE_MAX:
            raise ConfigError(
                f"{ascii(text)[:80]} is no letter: write PARTITION/SEQUENCE, as in 0/17, or the whole id that "
                "hubline dlq list --json prints"
            )
        return cls(GroupKey(*group) if group else None, validate_partition_id(partition), int(sequence))

    def __str__(self) -> str:
        own = f"{self.partition}/{self.sequence_number}"
        return own if self.group is None else f"{self.group}/{own}"


@dataclass(frozen=True, slots=True)
class LetterChoice:
    """Which letters are meant; what is left out does not matter. Times are those of the last failure.

    ``error_type`` is a type's name, with its module or without; ``error_text`` is part of the message. A ``state`` of
    None stands for every state.
    """

    namespace: str | None = None
    hub: str | None = None
    group: str | None = None
    partitions: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    error_type: str | None = None
    error_text: str | None = None
    state: LetterState | None = LetterState.WAITING
    ids: tuple[LetterId, ...] = ()

    def __post_init__(self) -> None:
        for name, time in (("since", self.since), ("until", self.until)):
            if time is not None and time.tzinfo is None:
                raise ConfigError(f"{name} needs a time zone, for instance datetime.now(UTC)")
        if self.since is not None and self.until is not None and self.since > self.until:
            raise ConfigError("since is later than until: no letter can be between them")


def parse_ids(texts: Iterable[str]) -> tuple[LetterId, ...]:
    return tuple(LetterId.parse(text) for text in texts)
