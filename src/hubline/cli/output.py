"""How data is printed: tables for people, JSON for programs, and text from outside made safe for a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import typer

from hubline.cli.exit_codes import ExitCode, say

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# Without a terminal, no table is folded.
_WIDTH_WITHOUT_TERMINAL: Final = 1000


# Only ASCII: nothing in it can confuse a terminal or an encoding.
_JSON: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True)


def print_json(data: Mapping[str, object]) -> None:
    """One object on one line."""
    print(_JSON.encode(data))


def stdout_console() -> Console:
    from rich.console import Console

    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL)


def stderr_console() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
    """A table. A column's name starts with ``>`` to stand to the right, with ``?`` to be left out if it is empty, with
    ``?>`` for both."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    shown = [
        index
        for index, column in enumerate(columns)
        if not column.startswith("?") or any(row[index] is not None for row in rows)
    ]
    made = Table(box=SIMPLE_HEAD, show_edge=False)  # folded where it is too wide: what is cut cannot be copied
    for index in shown:
        column = columns[index]
        made.add_column(
            column.lstrip(">?"), justify="right" if column.lstrip("?").startswith(">") else "left", overflow="fold"
        )
    for row in rows:
        made.add_row(*(Text(visible(row[index])) for index in shown))
    return made


def visible(value: object) -> str:
    """A value as a cell or a word: None as a dash, numbers with separators, control characters escaped."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case datetime():
            return timestamp(value)
        case _:
            return escaped(str(value))


def escaped(text: str) -> str:
    """Text from outside, harmless to a terminal: what does not print shows as its code."""
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def timestamp(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds_text(seconds: float | None) -> str:
    """A duration in the largest unit that leaves a readable number."""
    if seconds is None:
        return "-"
    for unit, size in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f}{unit}"
    return f"{seconds:.1f}s"


def bytes_text(count: int | None) -> str:
    """A size in the largest unit that leaves a readable number."""
    if count is None:
        return "-"
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f}{unit}" if unit == "B" else f"{size:.1f}{unit}"
        size /= 1024
    return f"{size:.1f}TiB"


def confirm(question: str, *, yes: bool) -> None:
    """Returns if the user confirmed, by the flag or the prompt; otherwise ends the command, with nothing changed."""
    if yes:
        return
    if not sys.stdin.isatty():
        say(f"hubline: {question} There is no terminal to ask on. Add --yes to confirm. Nothing was changed.")
        raise typer.Exit(ExitCode.NOT_CONFIRMED)
    if not typer.confirm(question, err=True):
        say("Nothing was changed.")
        raise typer.Exit(ExitCode.NOT_CONFIRMED)


@contextmanager
def progress(doing: str, total: int | None) -> Iterator[Callable[[int], None]]:
    """A progress bar on a terminal, nothing elsewhere. Call the result with the number of items done since then."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr_console(), transient=True) as shown:
        task = shown.add_task(doing, total=total)
        yield lambda count: shown.advance(task, count)


def json_time(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
