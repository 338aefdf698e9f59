"""Messages to columns by the compiled core: one call for all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from hubline.amqp.arrays import Octets, Positions
from hubline.amqp.core.library import Core, Decoding, GrowingColumn, RoomEstimate, address_of
from hubline.amqp.transport.errors import AmqpDecodeError
from hubline.model.events import EVENT_SCHEMA

_PROPERTIES_TYPE: Final = EVENT_SCHEMA.field("properties").type
_PAIR_TYPE: Final = pa.struct([_PROPERTIES_TYPE.key_field, _PROPERTIES_TYPE.item_field])

# Of the bytes of messages, before any is known: how many are of a column; and pairs of properties for each byte.
_FIRST_SHARES: Final = {"body": 1.0, "offset": 0.05, "key": 0.05, "names": 0.05, "values": 0.05, "pairs": 0.005}


@dataclass(frozen=True, slots=True, eq=False)
class DecodedColumns:
    """What the core made of messages, and the indexes of those that it left to others. Times are in milliseconds."""

    body: pa.BinaryArray
    offset: pa.StringArray
    sequence_numbers: Positions
    enqueued_ms: Positions
    partition_key: pa.StringArray
    properties: pa.MapArray
    others: list[int]


class CompiledDecoder:
    """Decodes events of one kind. It remembers how large their columns were, so that the next ones fit at once.

    ``has_position``: each has a sequence number, an offset and an enqueued time. ``takes_notes``: types and sections
    are noted among the properties, as :func:`~.reference_decoder.read_event` says.
    """

    def __init__(self, core: Core, *, has_position: bool, takes_notes: bool) -> None:
        self._core = core
        self._has_position = has_position
        self._takes_notes = takes_notes
        self._estimates = {name: RoomEstimate(share) for name, share in _FIRST_SHARES.items()}

    def decode(self, data: Octets, starts: Positions, ends: Positions) -> DecodedColumns:
        """Those of the messages ``data[start:end]`` that the core takes. Raises AmqpDecodeError for too much text."""
        count = len(starts)
        size = int((ends - starts).sum())
        starts, ends = np.ascontiguousarray(starts, np.int64), np.ascontiguousarray(ends, np.int64)
        data = np.ascontiguousarray(data)
        run = Decoding(
            data=address_of(data),
            data_size=len(data),
            starts=address_of(starts),
            ends=address_of(ends),
            count=count,
            has_position=self._has_position,
            takes_notes=self._takes_notes,
        )
        room = {name: estimate.room(size) for name, estimate in self._estimates.items()}
        positions = count if self._has_position else 0
        body = GrowingColumn(run.body, count, room["body"], has_nulls=False)
        offset = GrowingColumn(run.offset, positions, room["offset"] if positions else 0, has_nulls=False)
        key = GrowingColumn(run.key, count, room["key"], has_nulls=True)
        names = GrowingColumn(run.names, room["pairs"], room["names"], has_nulls=False)
        values = GrowingColumn(run.values, room["pairs"], room["values"], has_nulls=True)
        growing = (body, offset, key, names, values)
        map_ends, map_valid = pa.allocate_buffer(4 * (count + 1)), pa.allocate_buffer(count // 8 + 1)
        np.frombuffer(map_ends, np.int32, 1)[:] = 0
        numbers = np.empty((3, count), np.int64)
        sequences, times, others = numbers
        run.sequences = address_of(numbers)
        run.times, run.others = run.sequences + 8 * count, run.sequences + 16 * count
        run.map_ends, run.map_valid = map_ends.address, map_valid.address
        while not self._core.decode(run):
            for column in growing:
                _grow(column)
        for name, column in zip(("body", "offset", "key", "names", "values"), growing, strict=True):
            self._estimates[name].took(column.column.bytes_count, size)
        self._estimates["pairs"].took(run.names.rows, size)
        return DecodedColumns(
            body.array(pa.binary()),
            offset.array(pa.string()),
            sequences[: run.taken],
            times[: run.taken],
            key.array(pa.string()),
            _map_column(run, map_ends, map_valid, names, values),
            others[: run.others_count].tolist(),
        )


def _grow(column: GrowingColumn) -> None:
    try:
        column.grow()
    except OverflowError:
        raise AmqpDecodeError("the text of so many messages at once is too much: take fewer") from None


def _map_column(
    run: Decoding, map_ends: pa.Buffer, map_valid: pa.Buffer, names: GrowingColumn, values: GrowingColumn
) -> pa.MapArray:
    valid = map_valid if run.map_null_count else None
    pairs = pa.StructArray.from_arrays([names.array(pa.string()), values.array(pa.string())], fields=list(_PAIR_TYPE))
    return pa.Array.from_buffers(_PROPERTIES_TYPE, run.taken, [valid, map_ends], run.map_null_count, children=[pairs])
