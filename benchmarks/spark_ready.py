"""A Spark source whose batches are ready in memory: the most that Spark's Python transport lets any source yield."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from hubline.model.keys import GroupKey
from hubline.spark.arrow_columns import Layout
from hubline.spark.schema import SOURCE_SCHEMA
from hubline.spark.source.offsets import Entry, StreamOffset

BATCH_COUNT: Final = 20_000
PARTITIONS: Final = 4
TASKS: Final = 2
GROUP: Final = GroupKey("namespace.example", "ready", "alone")


class Ready(DataSource):
    """``count`` rows of four partitions in batches of ``max_events``, over two tasks, all made beforehand; ``body`` may
    be given."""

    @classmethod
    def name(cls) -> str:
        return "ready"

    def schema(self) -> StructType:
        return SOURCE_SCHEMA

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        return ReadyReader(
            int(self.options["count"]), int(self.options["max_events"]), schema, self.options.get("body")
        )


class ReadyReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, count: int, events_max: int, schema: StructType, body: str | None) -> None:
        self._count = count
        self._events_max = events_max
        self._schema = schema
        self._body = body

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return _offset(0, 0)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: ARG002, N802
        done = start["0"]["to"]
        return _offset(done, min(done + self._events_max // PARTITIONS, self._count // PARTITIONS))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._events_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        pass

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        reads = start["0"]["to"], end["0"]["to"]
        return [InputPartition((task, *reads)) for task in range(TASKS)] if start != end else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        task, start, end = partition.value
        ready = _ready(self._schema, self._body)
        for name in range(task, PARTITIONS, TASKS):
            for first in range(start, end, BATCH_COUNT):
                numbers = np.arange(first, min(first + BATCH_COUNT, end))
                batch = ready.slice(0, len(numbers))
                batch = _with(batch, "partition", pa.repeat(str(name), len(numbers)))
                yield _with(batch, "sequenceNumber", pa.array(numbers))


def _with(batch: pa.RecordBatch, name: str, values: pa.Array) -> pa.RecordBatch:
    place = batch.schema.get_field_index(name)
    return batch.set_column(place, batch.schema.field(place), values)


def _offset(start: int, end: int) -> dict[str, Any]:
    """As hubline's own source writes it: its sinks take these rows for those of a hub."""
    entries = {str(partition): Entry(start, end) for partition in range(PARTITIONS)}
    return StreamOffset(entries=entries, group=GROUP).to_json()


_made: dict[tuple[str | None, pa.Schema], pa.RecordBatch] = {}


def _ready(schema: StructType, body: str | None) -> pa.RecordBatch:
    """Made once in the life of a worker. All have this body, or each some bytes of its own."""
    wanted = Layout(schema).schema
    if (body, wanted) not in _made:
        bodies = {} if body is None else {"body": body.encode()}
        made = [{**row, **bodies} for row in rows(BATCH_COUNT)]
        _made[body, wanted] = pa.RecordBatch.from_pylist(made, schema=wanted)
    return _made[body, wanted]


def rows(count: int) -> list[dict[str, Any]]:
    """Events as the hub has them: bodies of 200 bytes, a key, three properties."""
    bodies = np.random.default_rng(1).bytes(200 * count)
    return [
        {
            "body": bodies[200 * number : 200 * (number + 1)],
            "partition": "0",
            "offset": f"{number:018d}",
            "sequenceNumber": number,
            "enqueuedTime": 1_700_000_000_000_000 + number,
            "publisher": None,
            "partitionKey": f"device-{number % 100}",
            "properties": [("kind", "reading"), ("site", f"site {number % 7}"), ("unit", "celsius")],
            "systemProperties": [],
        }
        for number in range(count)
    ]
