"""``hubline tail``: shows events as they arrive."""

from __future__ import annotations

import asyncio
import base64
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

from hubline.addresses.names import validate_group_name, validate_partition_id
from hubline.addresses.values import parse_position
from hubline.cli.arguments import HubArgument, JsonOption, PartitionsOption, option
from hubline.cli.dlq.view import traceback_lines
from hubline.cli.output import escaped, json_time, print_json, stdout_console, timestamp, visible
from hubline.cli.session import chosen_partitions, using_hub
from hubline.errors import HublineError, HubUnavailable
from hubline.monitoring.lag import CLI_GROUP

if TYPE_CHECKING:
    from hubline.model.events import Event, EventBatch
    from hubline.model.hubs import PartitionProperties
    from hubline.model.positions import Position
    from hubline.ports import Hub, Receiver

log = logging.getLogger("hubline.cli")

# One screen at a time is enough for people; larger reads keep a pipe busy.
_BATCH_COUNT_MAX: Final = 1000
_FOLLOW_WAIT_SECONDS: Final = 30.0
# With --no-follow: an event that the hub holds and does not deliver within this time is an error.
_READ_WAIT_SECONDS: Final = 30.0
# The same if the position is, as far as is known, after the last event.
_LOOK_WAIT_SECONDS: Final = 1.0
# If the hub cannot be reached for this long, the command fails.
_OUTAGE_SECONDS: Final = 30.0
# Partitions that are added to the hub are shown this soon.
_LOOK_FOR_PARTITIONS_SECONDS: Final = 5.0


def tail(
    hub: HubArgument,
    position: Annotated[
        str | None,
        option(
            "--position",
            "Where to start: earliest, latest, offset:VALUE, sequence:N, time:2026-01-31T12:00:00Z or time:-15m. "
            "Default: latest, or earliest with --no-follow.",
            metavar="POSITION",
        ),
    ] = None,
    partition: PartitionsOption = None,
    limit: Annotated[int | None, option("--limit", "Stop after N events.", min=1, metavar="N")] = None,
    no_follow: Annotated[bool, option("--no-follow", "Show the events that the hub holds now, then exit.")] = False,
    group: Annotated[str, option("--group", "The consumer group to read in.", metavar="GROUP")] = CLI_GROUP,
    json: JsonOption = False,
) -> None:
    """Show events as they arrive, in order within each partition.

    Reading does not affect other consumers.

    \b
    Examples:
      hubline tail local:./data/orders
      hubline tail local:./data/orders --position time:-15m --partition 3
      hubline tail local:./data/orders --no-follow --json | jq -r .body
      hubline tail local:./data/orders --position sequence:41 --limit 1
    """
    start = parse_position(position or ("earliest" if no_follow else "latest"))
    wanted = [validate_partition_id(each) for each in partition or ()]
    printer = _Printer(_json_line if json else _text_line(), limit)
    asyncio.run(_tail(hub, _Choice(validate_group_name(group), start, wanted, follow=not no_follow), printer))


@dataclass(frozen=True, slots=True)
class _Choice:
    """What to show."""

    group: str
    position: Position
    partitions: Sequence[str]
    follow: bool


class _LimitReached(Exception):
    """As many events as --limit allows were printed."""


class _Printer:
    """Prints batches, up to a number of events."""

    def __init__(self, show: Callable[[Event], None], limit: int | None) -> None:
        self._show = show
        self._left = limit

    def print(self, batch: EventBatch) -> None:
        if self._left is not None:
            batch = batch.slice(0, min(self._left, len(batch)))
            self._left -= len(batch)
        for event in batch:
            self._show(event)
        sys.stdout.flush()
        if self._left == 0:
            raise _LimitReached


async def _tail(address: str, choice: _Choice, printer: _Printer) -> None:
    async with using_hub(address) as hub:
        try:
            async with asyncio.TaskGroup() as tasks:
                await _Tail(hub, choice, printer).start(tasks)
        except BaseExceptionGroup as ended:
            if not isinstance(ended.exceptions[0], _LimitReached):
                raise ended.exceptions[0] from None


