"""``hubline dlq export``: letters as JSON lines, or as a Parquet or Arrow file."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TextIO

from hubline.cli.arguments import PartitionsOption, YesOption, option
from hubline.cli.dlq.flags import (
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
from hubline.cli.dlq.view import letter_data
from hubline.cli.exit_codes import say
from hubline.cli.output import confirm, counted, progress
from hubline.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from hubline.model.dead_letters import DeadLetter, DeadLetterSelection

FORMATS: Final = {"jsonl": ".jsonl", "parquet": ".parquet", "arrow": ".arrow"}


def export(
    sink: SinkOption,
    letter: LettersArgument = None,
    output: Annotated[
        Path | None, option("--output", "The file to write. Default: JSON lines to stdout.", metavar="PATH")
    ] = None,
    format: Annotated[  # noqa: A002 (the flag's name)
        str | None,
        option("--format", "jsonl, parquet or arrow. Default: by the file's name.", metavar="FORMAT"),
    ] = None,
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
    """Export letters with their events: as JSON lines, or as a Parquet or Arrow file.

    A file is there when it is complete, and not before. One that is there already is replaced if you say so.

    \b
    Examples:
      hubline dlq export --sink sqlite:///orders.db --output letters.parquet
      hubline dlq export --sink env:DATABASE --since -24h --state all | gzip > letters.jsonl.gz
    """
    flags = Flags(hub, group, partition, since, until, error_type, error_text, state, letter)
    writing = _writing(output, _format(output, format))
    if output is not None and output.exists():
        confirm(f"{output} is there already. Replace it?", yes=yes)
    count = asyncio.run(_export(sink, flags.choice(), writing))
    say(f"exported {counted(count, 'letter')}")


class Writer(ABC):
    """Takes letters, some at a time."""

    @abstractmethod
    def write(self, letters: Sequence[DeadLetter]) -> None: ...


class JsonLines(Writer):
    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._encoder = json.JSONEncoder(separators=(",", ":"))

    def write(self, letters: Sequence[DeadLetter]) -> None:
        self._file.writelines(f"{self._encoder.encode(letter_data(letter))}\n" for letter in letters)


class ArrowBatches(Writer):
    """``writer`` is Parquet's, or that of Arrow's own format."""

    def __init__(self, writer: Any, schema: pa.Schema) -> None:
        self._writer = writer
        self._schema = schema

    def write(self, letters: Sequence[DeadLetter]) -> None:
        import pyarrow as pa

        self._writer.write_batch(pa.RecordBatch.from_pylist([_row(letter) for letter in letters], schema=self._schema))


def _format(output: Path | None, chosen: str | None) -> str:
    """The format that was asked for, or that the name of the file tells."""
    if chosen is not None and chosen not in FORMATS:
        raise ConfigError(f"--format is {', '.join(FORMATS)}, and not {ascii(chosen)[:40]}")
    if output is None:
        if chosen in (None, "jsonl"):
            return "jsonl"
        raise ConfigError(f"--format {chosen} needs a file: add --output PATH")
    by_name = {suffix: name for name, suffix in FORMATS.items()}.get(output.suffix)
    if (chosen or by_name) is None:
        raise ConfigError(
            f"{output}: the name tells no format: end it in {', '.join(FORMATS.values())}, or add --format"
        )
    return chosen or str(by_name)


def _writing(output: Path | None, kind: str) -> AbstractContextManager[Writer]:
    if output is None:
        return nullcontext(JsonLines(sys.stdout))
    return _writing_file(output, kind)


@contextmanager
def _writing_file(output: Path, kind: str) -> Iterator[Writer]:
    """Dying in between leaves a file of another name, which the next export replaces."""
    part = output.with_name(f"{output.name}.part")
    try:
        with _opened(part, kind) as writer:
            yield writer
        os.replace(part, output)  # noqa: PTH105 (the same, and says that it replaces)
    except BaseException:
        with suppress(OSError):
            part.unlink()
        raise


@contextmanager
def _opened(path: Path, kind: str) -> Iterator[Writer]:
    if kind == "jsonl":
        with path.open("w", encoding="ascii") as file:
            yield JsonLines(file)
        return
    import pyarrow as pa
    import pyarrow.parquet

    schema = export_schema()
    with path.open("wb") as file:
        opened = pyarrow.parquet.ParquetWriter(file, schema) if kind == "parquet" else pa.ipc.new_file(file, schema)
        with opened as writer:
            yield ArrowBatches(writer, schema)


def export_schema() -> pa.Schema:
    """The columns of a file: the letter's, then the event's."""
    import pyarrow as pa

    from hubline.model.events import EVENT_SCHEMA

    text, time = pa.string(), EVENT_SCHEMA.field("enqueuedTime").type
    columns = {
        **dict.fromkeys(("letter", "namespace", "hub", "group", "partition"), text),
        "sequenceNumber": pa.int64(),
        "offset": text,
        "enqueuedTime": time,
        "partitionKey": text,
        "state": text,
        "stage": text,
        "failedTime": time,
        "attempts": pa.int64(),
        **dict.fromkeys(("errorType", "errorText", "traceback"), text),
        "properties": EVENT_SCHEMA.field("properties").type,
        "body": pa.binary(),
    }
    return pa.schema(list(columns.items()))


def _row(letter: DeadLetter) -> dict[str, object]:
    event = letter.event
    return {
        **letter_data(letter, body=False),
        "enqueuedTime": event.enqueued_time,
        "failedTime": letter.failed_at,
        "traceback": letter.traceback,
        "properties": list(event.properties.items()) if letter.is_body_kept else None,
        "body": event.body if letter.is_body_kept else None,
    }


async def _export(sink: str, choice: DeadLetterSelection, writing: AbstractContextManager[Writer]) -> int:
    async with using_shelf(sink) as shelf:
        count = total(await shelf.count(choice))
        done = 0
        with progress("exporting", count) as advance, writing as writer:
            async for letters in shelf.pages(choice):
                writer.write(letters)
                advance(len(letters))
                done += len(letters)
    return done
