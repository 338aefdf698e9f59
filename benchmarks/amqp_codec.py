"""The AMQP codec, beside that of azure-eventhub (pure Python) on the same bytes.

Events per CPU-second of this process, without a socket: from received bytes to Arrow columns and back. Rounds of both
take turns, and the best of each counts: the machine is shared.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import numpy as np
import pyarrow as pa
from azure.eventhub import EventData, EventDataBatch
from azure.eventhub._pyamqp import _decode, _encode
from azure.eventhub._pyamqp.message import Message as AzureMessage
from azure.eventhub._pyamqp.performatives import TransferFrame

from benchmarks.harness import Result, benchmark
from hubline.amqp.codec.encode import encode
from hubline.amqp.codec.message import MESSAGE_ANNOTATIONS, Message
from hubline.amqp.codec.performatives import Transfer
from hubline.amqp.codec.types import Described, Symbol, Timestamp, ULong
from hubline.amqp.events.decoder import EventDecoder, SentDecoder
from hubline.amqp.events.encoder import Destination, encode_batches, encode_deliveries
from hubline.amqp.events.reference_decoder import BATCH_FORMAT
from hubline.amqp.transport.frames import FrameReader, encode_frame
from hubline.amqp.transport.transfer_runs import Deliveries
from hubline.model.events import EVENT_SCHEMA, OUTGOING_SCHEMA

EVENT_COUNT: Final = 20_000
# The peer is slow: so many of the events give its figure well enough.
PEER_EVENT_COUNT: Final = 2_000
ROUNDS: Final = 7
# Of the messages of the SDKs: as many shapes as a busy hub was seen to have.
SHAPES_COUNT: Final = 206

FRAME_BYTES_MAX: Final = 64 * 1024
BATCH_BYTES_MAX: Final = 1024 * 1024
LINK: Final = Destination(channel=1, handle=0, frame_bytes_max=FRAME_BYTES_MAX)
DECODER: Final = "azure-eventhub's own decoder"
ENCODER: Final = "azure-eventhub's own encoder"

# Its functions are private and hardly typed.
azure_decode: Any = _decode
azure_encode: Any = _encode


@benchmark("amqp-codec-decode-200b")
def decode_200b() -> Iterator[Result]:
    yield _decode_result("amqp-codec-decode-200b", _delivered(200))


@benchmark("amqp-codec-decode-1k")
def decode_1k() -> Iterator[Result]:
    yield _decode_result("amqp-codec-decode-1k", _delivered(1024))


@benchmark("amqp-codec-decode-properties")
def decode_properties() -> Iterator[Result]:
    """Events of many sizes, with a key and three properties."""
    yield _decode_result("amqp-codec-decode-properties", _delivered(200, with_properties=True))


@benchmark("amqp-many-shapes")
def many_shapes() -> Iterator[Result]:
    """Events as the SDKs of five languages send them: of 206 shapes, in any order, nested, with annotations or not."""
    shapes = _sdk_messages()
    yield _frames_result("amqp-many-shapes", [_placed(number, _of(shapes, number)) for number in range(EVENT_COUNT)])
    random = Random(0)
    shuffled = [_placed(number, _shuffled(_of(shapes, number), random)) for number in range(EVENT_COUNT)]
    yield _frames_result("amqp-many-shapes-random-order", shuffled)
    nested = [_placed(number, _nested(number, _of(shapes, number))) for number in range(EVENT_COUNT)]
    yield _frames_result("amqp-many-shapes-nested", nested)


@benchmark("amqp-codec-encode-200b")
def encode_200b() -> Iterator[Result]:
    events = _delivered(200).select(OUTGOING_SCHEMA.names)
    bodies = events.column("body").to_pylist()[:PEER_EVENT_COUNT]
    yield _result("amqp-codec-encode-200b", partial(_encode_batches, events), partial(_azure_encode, bodies), ENCODER)


@benchmark("amqp-codec-deliver-200b")
def deliver_200b() -> Iterator[Result]:
    events = _delivered(200)
    rows = events.slice(0, PEER_EVENT_COUNT).to_pylist()
    yield _result("amqp-codec-deliver-200b", partial(_encode_frames, events), partial(_azure_deliver, rows), ENCODER)


@benchmark("amqp-codec-take-in-200b")
def take_in_200b() -> Iterator[Result]:
    events = _delivered(200).select(OUTGOING_SCHEMA.names)
    payloads = [bytes(batch.payload) for batch in encode_batches(events, max_bytes=BATCH_BYTES_MAX)]
    (peer,) = encode_batches(events.slice(0, PEER_EVENT_COUNT), max_bytes=BATCH_BYTES_MAX)
    yield _result(
        "amqp-codec-take-in-200b", partial(_take_in, payloads), partial(_azure_take_in, bytes(peer.payload)), DECODER
    )


def _sdk_messages() -> Sequence[bytes]:
    """What each SDK sends: the vectors of the tests, which leave the bodies of 200 bytes out."""
    vectors = json.loads((Path(__file__).parents[1] / "tests/amqp/vectors/sdk_messages.json").read_text())
    messages = [bytes.fromhex(message) + b"x" * 200 for sdk in vectors.values() for message in sdk["messages"]]
    return messages[:SHAPES_COUNT]


def _of(shapes: Sequence[bytes], number: int) -> bytes:
    return shapes[number * 7919 % len(shapes)]


def _placed(number: int, message: bytes) -> bytes:
    """A message as the hub delivers it; some have more annotations than others."""
    annotations: dict[object, object] = {
        Symbol("x-opt-sequence-number"): 70_000_000 + number,
        Symbol("x-opt-offset"): str(4_000_000_000_000 + number * 300),
        Symbol("x-opt-enqueued-time"): Timestamp(1_700_000_000_000 + number // 100),
    }
    if number % 3 == 0:
        annotations[Symbol("x-opt-publisher")] = f"device-{number % 1000}"
    if number % 5 == 0:
        annotations[Symbol("iothub-interface-id")] = {"id": number % 17, "tags": ["a", "b"]}
    return encode(Described(ULong(MESSAGE_ANNOTATIONS), annotations)) + message


def _shuffled(message: bytes, random: Random) -> bytes:
    read = Message.decode(message)
    properties = list((read.application_properties or {}).items())
    random.shuffle(properties)
    return replace(read, application_properties=dict(properties)).encode()


def _nested(number: int, message: bytes) -> bytes:
    read = Message.decode(message)
    position = {"at": [number / 8, 13.4, None], "by": {"id": number, "ok": number % 2 == 0, "unit": "km/h"}}
    return replace(read, application_properties={**(read.application_properties or {}), "position": position}).encode()


def _frames_result(name: str, messages: Sequence[bytes]) -> Result:
    frames = [
        encode_frame(LINK.channel, Transfer(LINK.handle, number, b"\x00", 0, settled=True), message)
        for number, message in enumerate(messages)
    ]
    return _stream_result(name, b"".join(frames), frames[:PEER_EVENT_COUNT])


def _decode_result(name: str, events: pa.RecordBatch) -> Result:
    stream = b"".join(encode_deliveries(events, LINK, first_delivery_id=0))
    peer_events = events.slice(0, PEER_EVENT_COUNT)
    frames = [
        b"".join(encode_deliveries(peer_events.slice(row, 1), LINK, first_delivery_id=row))
        for row in range(PEER_EVENT_COUNT)
    ]
    return _stream_result(name, stream, frames)


def _stream_result(name: str, stream: bytes, frames: Sequence[bytes]) -> Result:
    reader, decoder = FrameReader(frame_bytes_max=FRAME_BYTES_MAX), EventDecoder("0")
    _receive(reader, decoder, stream)  # the buffer grows with what a peer sends at once; from then on it stays
    return _result(name, partial(_receive, reader, decoder, stream), partial(_azure_receive, frames), DECODER)


def _result(name: str, measured: Callable[[], int], peer: Callable[[], int], against: str) -> Result:
    rates = [(_rate(measured), _rate(peer)) for _ in range(ROUNDS)]
    rate, peer_rate = (max(column) for column in zip(*rates, strict=True))
    return Result(name, rate, "events/CPU-s", ratio=rate / peer_rate, against=against)


def _rate(call: Callable[[], int]) -> float:
    start = time.process_time()
    count = call()
    return count / (time.process_time() - start)


def _receive(reader: FrameReader, decoder: EventDecoder, stream: bytes) -> int:
    """As a client does: into a buffer, to frames, to columns."""
    position = count = 0
    while position < len(stream):
        free = reader.writable()
        part = stream[position : position + len(free)]
        free[: len(part)] = part
        reader.filled(len(part))
        position += len(part)
        for item in reader.take_frames():
            if isinstance(item, Deliveries):
                count += len(decoder.decode(item.data, item.starts, item.ends))
    return count


def _azure_receive(frames: Sequence[bytes]) -> int:
    for frame in frames:
        _, fields = azure_decode.decode_frame(memoryview(frame)[8:])
        azure_decode.decode_payload(fields[-1])
    return len(frames)


def _encode_batches(events: pa.RecordBatch) -> int:
    return sum(batch.count for batch in encode_batches(events, max_bytes=BATCH_BYTES_MAX))


def _azure_encode(bodies: Sequence[bytes]) -> int:
    batch = EventDataBatch(max_size_in_bytes=BATCH_BYTES_MAX)
    for body in bodies:
        batch.add(EventData(body))
    azure_encode.encode_payload(bytearray(), batch._message)
    return len(bodies)


def _encode_frames(events: pa.RecordBatch) -> int:
    assert all(len(part) for part in encode_deliveries(events, LINK, first_delivery_id=0))
    return len(events)


def _azure_deliver(rows: Sequence[dict[str, Any]]) -> int:
    for number, row in enumerate(rows):
        annotations: dict[str | bytes, Any] = {
            b"x-opt-sequence-number": row["sequenceNumber"],
            b"x-opt-offset": row["offset"],
            b"x-opt-enqueued-time": row["enqueuedTime"],
        }
        message = AzureMessage(data=[row["body"]], message_annotations=annotations)
        payload = azure_encode.encode_payload(bytearray(), message)
        azure_encode.encode_frame(
            TransferFrame(
                handle=0, delivery_id=number, delivery_tag=b"\x00", message_format=0, settled=True, payload=payload
            )
        )
    return len(rows)


def _take_in(payloads: Sequence[bytes]) -> int:
    decoder = SentDecoder()
    return sum(len(decoder.decode(payload, BATCH_FORMAT)) for payload in payloads)


def _azure_take_in(payload: bytes) -> int:
    batch = azure_decode.decode_payload(memoryview(payload))
    for message in batch.data:
        azure_decode.decode_payload(memoryview(message))
    return len(batch.data)


def _delivered(body_bytes: int, *, with_properties: bool = False) -> pa.RecordBatch:
    random = np.random.default_rng(0)
    numbers = range(EVENT_COUNT)
    bodies = [random.bytes(body_bytes) for _ in numbers]
    keys: list[str | None] = [None] * EVENT_COUNT
    properties: list[list[tuple[str, str]] | None] = [None] * EVENT_COUNT
    if with_properties:
        keys = [f"device-{number % 1000}" for number in numbers]
        properties = [
            [("type", "telemetry"), ("source", f"line-{number % 17}"), ("number", str(number))] for number in numbers
        ]
    columns: Sequence[Sequence[object]] = [
        bodies,
        ["0"] * EVENT_COUNT,
        [str(4_000_000_000_000 + number * (body_bytes + 100)) for number in numbers],
        [70_000_000 + number for number in numbers],
        [1_700_000_000_000_000 + number // 100 * 1000 for number in numbers],
        keys,
        properties,
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, EVENT_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA)
