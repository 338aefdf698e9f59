"""Readings as devices send them: most are fine, some do not read, some are sent twice.

    python readings.py local:./data/raw --count 100000

A seed gives the same readings every time, apart from when they were taken and how they are numbered: run again, the
devices count on, so these are new readings, as many of each kind as before.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import hubline
from hubline.event_ids import ID_PROPERTY

DEVICES = 50
MALFORMED_SHARE = 0.01
TWICE_SHARE = 0.005
BATCH_COUNT = 1_000

MALFORMED = ('{"id": "ID", "device": ', "not JSON at all", '{"id": "ID", "celsius": "warm"}', '{"id": "ID"}', "")


@dataclass(frozen=True, slots=True)
class Reading:
    """One event. ``id`` is None where the body does not read; a reading that was sent twice has one id."""

    body: bytes
    id: str | None
    device: str
    number: int

    @property
    def event(self) -> dict[str, object]:
        """As it is sent. The device counts its readings, which lets a table know one that comes twice."""
        event_id = f"devices/{self.device}/{self.number}/0"
        return {"body": self.body, "partitionKey": self.device, "properties": {ID_PROPERTY: event_id}}


def readings(count: int, *, seed: int = 1, first: int = 0) -> Iterator[Reading]:
    """``count`` events, one a millisecond, up to now. They are numbered from ``first``."""
    rng = random.Random(seed)
    started = datetime.now(UTC) - timedelta(milliseconds=count)
    previous: Reading | None = None
    for number in range(count):
        if previous is not None and rng.random() < TWICE_SHARE:
            yield previous
            previous = None
        else:
            previous = _reading(first + number, started + timedelta(milliseconds=number), rng)
            yield previous


def _reading(number: int, at: datetime, rng: random.Random) -> Reading:
    name, device = f"r{number:07d}", f"device-{rng.randrange(DEVICES):02d}"
    if rng.random() < MALFORMED_SHARE:
        return Reading(rng.choice(MALFORMED).replace("ID", name).encode(), None, device, number)
    fields = {
        "id": name,
        "device": device,
        "at": at.isoformat(timespec="milliseconds"),
        "celsius": round(rng.gauss(20, 4), 2),
    }
    return Reading(json.dumps(fields).encode(), name, device, number)


async def send(hub: str, count: int) -> None:
    left = readings(count, first=time.time_ns() // 1_000)  # microseconds: no run is so quick that two share a number
    good: set[int] = set()
    bad: set[int] = set()
    async with hubline.Producer(hub) as producer:
        while batch := list(itertools.islice(left, BATCH_COUNT)):
            await producer.send([reading.event for reading in batch])
            good |= {reading.number for reading in batch if reading.id is not None}
            bad |= {reading.number for reading in batch if reading.id is None}
    twice = count - len(good) - len(bad)
    print(f"sent {count:,} events: {len(good):,} readings, {len(bad):,} that do not parse, {twice:,} sent twice")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Send readings to a hub.")
    parser.add_argument("hub", help="its address, for instance local:./data/raw")
    parser.add_argument("--count", type=int, default=100_000)
    options = parser.parse_args()
    asyncio.run(send(options.hub, options.count))
