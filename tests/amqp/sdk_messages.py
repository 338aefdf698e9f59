"""Messages as peers send them: those of five official SDKs, byte by byte, and such as a test needs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from hubline.amqp.codec.encode import encode
from hubline.amqp.codec.message import MESSAGE_ANNOTATIONS, Data, Message, Properties
from hubline.amqp.codec.types import Array, Char, Decimal, Described, Float, Int, Symbol, Timestamp, UByte, UInt, ULong

PLACE: dict[object, object] = {
    Symbol("x-opt-sequence-number"): 2**40,
    Symbol("x-opt-offset"): "500",
    Symbol("x-opt-enqueued-time"): Timestamp(1_700_000_000_000),
}


_ALL_TYPES: dict[object, object] = {
    "text": "häuser", "empty": "", "none": None, "yes": True, "no": False, "ubyte": UByte(200), "uint": UInt(3),
    "zero": UInt(0), "ulong": ULong(2**64 - 1), "int": Int(-3), "long": -(2**63), "float": Float(0.1), "double": 21.5,
    "char": Char("ü"), "time": Timestamp(1_700_000_000_123), "binary": b"\x00\xff\x01\x02", "symbol": Symbol("s"),
    "decimal": Decimal(b"\x01\x02\x03\x04"),
}  # fmt: skip
REAL_PROPERTIES: Sequence[dict[object, object]] = [
    {},
    {"type": "telemetry", "source": "line-7"},
    _ALL_TYPES,
    {"nested": {"a": [1, None, True, 1.5, "x\"\\\n\x01é"], "b": {"c": b"bytes"}}, "list": [], "map": {}},
    {"array": Array((Int(1), Int(-2))), "symbols": Array((Symbol("a"), Symbol("b"))), "deep": [[[[["x"]]]]]},
    {"uri": Described(Symbol("com.microsoft:uri"), "amqps://x"), "span": Described(ULong(7), 12)},
    {"none": Described(ULong(0), None)},
]  # fmt: skip


def message_of(properties: dict[object, object], **changed: object) -> bytes:
    """An event of a hub with these properties of its application; some have properties of their own, and a key."""
    annotations = {**PLACE, Symbol("x-opt-other"): [1]}
    if len(properties) != 2:
        annotations[Symbol("x-opt-partition-key")] = "key"
    own = Properties(message_id="m", content_type="text/plain", creation_time=5) if "text" in properties else None
    return Message(
        Data((b"body",) * (1 + len(properties) // 3)),
        message_annotations=annotations,
        properties=own,
        application_properties=properties,
    ).encode()


def sdk_messages() -> Sequence[bytes]:
    """42 of each SDK, of as many shapes. The vectors leave their bodies out, of 200 bytes each."""
    vectors = json.loads((Path(__file__).parent / "vectors/sdk_messages.json").read_text())
    return [bytes.fromhex(message) + b"x" * 200 for sdk in vectors.values() for message in sdk["messages"]]


def placed(message: bytes) -> bytes:
    """A message that was sent, as a hub delivers it."""
    return encode(Described(ULong(MESSAGE_ANNOTATIONS), PLACE)) + message
