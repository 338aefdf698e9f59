"""Events as messages, one by one: what frames and batches are compared with."""

from __future__ import annotations

import pyarrow as pa

from hubline.amqp.events.encoder import delivered_pieces, outgoing_pieces
from hubline.amqp.events.pieces import join_pieces


def encode_outgoing(events: pa.RecordBatch) -> pa.BinaryArray:
    """Each event (OUTGOING_SCHEMA) as a message."""
    return join_pieces(outgoing_pieces(events))


def encode_delivered(events: pa.RecordBatch) -> pa.BinaryArray:
    """Each event (EVENT_SCHEMA) as a message of a hub, with its annotations."""
    return join_pieces(delivered_pieces(events))
