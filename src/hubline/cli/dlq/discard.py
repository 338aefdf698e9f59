"""``hubline dlq discard``: letters that nobody needs."""

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
    LettersArgument,
    OfGroupOption,
    OfHubOption,
    SinceOption,
    SinkOption,
    StateOption,
    UntilOption,
    total,
    using_shelf,
)
from hubline.cli.dlq.view import counted_by_error
from hubline.cli.exit_codes import say
from hubline.cli.output import confirm, counted, print_json, progress, stderr_console
from hubline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from hubline.dead_letters.repository import DeadLetterCount
    from hubline.model.dead_letters import DeadLetterSelection


def discard(
    sink: SinkOption,
    letter: LettersArgument = None,
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
    """Discard letters that are not needed: they are kept for the record, and no longer wait.

    With --delete they are removed, with their bodies; so are those that were redriven or discarded before, by --state.
    It shows what would be discarded, and asks. Letters that a redrive has in its hands are left to it.

    \b
    Examples:
      hubline dlq discard 3/1741 --sink sqlite:///orders.db
      hubline dlq discard --sink env:DATABASE --error-type ValueError --until -7d --yes
      hubline dlq discard --sink env:DATABASE --state redriven --delete
    """
    flags = Flags(hub, group, partition, since, until, error_type, error_text, state, letter)
    if state != "waiting" and not delete:
        raise ConfigError(f"letters that are {state} do not wait: add --delete to remove them")
    choice, counts = asyncio.run(_count(sink, flags.choice()))
    if not counts:
        say("no such letters")
        return
    stderr_console().print(counted_by_error(counts))
    confirm(f"{'Delete' if delete else 'Discard'} {counted(total(counts), 'letter')}?", yes=yes)
    with progress("discarding", total(counts)) as advance:
        done = asyncio.run(_discard(sink, choice, delete=delete, advance=advance))
    if json:
        print_json({"letters": done, "deleted": delete})
    say(f"{'deleted' if delete else 'discarded'} {counted(done, 'letter')}")


async def _count(sink: str, choice: DeadLetterSelection) -> tuple[DeadLetterSelection, list[DeadLetterCount]]:
    """How many there are, and the choice of just those: what fails from now on was not asked about."""
    async with using_shelf(sink) as shelf:
        now = await shelf.now()
        pinned = choice if choice.until is not None and choice.until <= now else replace(choice, until=now)
        return pinned, await shelf.count(pinned)


async def _discard(sink: str, choice: DeadLetterSelection, *, delete: bool, advance: Callable[[int], None]) -> int:
    # Dying in between leaves some of them discarded and the others as they were; doing it again is fine.
    from hubline.model.dead_letters import DeadLetterState

    done = 0
    async with using_shelf(sink) as shelf:
        while True:
            if delete:
                count = await shelf.delete_some(choice)
            else:
                count = await shelf.mark_some(choice, DeadLetterState.DISCARDED)
            if not count:
                return done
            done += count
            advance(count)
