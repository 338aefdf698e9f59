"""The options that select dead letters, which all commands of ``hubline dlq`` share."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from hubline.adapters import open_hub
from hubline.addresses.names import validate_group_name, validate_partition_id
from hubline.addresses.values import parse_time
from hubline.cli.arguments import env_variable, option
from hubline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from hubline.dead_letters.repository import DeadLetterCount, DeadLetterRepository
    from hubline.model.dead_letters import DeadLetterSelection

STATES = ("waiting", "redriven", "discarded", "all")

SinkOption = Annotated[
    str,
    option(
        "--sink",
        "The database of the dead letters: sqlite:///PATH, postgresql://..., env:NAME or file:PATH.",
        metavar="SINK",
    ),
]
OfHubOption = Annotated[
    str | None,
    option("--hub", "Only dead letters of this hub. Missing bodies are read from it.", metavar="HUB"),
]
OfGroupOption = Annotated[str | None, option("--group", "Only dead letters of this consumer group.", metavar="GROUP")]
SinceOption = Annotated[
    str | None, option("--since", "Only failures since this time: 2026-01-31T12:00:00Z or -24h.", metavar="TIME")
]
UntilOption = Annotated[str | None, option("--until", "Only failures until this time.", metavar="TIME")]
ErrorTypeOption = Annotated[
    str | None, option("--error-type", "Only errors of this type, with or without its module.", metavar="TYPE")
]
ErrorTextOption = Annotated[
    str | None, option("--error-text", "Only errors whose message contains this text.", metavar="TEXT")
]
StateOption = Annotated[
    str, option("--state", f"Only dead letters in this state: {', '.join(STATES)}.", metavar="STATE")
]
IdsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID",
        envvar=env_variable("id"),
        help="Only these dead letters: PARTITION/SEQUENCE, or full IDs as `dlq list --json` prints them.",
    ),
]
DeleteOption = Annotated[bool, option("--delete", "Delete the dead letters instead of marking them.")]


@dataclass(frozen=True, slots=True)
class Flags:
    """The values of these options."""

    hub: str | None = None
    group: str | None = None
    partition: Sequence[str] | None = None
    since: str | None = None
    until: str | None = None
    error_type: str | None = None
    error_text: str | None = None
    state: str = "waiting"
    ids: Sequence[str] | None = None

    def choice(self) -> DeadLetterSelection:
        from hubline.dead_letters.dead_letter_ids import parse_dead_letter_ids
        from hubline.model.dead_letters import DeadLetterSelection, DeadLetterState

        if self.state not in STATES:
            raise ConfigError(
                f"--state must be {', '.join(STATES[:-1])} or {STATES[-1]}, not {ascii(self.state)[:40]}."
            )
        hub = None if self.hub is None else open_hub(self.hub)
        return DeadLetterSelection(
            namespace=None if hub is None else hub.namespace,
            hub=None if hub is None else hub.name,
            group=None if self.group is None else validate_group_name(self.group),
            partitions=tuple(validate_partition_id(each) for each in self.partition or ()),
            since=None if self.since is None else parse_time(self.since),
            until=None if self.until is None else parse_time(self.until),
            error_type=self.error_type,
            error_text=self.error_text,
            state=None if self.state == "all" else DeadLetterState(self.state),
            ids=parse_dead_letter_ids(self.ids or ()),
        )


@asynccontextmanager
async def using_dead_letters(sink: str) -> AsyncIterator[DeadLetterRepository]:
    """The dead letters of a database. The connection is closed at the end."""
    from hubline.dead_letters.repository import DeadLetterRepository

    repository = DeadLetterRepository(sink)
    try:
        yield repository
    finally:
        await repository.close()


def total(counts: Sequence[DeadLetterCount]) -> int:
    return sum(each.count for each in counts)
