"""Events to messages, one by one: what makes those that are more than strings, and all where the core is not there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from hubline.amqp.codec.data_sections import DATA_SECTIONS, encode_body
from hubline.amqp.codec.encode import encode
from hubline.amqp.codec.message import MESSAGE_ANNOTATIONS
from hubline.amqp.codec.property_types import Pairs, encode_properties
from hubline.amqp.codec.types import Described, Symbol, Timestamp, ULong
from hubline.amqp.service_names import ENQUEUED_TIME, OFFSET, PARTITION_KEY, SEQUENCE_NUMBER

_MICROSECONDS: Final = 1000


def encode_each(events: pa.RecordBatch) -> Iterator[bytes]:
    """The message of each event: of OUTGOING_SCHEMA, or of EVENT_SCHEMA with the annotations of a hub."""
    names = events.schema.names
    has_position = "offset" in names
    columns = {name: events.column(name) for name in names if name != "partition"}
    if has_position:
        columns["enqueuedTime"] = columns["enqueuedTime"].cast(pa.int64())
    values = {name: column.to_pylist() for name, column in columns.items()}
    for row in range(len(events)):
        annotations: dict[object, object] = {}
        if has_position:
            annotations[Symbol(SEQUENCE_NUMBER)] = values["sequenceNumber"][row]
            annotations[Symbol(OFFSET)] = values["offset"][row]
            annotations[Symbol(ENQUEUED_TIME)] = Timestamp(values["enqueuedTime"][row] // _MICROSECONDS)
        if values["partitionKey"][row] is not None:
            annotations[Symbol(PARTITION_KEY)] = values["partitionKey"][row]
        section = encode(Described(ULong(MESSAGE_ANNOTATIONS), annotations)) if annotations else b""
        pairs: Pairs = values["properties"][row] or ()
        note = next((text for name, text in pairs if name == DATA_SECTIONS and text is not None), None)
        yield section + encode_properties(pairs) + encode_body(values["body"][row], note)
