"""How dead letters are shown."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from hubline.cli.output import bytes_text, escaped, json_time, table, timestamp, visible
from hubline.text import counted
from hubline.tracebacks import format_frames, frames_in

if TYPE_CHECKING:
    from rich.table import Table

    from hubline.dead_letters.repository import DeadLetterCount
    from hubline.model.dead_letters import DeadLetter

NONE_FOUND: Final = "no dead letters match. Check --group, --state and --since."

ERROR_SHOWN_LENGTH_MAX: Final = 60
"""Enough for a line of a list; show has the whole text."""

HEX_SHOWN_BYTES_MAX: Final = 256
"""Enough to recognize the kind of data; export has the whole body."""
_HEX_LINE_BYTES: Final = 16


def listed(dead_letters: Sequence[DeadLetter]) -> Table:
    """One line for each dead letter, with hub and group if they differ."""
    groups = {dead_letter.key.group_key for dead_letter in dead_letters}
    rows = [
        (
            f"{dead_letter.key.partition}/{dead_letter.event.sequence_number}",
            str(dead_letter.key.group_key) if len(groups) > 1 else None,
            dead_letter.state if dead_letter.state != "waiting" else None,
            dead_letter.failed_at,
            dead_letter.attempts,
            dead_letter.stage,
            dead_letter.event.partition_key,
            _error_line(dead_letter),
        )
        for dead_letter in dead_letters
    ]
    columns = ("id", "?group", "?state", "failed", ">attempts", "stage", "?key", "error")
    return table(columns, rows)


def counted_by_error(counts: Sequence[DeadLetterCount]) -> Table:
    """How many dead letters there are of each kind, with hub and group if they differ."""
    groups = {each.key.group_key for each in counts}
    rows = [
        (
            str(each.key.group_key) if len(groups) > 1 else None,
            each.key.partition,
            each.state,
            each.error_type,
            each.count,
        )
        for each in counts
    ]
    return table(("?group", "partition", "state", "error", ">dead letters"), rows)


def dead_letter_data(dead_letter: DeadLetter, *, body: bool = True) -> dict[str, object]:
    """For --json and export. Without ``body``, only the dead letter itself, not its event."""
    from hubline.model.dead_letters import DeadLetterId

    event = dead_letter.event
    data: dict[str, object] = {
        "id": str(DeadLetterId.of(dead_letter)),
        "namespace": dead_letter.key.namespace,
        "hub": dead_letter.key.hub,
        "consumerGroup": dead_letter.key.group,
        "partition": dead_letter.key.partition,
        "sequenceNumber": event.sequence_number,
        "offset": event.offset,
        "enqueuedTime": json_time(event.enqueued_time),
        "partitionKey": event.partition_key,
        "state": dead_letter.state,
        "stage": dead_letter.stage,
        "failedTime": json_time(dead_letter.failed_at),
        "attempts": dead_letter.attempts,
        "errorType": dead_letter.error_type,
        "errorText": dead_letter.error_text,
        "bodyKept": dead_letter.is_body_kept,
    }
    if body:
        data |= {"traceback": dead_letter.traceback, **_event_data(dead_letter)}
    return data


def _event_data(dead_letter: DeadLetter) -> dict[str, object]:
    if not dead_letter.is_body_kept:
        return {"properties": None, "body": None}
    text = text_of(dead_letter.event.body)
    encoded = {"bodyBase64": base64.b64encode(dead_letter.event.body).decode()} if text is None else {"body": text}
    return {"properties": dict(dead_letter.event.properties), **encoded}


def described(dead_letter: DeadLetter) -> Iterator[str]:
    """One dead letter in full, line by line."""
    from hubline.model.dead_letters import DeadLetterId

    event = dead_letter.event
    facts = {
        "id": DeadLetterId.of(dead_letter),
        "state": dead_letter.state,
        "failed": f"{timestamp(dead_letter.failed_at)}, {dead_letter.stage}, "
        f"after {counted(dead_letter.attempts, 'attempt')}",
        "error": f"{dead_letter.error_type}: {dead_letter.error_text}",
        "enqueued": timestamp(event.enqueued_time),
        "offset": event.offset,
        "key": event.partition_key,
    }
    for name, value in facts.items():
        yield f"{name:<9} {visible(None if value is None else str(value))}"
    for name, value in event.properties.items():
        yield f"{'property':<9} {escaped(name)} = {visible(value)}"
    if dead_letter.traceback:
        yield ""
        yield from traceback_lines(dead_letter.traceback)
    yield ""
    yield from body_lines(dead_letter)


def traceback_lines(traceback: str) -> list[str]:
    """The user's own code first, with hubline's frames folded. If there are no frames, the text unchanged."""
    return [escaped(line) for line in format_frames(frames_in(traceback)) or traceback.rstrip("\n").split("\n")]


def body_lines(dead_letter: DeadLetter) -> Iterator[str]:
    body = dead_letter.event.body
    if not dead_letter.is_body_kept:
        yield "the sink does not keep the body. Add --hub HUB to read it from the hub."
    elif (text := text_of(body)) is not None:
        yield f"body, {bytes_text(len(body))}:"
        yield from (escaped(line) for line in text.split("\n"))
    else:
        yield f"body, {bytes_text(len(body))}, binary:"
        for start in range(0, min(len(body), HEX_SHOWN_BYTES_MAX), _HEX_LINE_BYTES):
            yield f"  {start:04x}  {body[start : min(start + _HEX_LINE_BYTES, HEX_SHOWN_BYTES_MAX)].hex(' ')}"
        if len(body) > HEX_SHOWN_BYTES_MAX:
            yield f"  and {bytes_text(len(body) - HEX_SHOWN_BYTES_MAX)} more. To see all, use hubline dlq export."


def text_of(body: bytes) -> str | None:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _error_line(dead_letter: DeadLetter) -> str:
    """The type without its module, and the beginning of the text."""
    line = f"{dead_letter.error_type.rpartition('.')[2]}: {dead_letter.error_text}"
    return line if len(line) <= ERROR_SHOWN_LENGTH_MAX else f"{line[: ERROR_SHOWN_LENGTH_MAX - 1]}…"