class _Tail:
    """Reads partitions side by side."""

    def __init__(self, hub: Hub, choice: _Choice, printer: _Printer) -> None:
        self._hub = hub
        self._choice = choice
        self._printer = printer

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Starts a task per partition. While it follows all partitions, also for those that are added to the hub."""
        from hubline.model.positions import Position

        started = list(await chosen_partitions(self._hub, self._choice.partitions))
        for partition in started:
            tasks.create_task(self._read(partition, self._choice.position))
        while self._choice.follow and not self._choice.partitions:
            await asyncio.sleep(_LOOK_FOR_PARTITIONS_SECONDS)
            added = [each for each in (await self._hub.describe()).partition_ids if each not in started]
            for partition in added:
                tasks.create_task(self._read(partition, Position.earliest()))
            started += added

    async def _read(self, partition: str, position: Position) -> None:
        held = await self._hub.describe_partition(partition)
        if held.is_empty and not self._choice.follow:
            return
        receiver = self._receiver(partition, position)
        try:
            if self._choice.follow:
                await self._follow(receiver)
            else:
                await self._read_all(receiver, held, is_more=_leads_to_events(position, held))
        finally:
            await receiver.close()

    def _receiver(self, partition: str, position: Position) -> Receiver:
        """Reads on after a connection is lost. If none can be opened again in time, the command fails."""
        from hubline.hubs.reconnecting_receiver import ReconnectingReceiver, ReconnectPolicy
        from hubline.retry import RetryPolicy

        def report(error: HublineError) -> None:
            log.warning("tail_again partition=%s %s", partition, error)

        backoff = RetryPolicy(initial_backoff_seconds=0.5, max_backoff_seconds=5.0)
        policy = ReconnectPolicy(backoff, report, outage_seconds=_OUTAGE_SECONDS)
        return ReconnectingReceiver(self._hub, partition, group=self._choice.group, position=position, policy=policy)

    async def _follow(self, receiver: Receiver) -> None:
        while True:
            self._printer.print(await receiver.receive(max_count=_BATCH_COUNT_MAX, wait_seconds=_FOLLOW_WAIT_SECONDS))

    async def _read_all(self, receiver: Receiver, held: PartitionProperties, *, is_more: bool) -> None:
        """Ends with the last event that is held, or if none arrives and none is known to follow."""
        while True:
            wait_seconds = _READ_WAIT_SECONDS if is_more else _LOOK_WAIT_SECONDS
            batch = await receiver.receive(max_count=_BATCH_COUNT_MAX, wait_seconds=wait_seconds)
            if not len(batch) and is_more:
                raise HubUnavailable(
                    f"partition {held.partition} of hub {self._hub.name} holds events up to {held.last_sequence}, but "
                    f"sent none for {wait_seconds:g} s, so not all events were shown. Try again.",
                    hub=self._hub.name,
                    partition=held.partition,
                )
            if not len(batch) or batch.first_sequence > held.last_sequence:
                return
            self._printer.print(batch.slice(0, held.last_sequence - batch.first_sequence + 1))
            if batch.last_sequence >= held.last_sequence:
                return
            is_more = True


def _leads_to_events(position: Position, held: PartitionProperties) -> bool:
    """Whether the partition is known to hold events from the position on."""
    is_included = position.inclusive
    match position.value:
        case None:
            return is_included  # all of them, or the newest
        case int(sequence):
            return sequence < held.last_sequence or (is_included and sequence == held.last_sequence)
        case str(offset):
            return offset != held.last_offset or is_included  # offsets have no order, and unknown ones are refused
        case time:
            last = held.last_enqueued_time
            return last is not None and (time < last or (is_included and time == last))


def _json_line(event: Event) -> None:
    body = _body_text(event.body)
    print_json(
        {
            "partition": event.partition,
            "sequenceNumber": event.sequence_number,
            "offset": event.offset,
            "enqueuedTime": json_time(event.enqueued_time),
            "partitionKey": event.partition_key,
            "properties": dict(event.properties),
            **({"bodyBase64": base64.b64encode(event.body).decode()} if body is None else {"body": body}),
        }
    )


def _body_text(body: bytes) -> str | None:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _text_line() -> Callable[[Event], None]:
    """Prints an event on a line, and a dead letter's traceback below: on a terminal with colours, else plainly and
    faster."""
    if not sys.stdout.isatty():
        return _print_plainly
    from rich.text import Text

    console = stdout_console()

    def show(event: Event) -> None:
        properties, below = _properties(event)
        console.print(Text("  ").join(Text(text, style) for text, style in _pieces(event, properties)), soft_wrap=True)
        for line in below:
            console.print(Text(line, "dim"), soft_wrap=True)

    return show


def _print_plainly(event: Event) -> None:
    properties, below = _properties(event)
    print("\n".join(("  ".join(text for text, _ in _pieces(event, properties)), *below)))


def _properties(event: Event) -> tuple[Mapping[str, object], list[str]]:
    """What is shown beside the body, and the lines of the traceback if it is a dead letter of a hub."""
    if not event.properties:
        return {}, []
    from hubline.sinks.dead_letter_hub import TRACEBACK_PROPERTY

    properties = dict(event.properties)
    traceback = properties.pop(TRACEBACK_PROPERTY, None)
    return properties, traceback_lines(str(traceback)) if traceback else []


def _pieces(event: Event, properties: Mapping[str, object]) -> list[tuple[str, str]]:
    body = _body_text(event.body)
    pieces = [
        (timestamp(event.enqueued_time), "dim"),
        (f"{event.partition}/{event.sequence_number}", "cyan"),
        (escaped(repr(event.body) if body is None else body), ""),
    ]
    if event.partition_key is not None:
        pieces.insert(2, (f"key={escaped(event.partition_key)}", "magenta"))
    if properties:
        shown = " ".join(f"{escaped(name)}={visible(value)}" for name, value in properties.items())
        pieces.append((f"[{shown}]", "dim"))
    return pieces
