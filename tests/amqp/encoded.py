"""Events as messages, one by one: what frames and batches are compared with."""

from __future__ import annotations

import pyarrow as pa

from hubline.amqp.events.encoder import encode_events


def encode_outgoing(events: pa.RecordBatch) -> pa.BinaryArray:
    """Each event (OUTGOING_SCHEMA) as a message."""
    return encode_events(events)


def encode_delivered(events: pa.RecordBatch) -> pa.BinaryArray:
    """Each event (EVENT_SCHEMA) as a message of a hub, with its annotations."""
    return encode_events(events)
