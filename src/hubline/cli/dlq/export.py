"""``hubline dlq export``: exports dead letters as JSON lines."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TextIO

from hubline.cli.arguments import PartitionsOption, YesOption, option
from hubline.cli.dlq.flags import (
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
from hubline.cli.dlq.view import dead_letter_data
from hubline.cli.exit_codes import say
from hubline.cli.output import confirm, progress
from hubline.text import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hubline.model.dead_letters import DeadLetterSelection

_JSON: Final = json.JSONEncoder(separators=(",", ":"))


def export(
    sink: SinkOption,
    id: IdsArgument = None,  # noqa: A002 (the argument's name)
    output: Annotated[Path | None, option("--output", "The file to write. Default: stdout.", metavar="PATH")] = None,
    hub: OfHubOption = None,
    group: OfGroupOption = None,
    partition: PartitionsOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    error_type: ErrorTypeOption = None,
    error_text: ErrorTextOption = None,
    state: StateOption = "waiting",
    yes: YesOption = False,
) -> None:
    """Export dead letters with their events, as JSON lines.

    --output writes a file, which appears when it is complete. If the file exists, the command asks before it replaces
    the file.

    \b
    Examples:
      hubline dlq export --sink sqlite:///orders.db --output dead-letters.jsonl
      hubline dlq export --sink env:DATABASE --since -24h | gzip > today.jsonl.gz
    """
    flags = Flags(hub, group, partition, since, until, error_type, error_text, state, id)
    if output is not None and output.exists():
        confirm(f"{output} exists. Replace it?", yes=yes)
    opened = nullcontext(sys.stdout) if output is None else _replacing(output)
    count = asyncio.run(_export(sink, flags.choice(), opened))
    say(f"exported {counted(count, 'dead letter')}")


@contextmanager
def _replacing(output: Path) -> Iterator[TextIO]:
    """A crash leaves a file with another name, which the next export replaces."""
    part = output.with_name(f"{output.name}.part")
    try:
        with part.open("w", encoding="ascii") as file:
            yield file
        os.replace(part, output)  # noqa: PTH105 (the same, and says that it replaces)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


async def _export(sink: str, choice: DeadLetterSelection, opened: AbstractContextManager[TextIO]) -> int:
    async with using_dead_letters(sink) as repository:
        count = total(await repository.count(choice))
        done = 0
        with progress("exporting", count) as advance, opened as file:
            async for dead_letters in repository.pages(choice):
                file.writelines(f"{_JSON.encode(dead_letter_data(each))}\n" for each in dead_letters)
                advance(len(dead_letters))
                done += len(dead_letters)
    return done
