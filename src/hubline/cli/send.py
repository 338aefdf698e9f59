"""``hubline send``: sends lines or generated events to a hub."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from hubline.addresses.names import validate_partition_id
from hubline.addresses.values import parse_size
from hubline.cli.arguments import HubArgument, JsonOption, option
from hubline.cli.exit_codes import say
from hubline.cli.lines import batched, read_lines
from hubline.cli.output import bytes_text, print_json, progress
from hubline.cli.session import using_hub
from hubline.errors import ConfigError
from hubline.text import counted

if TYPE_CHECKING:
    from hubline.model.events import NewEvent

# Generated or read at once, and acknowledged as one: this many share the cost of a write to the disk.
BATCH_COUNT_MAX: Final = 5000
# Generated at once: with larger events, fewer are.
GENERATED_BYTES_MAX: Final = 4 * 1024 * 1024
# A batch goes to at most this many partitions: a few events reach all partitions, and many are sent in large pieces.
SPREAD_MAX: Final = 16
# With a rate, batches are sent this often: smooth to the eye, and still in batches.
PACE_SECONDS: Final = 0.1


def send(
    hub: HubArgument,
    file: Annotated[
        list[Path] | None,
        option("--file", "Send the lines of this file. You can give it several times. Default: stdin.", metavar="PATH"),
    ] = None,
    generate: Annotated[
        int | None, option("--generate", "Send N generated events instead of lines.", min=1, metavar="N")
    ] = None,
    size: Annotated[str, option("--size", "The size of a generated event.", metavar="SIZE")] = "200",
    keys: Annotated[
        int | None, option("--keys", "Give generated events N different partition keys in turn.", min=1, metavar="N")
    ] = None,
    rate: Annotated[float | None, option("--rate", "Send at most N events per second.", min=0.001, metavar="N")] = None,
    partition: Annotated[str | None, option("--partition", "Send all events to this partition.", metavar="ID")] = None,
    key: Annotated[str | None, option("--key", "Send all events with this partition key.", metavar="KEY")] = None,
    json: JsonOption = False,
) -> None:
    """Send lines of text, or generated events, to a hub.

    Each line of stdin or of a file becomes one event, without its line end. By default, the events go to all partitions
    in turn. To choose, use --partition, --key or --keys.

    \b
    Examples:
      echo hello | hubline send local:./data/orders
      hubline send local:./data/orders --file events.jsonl --key customer-7
      hubline send local:./data/orders --generate 1000000 --size 200 --keys 50
      hubline send local:./data/orders --generate 600 --rate 10
    """
    _require_one("where events go", {"--partition": partition, "--key": key, "--keys": keys})
    _require_one("what to send", {"--file": file, "--generate": generate})
    if keys is not None and generate is None:
        raise ConfigError("--keys needs generated events. Add --generate N, or use --key KEY for your own events.")
    target = _Target(partition if partition is None else validate_partition_id(partition), key, keys, rate)
    max_batch_size = BATCH_COUNT_MAX if rate is None else max(1, min(BATCH_COUNT_MAX, int(rate * PACE_SECONDS)))
    if generate is not None:
        bodies = _generated(generate, parse_size(size), max_batch_size)
    else:
        bodies = _lines(file or [], max_batch_size)
    _report(_send_all(hub, bodies, target, total=generate), json=json)


def _require_one(what: str, flags: dict[str, object]) -> None:
    given = [flag for flag, value in flags.items() if value not in (None, [])]
    if len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} can't be used together, because each says {what}. Use one of them.")


@dataclass(frozen=True, slots=True)
class _Target:
    """Where events go, and at most how many per second.

    They go to one partition, with one key, with several keys in turn, or to the partitions in turn.
    """

    partition: str | None
    key: str | None
    keys_count: int | None
    rate: float | None

    def pieces(self, bodies: list[bytes], partition_count: int) -> Iterator[list[bytes]]:
        """The batches to send: one with all bodies, or one for each of several partitions."""
        is_chosen = self.partition is not None or self.key is not None or self.keys_count is not None
        pieces_count = 1 if is_chosen else min(partition_count, SPREAD_MAX)
        return batched(bodies, -(-len(bodies) // pieces_count))

    def events(self, bodies: list[bytes], first_index: int) -> Iterable[NewEvent]:
        if self.keys_count is None:
            return bodies
        numbered = enumerate(bodies, start=first_index)
        return [{"body": body, "partitionKey": f"key-{index % self.keys_count}"} for index, body in numbered]


@dataclass(slots=True)
class _Sent:
    """The events that the hub has acknowledged so far."""

    advance: Callable[[int], None]
    events: int = 0
    bytes_count: int = 0
    started_at: float = field(default_factory=time.monotonic)

    def add(self, bodies: list[bytes]) -> None:
        self.advance(len(bodies))
        self.events += len(bodies)
        self.bytes_count += sum(map(len, bodies))

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started_at


def _send_all(hub: str, batches: AsyncIterator[list[bytes]], target: _Target, *, total: int | None) -> _Sent:
    with progress("sending", total) as advance:
        sent = _Sent(advance)
        try:
            asyncio.run(_send(hub, batches, target, sent=sent))
        except BaseException:
            if sent.events:
                say(f"sent {counted(sent.events, 'event')}, then stopped")
            raise
    return sent


async def _send(address: str, batches: AsyncIterator[list[bytes]], target: _Target, *, sent: _Sent) -> None:
    from hubline.producer import Producer

    # An event that may have been sent is not sent again: a line would become two events.
    async with using_hub(address) as hub, Producer(hub, max_outage_seconds=0) as producer:
        # Before anything is read, so that a missing hub is reported immediately.
        partition_count = len((await hub.describe()).partition_ids)
        async for batch in batches:
            for bodies in target.pieces(batch, partition_count):
                events = target.events(bodies, sent.events)
                await producer.send(events, partition_id=target.partition, partition_key=target.key)
                sent.add(bodies)
            if target.rate is not None:
                await asyncio.sleep(max(0.0, sent.events / target.rate - sent.seconds))


async def _generated(count: int, size: int, max_batch_size: int) -> AsyncIterator[list[bytes]]:
    """Numbered events of one size."""
    max_batch_size = max(1, min(max_batch_size, GENERATED_BYTES_MAX // max(size, 1)))
    for start in range(0, count, max_batch_size):
        numbers = range(start, min(start + max_batch_size, count))
        yield [(b"%d " % number).ljust(size, b".")[:size] for number in numbers]


async def _lines(files: list[Path], max_batch_size: int) -> AsyncIterator[list[bytes]]:
    if not files:
        async for lines in read_lines(sys.stdin.buffer, max_count=max_batch_size):
            yield lines
    for path in files:
        with path.open("rb") as file:
            async for lines in read_lines(file, max_count=max_batch_size):
                yield lines


def _report(sent: _Sent, *, json: bool) -> None:
    seconds = sent.seconds
    if json:
        print_json({"events": sent.events, "bytes": sent.bytes_count, "seconds": round(seconds, 3)})
    else:
        rate = sent.events / seconds if seconds else 0.0
        amount = f"{counted(sent.events, 'event')}, {bytes_text(sent.bytes_count)}"
        say(f"sent {amount}, in {seconds:.1f} s ({rate:,.0f} events/s)")
