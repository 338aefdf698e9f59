"""How dead letters are shown."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from hubline.cli.output import bytes_text, escaped, json_time, table, timestamp, visible

if TYPE_CHECKING:
    from rich.table import Table

    from hubline.dead_letters.repository import DeadLetterCount
    from hubline.model.dead_letters import DeadLetter

ERROR_SHOWN_LENGTH_MAX: Final = 60
"""What a line of a list has room for; show has all of it."""

HEX_SHOWN_BYTES_MAX: Final = 256
"""Enough to tell what kind of data it is; export has all of it."""
_HEX_LINE_BYTES: Final = 16


def listed(letters: Sequence[DeadLetter]) -> Table:
    """One line a letter. Hub and group stand there where they differ."""
    groups = {letter.key.group_key for letter in letters}
    rows = [
        (
            f"{letter.key.partition}/{letter.event.sequence_number}",
            str(letter.key.group_key) if len(groups) > 1 else None,
            letter.state if letter.state != "waiting" else None,
            letter.failed_at,
            letter.attempts,
            letter.stage,
            letter.event.partition_key,
            _error_line(letter),
        )
        for letter in letters
    ]
    columns = ("letter", "?group", "?state", "failed", ">attempts", "stage", "?key", "error")
    return table(columns, rows)


def counted_by_error(counts: Sequence[DeadLetterCount]) -> Table:
    """How many letters there are of each kind."""
    rows = [(str(each.key), each.state, each.error_type, each.count) for each in counts]
    return table(("partition", "state", "error", ">letters"), rows)


def letter_data(letter: DeadLetter, *, body: bool = True) -> dict[str, object]:
    """For --json and export. Without ``body`` only what is known of the letter itself."""
    from hubline.model.dead_letters import DeadLetterId

    event = letter.event
    data: dict[str, object] = {
        "letter": str(DeadLetterId.of(letter)),
        "namespace": letter.key.namespace,
        "hub": letter.key.hub,
        "group": letter.key.group,
        "partition": letter.key.partition,
        "sequenceNumber": event.sequence_number,
        "offset": event.offset,
        "enqueuedTime": json_time(event.enqueued_time),
        "partitionKey": event.partition_key,
        "state": letter.state,
        "stage": letter.stage,
        "failedTime": json_time(letter.failed_at),
        "attempts": letter.attempts,
        "errorType": letter.error_type,
        "errorText": letter.error_text,
        "bodyKept": letter.is_body_kept,
    }
    if body:
        data |= {"traceback": letter.traceback, **_event_data(letter)}
    return data


def _event_data(letter: DeadLetter) -> dict[str, object]:
    if not letter.is_body_kept:
        return {"properties": None, "body": None}
    text = text_of(letter.event.body)
    encoded = {"bodyBase64": base64.b64encode(letter.event.body).decode()} if text is None else {"body": text}
    return {"properties": dict(letter.event.properties), **encoded}


def described(letter: DeadLetter) -> Iterator[str]:
    """One letter in full, line by line."""
    from hubline.model.dead_letters import DeadLetterId

    event = letter.event
    facts = {
        "letter": DeadLetterId.of(letter),
        "state": letter.state,
        "failed": f"{timestamp(letter.failed_at)}, {letter.stage}, after {visible(letter.attempts)} attempts",
        "error": f"{letter.error_type}: {letter.error_text}",
        "enqueued": timestamp(event.enqueued_time),
        "offset": event.offset,
        "key": event.partition_key,
    }
    for name, value in facts.items():
        yield f"{name:<9} {visible(None if value is None else str(value))}"
    for name, value in event.properties.items():
        yield f"{'property':<9} {escaped(name)} = {visible(value)}"
    if letter.traceback:
        yield ""
        yield from (escaped(line) for line in letter.traceback.rstrip("\n").split("\n"))
    yield ""
    yield from body_lines(letter)


def body_lines(letter: DeadLetter) -> Iterator[str]:
    body = letter.event.body
    if not letter.is_body_kept:
        yield "the body is not kept: give --hub to read it there"
    elif (text := text_of(body)) is not None:
        yield f"body, {bytes_text(len(body))}:"
        yield from (escaped(line) for line in text.split("\n"))
    else:
        yield f"body, {bytes_text(len(body))}, no text:"
        for start in range(0, min(len(body), HEX_SHOWN_BYTES_MAX), _HEX_LINE_BYTES):
            yield f"  {start:04x}  {body[start : min(start + _HEX_LINE_BYTES, HEX_SHOWN_BYTES_MAX)].hex(' ')}"
        if len(body) > HEX_SHOWN_BYTES_MAX:
            yield f"  and {bytes_text(len(body) - HEX_SHOWN_BYTES_MAX)} more: hubline dlq export has all"


def text_of(body: bytes) -> str | None:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _error_line(letter: DeadLetter) -> str:
    """The type without its module, and the beginning of the text."""
    line = f"{letter.error_type.rpartition('.')[2]}: {letter.error_text}"
    return line if len(line) <= ERROR_SHOWN_LENGTH_MAX else f"{line[: ERROR_SHOWN_LENGTH_MAX - 1]}…"
