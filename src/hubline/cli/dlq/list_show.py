"""``hubline dlq list`` and ``hubline dlq show``: show the dead letters of a sink."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from hubline.cli.arguments import JsonOption, PartitionsOption, env_variable, option
from hubline.cli.dlq.flags import (
    ErrorTextOption,
    ErrorTypeOption,
    Flags,
    OfGroupOption,
    OfHubOption,
    SinceOption,
    SinkOption,
    StateOption,
    UntilOption,
    using_dead_letters,
)
from hubline.cli.dlq.view import NONE_FOUND, dead_letter_data, described, listed
from hubline.cli.exit_codes import say
from hubline.cli.output import print_json, stdout_console
from hubline.cli.session import using_hub
from hubline.errors import ConfigError
from hubline.monitoring.lag import CLI_GROUP

if TYPE_CHECKING:
    from hubline.model.dead_letters import DeadLetter, DeadLetterId, DeadLetterSelection


def list_(
    sink: SinkOption,
    hub: OfHubOption = None,
    group: OfGroupOption = None,
    partition: PartitionsOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    error_type: ErrorTypeOption = None,
    error_text: ErrorTextOption = None,
    state: StateOption = "waiting",
    limit: Annotated[int, option("--limit", "Show at most N dead letters.", min=1, metavar="N")] = 100,
    after: Annotated[str | None, option("--after", "Start after this dead letter (full ID).", metavar="ID")] = None,
    json: JsonOption = False,
) -> None:
    """List dead letters in order of hub, group, partition and event.

    By default, the command lists the first 100 that are waiting. New dead letters do not change the order: use --after
    to continue where the last list ended.

    \b
    Examples:
      hubline dlq list --sink sqlite:///orders.db
      hubline dlq list --sink env:DATABASE --since -24h --error-type ValueError
      hubline dlq list --sink env:DATABASE --state all --json | jq .errorText
    """
    flags = Flags(hub, group, partition, since, until, error_type, error_text, state)
    dead_letters, are_more = asyncio.run(_list(sink, flags.choice(), after=_full_id(after), limit=limit))
    if json:
        for dead_letter in dead_letters:
            print_json(dead_letter_data(dead_letter, body=False))
    elif dead_letters:
        stdout_console().print(listed(dead_letters))
    if not dead_letters:
        say(NONE_FOUND if after is None else "there are no more dead letters")
    elif are_more:
        say(f"there are more. Add --after {dead_letter_data(dead_letters[-1], body=False)['id']}")


def show(
    id: Annotated[  # noqa: A002 (the argument's name)
        str,
        typer.Argument(
            metavar="ID",
            envvar=env_variable("id"),
            help="PARTITION/SEQUENCE, or the full ID that `dlq list --json` prints.",
        ),
    ],
    sink: SinkOption,
    hub: OfHubOption = None,
    group: OfGroupOption = None,
    json: JsonOption = False,
) -> None:
    """Show one dead letter in full: its error, traceback and event.

    If the sink does not keep the body, the command reads it from --hub, as long as the hub still has the event.

    \b
    Examples:
      hubline dlq show 3/1741 --sink sqlite:///orders.db
      hubline dlq show 3/1741 --sink env:DATABASE --hub env:HUB --json
    """
    found = asyncio.run(_find(sink, id, Flags(hub, group)))
    if json:
        print_json(dead_letter_data(found))
    else:
        for line in described(found):
            print(line)


async def _list(
    sink: str, choice: DeadLetterSelection, *, after: DeadLetterId | None, limit: int
) -> tuple[list[DeadLetter], bool]:
    """A page of dead letters, and whether there are more after it."""
    async with using_dead_letters(sink) as repository:
        dead_letters = await repository.page(choice, after=after, max_count=limit + 1, bodies=False)
        return dead_letters[:limit], len(dead_letters) > limit


def _full_id(text: str | None) -> DeadLetterId | None:
    from hubline.dead_letters.dead_letter_ids import parse_dead_letter_id

    if text is None:
        return None
    dead_letter_id = parse_dead_letter_id(text)
    if dead_letter_id.group is None:
        raise ConfigError(f"--after {dead_letter_id} is not a full ID. Copy it from hubline dlq list --json.")
    return dead_letter_id


async def _find(sink: str, text: str, flags: Flags) -> DeadLetter:
    from hubline.dead_letters.dead_letter_ids import parse_dead_letter_id

    async with using_dead_letters(sink) as repository:
        dead_letter = await repository.find(parse_dead_letter_id(text), flags.choice())
    if dead_letter.is_body_kept or flags.hub is None:
        return dead_letter
    return await _with_body(dead_letter, flags.hub)


async def _with_body(dead_letter: DeadLetter, address: str) -> DeadLetter:
    from hubline.dead_letters.event_lookup import EventLookup

    async with using_hub(address) as hub:
        fetched = await EventLookup(hub, CLI_GROUP).fetch([dead_letter])
    for reason in fetched.missing.values():
        say(f"hubline: {reason}")
    found = fetched.dead_letters.get(dead_letter.event.sequence_number)
    return dead_letter if found is None else found
