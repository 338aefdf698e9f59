"""A million readings at once, made column by column: as fast as a hub takes them.

python burst.py local:./data/raw --count 1000000
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from readings import DEVICES

import hubline
from hubline.event_ids import ID_PROPERTY

BATCH_COUNT = 10_000


def batches(count: int, *, first_number: int = 0, seed: int = 1) -> Iterator[pa.RecordBatch]:
    """`count` readings with numbers from `first_number` on, all of them valid and none sent twice."""
    rng = np.random.default_rng(seed)
    for start in range(first_number, first_number + count, BATCH_COUNT):
        numbers = np.arange(start, min(start + BATCH_COUNT, first_number + count))
        yield _batch(numbers, rng.integers(DEVICES, size=len(numbers)), rng.normal(20, 4, size=len(numbers)))


def _batch(numbers: np.ndarray, devices: np.ndarray, celsius: np.ndarray) -> pa.RecordBatch:
    number = pa.array(numbers).cast(pa.string())
    device = _joined("device-", pc.utf8_lpad(pa.array(devices).cast(pa.string()), 2, "0"))
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    degrees = pa.array(np.round(celsius, 2)).cast(pa.string())
    body = _joined(
        '{"id": "r',
        pc.utf8_lpad(number, 7, "0"),
        '", "device": "',
        device,
        f'", "at": "{at}", "celsius": ',
        degrees,
        "}",
    )
    # The device counts its readings, which lets a table know one that comes twice.
    ids = _joined("devices/", device, "/", number, "/0")
    names = pa.array([ID_PROPERTY] * len(numbers))
    properties = pa.MapArray.from_arrays(np.arange(len(numbers) + 1, dtype=np.int32), names, ids)
    return pa.record_batch({"body": body.cast(pa.binary()), "partitionKey": device, "properties": properties})


def _joined(*parts: pa.Array | str) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")


async def send(hub: str, count: int) -> None:
    """Send them to the hub."""
    async with hubline.Producer(hub) as producer:
        for batch in batches(count):
            await producer.send(batch)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Send readings to a hub as fast as it takes them.")
    parser.add_argument("hub", help="its address, for instance local:./data/raw")
    parser.add_argument("--count", type=int, default=1_000_000)
    options = parser.parse_args()
    asyncio.run(send(options.hub, options.count))
