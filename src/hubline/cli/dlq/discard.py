"""``hubline dlq discard``: discards or deletes dead letters."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from hubline.cli.arguments import JsonOption, PartitionsOption, YesOption
from hubline.cli.dlq.flags import (
    DeleteOption,
    ErrorTextOption,
    ErrorTypeOption,
    Flags,
    IdsArgument,
    OfGroupOption,
    OfHubOption,
    SinceOption,
    SinkOption,
    StateOption,
    UntilOption,
    total,
    using_dead_letters,
)
from hubline.cli.dlq.view import NONE_FOUND, counted_by_error
from hubline.cli.exit_codes import say
from hubline.cli.output import confirm, print_json, progress, stderr_console
from hubline.errors import ConfigError
from hubline.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from hubline.dead_letters.repository import DeadLetterCount
    from hubline.model.dead_letters import DeadLetterSelection


def discard(
    sink: SinkOption,
    id: IdsArgument = None,  # noqa: A002 (the argument's name)
    hub: OfHubOption = None,
    group: OfGroupOption = None,
    partition: PartitionsOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    error_type: ErrorTypeOption = None,
    error_text: ErrorTextOption = None,
    state: StateOption = "waiting",
    delete: DeleteOption = False,
    yes: YesOption = False,
    json: JsonOption = False,
) -> None:
    """Mark dead letters as discarded, or delete them.

    Discarded dead letters stay in the database, but are not redriven. --delete deletes dead letters with their bodies.
    Add --state to also delete those that were redriven or discarded before.

    The command shows the number of dead letters and asks before it changes them. It skips dead letters that a redrive
    is working on.

    \b
    Examples:
      hubline dlq discard 3/1741 --sink sqlite:///orders.db
      hubline dlq discard --sink env:DATABASE --error-type ValueError --yes
      hubline dlq discard --sink env:DATABASE --state redriven --delete
    """
    flags = Flags(hub, group, partition, since, until, error_type, error_text, state, id)
    if state != "waiting" and not delete:
        raise ConfigError(f"--state {state}: only waiting dead letters can be discarded. Add --delete to delete them.")
    choice, counts = asyncio.run(_count(sink, flags.choice()))
    if not counts:
        say(NONE_FOUND)
        return
    stderr_console().print(counted_by_error(counts))
    confirm(f"{'Delete' if delete else 'Discard'} {counted(total(counts), 'dead letter')}?", yes=yes)
    with progress("discarding", total(counts)) as advance:
        done = asyncio.run(_discard(sink, choice, delete=delete, advance=advance))
    if json:
        print_json({"deadLetters": done, "deleted": delete})
    say(f"{'deleted' if delete else 'discarded'} {counted(done, 'dead letter')}")


async def _count(sink: str, choice: DeadLetterSelection) -> tuple[DeadLetterSelection, list[DeadLetterCount]]:
    """How many there are, and a selection without later ones: the user confirms only those that are counted."""
    async with using_dead_letters(sink) as repository:
        now = await repository.now()
        pinned = choice if choice.until is not None and choice.until <= now else replace(choice, until=now)
        return pinned, await repository.count(pinned)


async def _discard(sink: str, choice: DeadLetterSelection, *, delete: bool, advance: Callable[[int], None]) -> int:
    # A crash leaves some of them discarded and the others unchanged; the command can be repeated.
    from hubline.model.dead_letters import DeadLetterState

    done = 0
    async with using_dead_letters(sink) as repository:
        while True:
            if delete:
                count = await repository.delete_some(choice)
            else:
                count = await repository.mark_some(choice, DeadLetterState.DISCARDED)
            if not count:
                return done
            done += count
            advance(count)
