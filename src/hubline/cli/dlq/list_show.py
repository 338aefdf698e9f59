"""``hubline dlq ...``: the dead letters of a sink, looked at, exported, discarded and redriven."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from hubline.cli.arguments import JsonOption, PartitionsOption, env_twin, option
from hubline.cli.dlq import discard as discarding
from hubline.cli.dlq import export as exporting
from hubline.cli.dlq import redrive as redriving
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
    using_shelf,
)
from hubline.cli.dlq.view import described, letter_data, listed
from hubline.cli.exit_codes import say
from hubline.cli.output import print_json, stdout_console
from hubline.cli.session import using_hub
from hubline.errors import ConfigError
from hubline.monitoring.lag import CLI_GROUP

if TYPE_CHECKING:
    from hubline.model.dead_letters import DeadLetter, DeadLetterId, DeadLetterSelection

app = typer.Typer(no_args_is_help=True, help="Look at dead letters, export, discard and redrive them.")


@app.command("list")
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
    limit: Annotated[int, option("--limit", "Show at most so many.", min=1, metavar="N")] = 100,
    after: Annotated[str | None, option("--after", "Go on behind this letter, given whole.", metavar="LETTER")] = None,
    json: JsonOption = False,
) -> None:
    """List dead letters, in the order of hub, group, partition and sequence number.

    New letters do not change the order: --after goes on where the last list ended.

    \b
    Examples:
      hubline dlq list --sink sqlite:///orders.db
      hubline dlq list --sink env:DATABASE --since -24h --error-type ValueError --partition 3
      hubline dlq list --sink env:DATABASE --state all --json | jq .errorText
    """
    flags = Flags(hub, group, partition, since, until, error_type, error_text, state)
    letters, are_more = asyncio.run(_list(sink, flags.choice(), after=_whole_id(after), limit=limit))
    if json:
        for letter in letters:
            print_json(letter_data(letter, body=False))
    elif letters:
        stdout_console().print(listed(letters))
    if not letters:
        say("no such letters" if after is None else "no more letters")
    elif are_more:
        say(f"there are more: add --after {letter_data(letters[-1], body=False)['letter']}")


@app.command()
def show(
    letter: Annotated[
        str,
        typer.Argument(
            metavar="LETTER", envvar=env_twin("letter"), help="PARTITION/SEQUENCE, or the whole id that list prints."
        ),
    ],
    sink: SinkOption,
    hub: OfHubOption = None,
    group: OfGroupOption = None,
    json: JsonOption = False,
) -> None:
    """Show one letter in full: its error, where it was raised, and the event.

    A body that is not kept is read from --hub, if that still has it.

    \b
    Examples:
      hubline dlq show 3/1741 --sink sqlite:///orders.db
      hubline dlq show 3/1741 --sink env:DATABASE --hub env:HUB --json
    """
    found = asyncio.run(_find(sink, letter, Flags(hub, group)))
    if json:
        print_json(letter_data(found))
    else:
        for line in described(found):
            print(line)


app.command()(redriving.redrive)
app.command()(discarding.discard)
app.command()(exporting.export)


async def _list(
    sink: str, choice: DeadLetterSelection, *, after: DeadLetterId | None, limit: int
) -> tuple[list[DeadLetter], bool]:
    """A page of letters, and whether there are more behind it."""
    async with using_shelf(sink) as shelf:
        letters = await shelf.page(choice, after=after, max_count=limit + 1, bodies=False)
        return letters[:limit], len(letters) > limit


def _whole_id(text: str | None) -> DeadLetterId | None:
    from hubline.dead_letters.selection import parse_dead_letter_id

    if text is None:
        return None
    letter = parse_dead_letter_id(text)
    if letter.group is None:
        raise ConfigError(f"--after {letter}: give the whole id, as list --json prints it")
    return letter


async def _find(sink: str, text: str, flags: Flags) -> DeadLetter:
    from hubline.dead_letters.selection import parse_dead_letter_id

    async with using_shelf(sink) as shelf:
        letter = await shelf.find(parse_dead_letter_id(text), flags.choice())
    if letter.is_body_kept or flags.hub is None:
        return letter
    return await _with_body(letter, flags.hub)


async def _with_body(letter: DeadLetter, address: str) -> DeadLetter:
    from hubline.dead_letters.event_lookup import fetch_bodies

    async with using_hub(address) as hub:
        fetched = await fetch_bodies(hub, [letter], group=CLI_GROUP)
    for why in fetched.missing.values():
        say(f"hubline: {why}")
    found = fetched.letters.get(letter.event.sequence_number)
    return letter if found is None else found
