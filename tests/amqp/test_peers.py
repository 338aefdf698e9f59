"""Other people's AMQP: python-qpid-proton, azure-eventhub's own codec and rhea (npm) against hubline's, both ways."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from azure.eventhub import EventData, EventDataBatch
from azure.eventhub._pyamqp import _decode, _encode, performatives
from azure.eventhub._transport._pyamqp_transport import PyamqpTransport
from azure.eventhub._utils import get_last_enqueued_event_properties
from hypothesis import given

from hubline.amqp.codec.composites import Composite
from hubline.amqp.codec.decode import decode
from hubline.amqp.codec.encode import encode
from hubline.amqp.codec.message import Data, Message, Properties, Value
from hubline.amqp.codec.performatives import (
    RECEIVER,
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Open,
    Rejected,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    Source,
    Target,
    Transfer,
)
from hubline.amqp.codec.types import (
    Array,
    Byte,
    Char,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from hubline.amqp.events.decoder import EventDecoder, SentDecoder, join_messages
from hubline.amqp.events.encoder import encode_batches
from hubline.amqp.events.reference_decoder import BATCH_FORMAT, RuntimeMetrics, read_runtime_metrics
from hubline.amqp.transport.frames import FrameReader, encode_frame
from hubline.model.events import EVENT_SCHEMA, new_events
from tests.amqp.encoded import encode_delivered, encode_outgoing
from tests.amqp.encodings import fuzz, typed, values

# What is private or hardly typed over there is of any type here.
azure_decode: Any = _decode
azure_encode: Any = _encode
azure_frames: Any = performatives
azure_transport: Any = PyamqpTransport
peer: Any = pytest.importorskip("proton", reason="python-qpid-proton is built from C, and no compiler was found")

RHEA: Mapping[str, Mapping[str, str]] = json.loads((Path(__file__).parent / "vectors" / "rhea.json").read_text())
A_UUID = UUID("00112233-4455-6677-8899-aabbccddeeff")
SELECTOR = Symbol("apache.org:selector-filter:string")

RHEA_VALUES: Mapping[str, object] = {
    "null": None,
    "true": True,
    "false": False,
    "ubyte": UByte(200),
    "ushort": UShort(60000),
    "uint_zero": UInt(0),
    "uint_small": UInt(255),
    "uint": UInt(4000000000),
    "ulong_zero": ULong(0),
    "ulong_small": ULong(255),
    "ulong": ULong(9007199254740991),
    "byte": Byte(-100),
    "short": Short(-30000),
    "int_small": Int(-100),
    "int": Int(-2000000000),
    "long_small": -100,
    "long": -9007199254740991,
    "float": Float(1.5),
    "double": -0.1,
    "timestamp": Timestamp(1700000000123),
    "timestamp_negative": Timestamp(-1),
    "char": Char("é"),
    "uuid": A_UUID,
    "binary": b"\x00\xff",
    "binary_large": b"\x07" * 300,
    "string": "häuser",
    "string_large": "x" * 300,
    "symbol": Symbol("com.microsoft:epoch"),
    "symbol_large": Symbol("y" * 300),
    "list_empty": [],
    "list": [UInt(1), "two", [UInt(3), None]],
    "list_large": ["z"] * 300,
    "map": {"a": UInt(1), "b": True},
    "map_symbolic": {Symbol("c"): "d"},
    "array_symbol": Array([Symbol("one"), Symbol("two")]),
    "array_int": Array([Int(1), Int(-2)]),
    "array_empty": Array(),
    "described_symbol": Described(SELECTOR, "it"),
    "described_ulong": Described(ULong(77567109365764), "it"),
}

RHEA_FRAMES: Mapping[str, tuple[int, Composite, bytes]] = {
    "open": (
        0,
        Open("c", "h", 65536, 100, 60000, desired_capabilities=("one", "two"), properties={Symbol("product"): "p"}),
        b"",
    ),
    "begin": (3, Begin(None, 1, 2048, 4096), b""),
    "attach": (
        3,
        Attach(
            "l",
            0,
            RECEIVER,
            1,
            source=Source(
                "hub/ConsumerGroups/$Default/Partitions/0",
                filter={SELECTOR: Described(ULong(77567109365764), "amqp.annotation.x-opt-offset > '@latest'")},
            ),
            target=Target("t"),
            max_message_size=1048576,
            desired_capabilities=("com.microsoft:enable-receiver-runtime-metric",),
            properties={Symbol("com.microsoft:epoch"): 5},
        ),
        b"",
    ),
    "flow": (3, Flow(0, 10, 1, 20, 0, 0, 1000), b""),
    "transfer": (3, Transfer(0, 9, b"t", 0, settled=True), b"payload"),
    "disposition": (3, Disposition(RECEIVER, 1, 2, settled=True, state=Accepted()), b""),
    "rejected": (3, Disposition(RECEIVER, 1, settled=True, state=Rejected(Error("amqp:link:stolen", "d"))), b""),
    "detach": (3, Detach(0, closed=True, error=Error("amqp:not-found", "no")), b""),
    "end": (3, End(), b""),
    "close": (0, Close(Error("amqp:connection:forced", "bye")), b""),
    "sasl_mechanisms": (0, SaslMechanisms(("MSSBCBS", "ANONYMOUS")), b""),
    "sasl_init": (0, SaslInit("ANONYMOUS", b"\x00k", "h"), b""),
    "sasl_outcome": (0, SaslOutcome(0), b""),
}


@pytest.mark.parametrize("name", RHEA["values"])
def test_a_value_of_rhea_is_read(name: str) -> None:
    assert typed(decode(bytes.fromhex(RHEA["values"][name]))) == typed(RHEA_VALUES[name])


@pytest.mark.parametrize("name", RHEA["performatives"])
def test_a_frame_of_rhea_is_read(name: str) -> None:
    frame = _single_frame(bytes.fromhex(RHEA["performatives"][name]))
    assert (frame.channel, frame.performative, frame.payload) == RHEA_FRAMES[name]


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize(
    ("name", "body", "properties"),
    [
        ("data", b"body", []),
        ("data_parts", b"body", []),
        ("value", b"body", []),
        ("value_map", b'{"a":[1,2.5,null,true]}', []),
        ("sequence", b'[1,"a"]', []),
        (
            "everything",
            b"\x01" * 300,
            [
                ("amqp:message-id", "id"),
                ("amqp:to", "hub"),
                ("amqp:subject", "s"),
                ("amqp:reply-to", "r"),
                ("amqp:correlation-id", "c"),
                ("amqp:content-type", "text/plain"),
                ("amqp:creation-time", "2023-11-14T22:13:20.000Z"),
                ("amqp:group-id", "g"),
                ("amqp:group-sequence", "3"),
                ("text", "häuser"),
                ("number", "5"),
                ("negative", "-5"),
                ("real", "0.25"),
                ("yes", "true"),
                ("nothing", None),
                ("time", "1970-01-01T00:00:00.000Z"),
                ("uuid", str(A_UUID)),
            ],
        ),
    ],
)
def test_messages_of_rhea_are_events(name: str, body: bytes, properties: list[tuple[str, str]], count: int) -> None:
    message = bytes.fromhex(RHEA["messages"][name])
    batch = EventDecoder("3").decode(*join_messages([message] * count))
    assert batch.to_pylist() == [_row(body=body, properties=properties or None)] * count


def test_everything_in_a_message_of_rhea_is_read() -> None:
    message = Message.decode(bytes.fromhex(RHEA["messages"]["everything"]))
    assert message.header is not None
    assert (message.header.durable, message.header.priority, message.header.ttl) == (True, 7, 1000)
    assert message.properties == Properties(
        "id",
        to="hub",
        subject="s",
        reply_to="r",
        correlation_id="c",
        content_type="text/plain",
        creation_time=1700000000000,
        group_id="g",
        group_sequence=3,
    )
    assert message.footer == {"f": 1}
    assert message.body == Data((b"\x01" * 300,))


# What proton has a type for, and how its value becomes ours.
_PROTON: Mapping[type, Callable[[Any], object]] = {
    type(None): lambda value: value,
    bool: bool,
    peer.ubyte: UByte,
    peer.ushort: UShort,
    peer.uint: UInt,
    peer.ulong: ULong,
    peer.byte: Byte,
    peer.short: Short,
    peer.int32: Int,
    int: int,
    peer.timestamp: Timestamp,
    peer.float32: Float,
    float: float,
    peer.char: Char,
    UUID: lambda value: value,
    bytes: bytes,
    str: str,
    peer.symbol: Symbol,
}
_TO_PROTON: Mapping[type, Callable[[Any], object]] = {
    UByte: peer.ubyte,
    UShort: peer.ushort,
    UInt: peer.uint,
    ULong: peer.ulong,
    Byte: peer.byte,
    Short: peer.short,
    Int: peer.int32,
    Timestamp: peer.timestamp,
    Float: peer.float32,
    Char: peer.char,
    Symbol: peer.symbol,
}


@given(values)
@fuzz
def test_proton_writes_what_hubline_reads_and_reads_what_it_writes(value: object) -> None:
    theirs = peer.Data()
    try:
        theirs.put_object(_to_proton(value))
    except _NotOfProton:
        return
    assert typed(decode(theirs.encode())) == typed(value)
    read = peer.Data()
    ours = encode(value)
    assert read.decode(ours) == len(ours)
    assert read.encode() == theirs.encode()


@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("inferred", [True, False], ids=["data", "value"])
def test_messages_of_proton_are_events(inferred: bool, count: int) -> None:
    message = peer.Message(
        body=b"body",
        id="id",
        properties={"number": 1, "text": "x", "nothing": None, "real": 1.5, "large": peer.ulong(2**64 - 1)},
        annotations={
            peer.symbol("x-opt-sequence-number"): 12345678901,
            peer.symbol("x-opt-offset"): "987654",
            peer.symbol("x-opt-enqueued-time"): peer.timestamp(1700000000123),
            peer.symbol("x-opt-partition-key"): "key",
        },
    )
    message.inferred = inferred
    batch = EventDecoder("3").decode(*join_messages([message.encode()] * count))
    properties = [("amqp:message-id", "id"), ("number", "1"), ("text", "x"), ("nothing", None), ("real", "1.5")]
    properties.append(("large", str(2**64 - 1)))
    assert batch.to_pylist() == [_row(body=b"body", properties=properties)] * count


def test_proton_reads_messages_of_hubline() -> None:
    message = Message(
        Value({"a": [1]}),
        Properties(message_id=A_UUID, reply_to="r", correlation_id=ULong(7), content_type="t"),
        {"p": "v", "n": Int(3)},
        {Symbol("x-opt-partition-key"): "key"},
    )
    read = peer.Message()
    read.decode(message.encode())
    assert (read.id, read.reply_to, read.correlation_id, read.content_type) == (A_UUID, "r", 7, "t")
    assert read.body == {"a": [1]}
    assert read.properties == {"p": "v", "n": 3}
    assert read.annotations == {"x-opt-partition-key": "key"}


@pytest.mark.parametrize("count", [1, 5, 100])
def test_proton_and_azure_read_what_is_delivered(count: int) -> None:
    events = _delivered(count)
    for message, event in zip(encode_delivered(events).to_pylist(), events.to_pylist(), strict=True):
        theirs = peer.Message()
        theirs.decode(message)
        assert theirs.body == event["body"]
        assert theirs.annotations["x-opt-sequence-number"] == event["sequenceNumber"]
        assert theirs.annotations["x-opt-offset"] == event["offset"]
        assert theirs.annotations["x-opt-enqueued-time"] == event["enqueuedTime"].timestamp() * 1000
        assert theirs.annotations.get("x-opt-partition-key") == event["partitionKey"]
        assert list((theirs.properties or {}).items()) == (event["properties"] or [])
        azure: Any = EventData._from_message(azure_decode.decode_payload(memoryview(message)))
        assert (azure.sequence_number, azure.offset) == (event["sequenceNumber"], event["offset"])
        assert azure.enqueued_time == event["enqueuedTime"]
        assert azure.partition_key == (event["partitionKey"] and event["partitionKey"].encode())
        assert b"".join(azure.body) == event["body"]


def test_azure_reads_the_newest_event_of_the_partition() -> None:
    metrics = RuntimeMetrics(7, "700", 1_700_000_000_000, 1_700_000_000_999)
    message = metrics.encode() + encode_delivered(_delivered(1))[0].as_py()
    assert read_runtime_metrics(message, 0, len(message)) == metrics
    azure: Any = EventData._from_message(azure_decode.decode_payload(memoryview(message)))
    reported: Any = get_last_enqueued_event_properties(azure)
    assert (reported["sequence_number"], reported["offset"]) == (7, "700")
    assert reported["enqueued_time"] == datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)


@pytest.mark.parametrize("count", [1, 5, 100])
def test_a_batch_of_azure_is_taken_apart(count: int) -> None:
    batch = EventDataBatch(max_size_in_bytes=1024 * 1024, partition_key="all")
    for number in range(count):
        event = EventData(b"x" * number)
        event.properties = {"number": number, "text": "é" * number, "yes": True}
        event.message_id = f"id-{number}"
        batch.add(event)
    payload = azure_encode.encode_payload(bytearray(), batch._message)
    assert SentDecoder().decode(payload, BATCH_FORMAT).to_pylist() == [
        {
            "body": b"x" * number,
            "partitionKey": "all",
            "properties": [
                ("amqp:message-id", f"id-{number}"),
                ("number", str(number)),
                ("text", "é" * number),
                ("yes", "true"),
                ("amqp:types", '{"number":"int","yes":"boolean"}'),
            ],
        }
        for number in range(count)
    ]


def test_a_single_message_of_azure_is_taken() -> None:
    event = EventData("text")
    event.properties = {"n": 1.5}
    message = azure_transport.to_outgoing_amqp_message(event.raw_amqp_message)
    payload = azure_encode.encode_payload(bytearray(), message)
    assert SentDecoder().decode(payload, 0).to_pylist() == [
        {"body": b"text", "partitionKey": None, "properties": [("n", "1.5"), ("amqp:types", '{"n":"double"}')]}
    ]


@pytest.mark.parametrize("count", [1, 5, 100])
def test_azure_reads_the_batches_of_hubline(count: int) -> None:
    events = new_events(
        [{"body": bytes(number), "properties": {"n": str(number)} if number % 2 else {}} for number in range(count)]
    )
    (batch,) = encode_batches(events, max_bytes=1024 * 1024, partition_key="all")
    outer = azure_decode.decode_payload(memoryview(batch.payload))
    assert outer.message_annotations == {b"x-opt-partition-key": b"all"}
    inner = [azure_decode.decode_payload(memoryview(data)) for data in outer.data]
    assert [b"".join(message.data) for message in inner] == [bytes(number) for number in range(count)]
    assert [message.application_properties for message in inner] == [
        {b"n": str(number).encode()} if number % 2 else None for number in range(count)
    ]
    assert [bytes(data) for data in outer.data] == encode_outgoing(events).to_pylist()


@pytest.mark.parametrize(
    "performative",
    [performative for _, performative, payload in RHEA_FRAMES.values() if performative.CODE < SaslMechanisms.CODE],
    ids=lambda performative: type(performative).__name__,
)
def test_azure_finds_every_field_of_a_performative(performative: Composite) -> None:
    """It addresses fields by number: none may be left out."""
    frame = encode_frame(3, performative)
    code, fields = azure_decode.decode_frame(memoryview(frame)[8:])
    assert code == performative.CODE
    theirs = {kind._code: kind for kind in vars(azure_frames).values() if hasattr(kind, "_code")}[code]
    if code == Transfer.CODE:
        fields.pop()  # the payload
    assert len(fields) == len([field for field in theirs._definition if field is not None])


def test_frames_of_azure_are_read() -> None:
    frame = azure_frames.OpenFrame(
        container_id="c",
        hostname="h",
        max_frame_size=65536,
        channel_max=100,
        idle_timeout=60000,
        outgoing_locales=None,
        incoming_locales=None,
        offered_capabilities=None,
        desired_capabilities=["one"],
        properties={"product": "p"},
    )
    header, body = azure_encode.encode_frame(frame)
    read = _single_frame(header + b"\x00\x03"[: 8 - len(header)] + bytes(body))
    assert isinstance(read.performative, Open)
    assert (read.performative.container_id, read.performative.max_frame_size) == ("c", 65536)
    assert read.performative.properties == {Symbol("product"): "p"}


def _single_frame(data: bytes) -> Any:
    reader = FrameReader(frame_bytes_max=65536)
    reader.writable()[: len(data)] = data
    reader.filled(len(data))
    frame = reader.take_frame()
    assert frame is not None
    assert reader.is_empty
    return frame


def _row(**changed: object) -> dict[str, object]:
    return {
        "body": b"",
        "partition": "3",
        "offset": "987654",
        "sequenceNumber": 12345678901,
        "enqueuedTime": datetime(2023, 11, 14, 22, 13, 20, 123000, UTC),
        "partitionKey": "key",
        "properties": None,
        **changed,
    }


def _delivered(count: int) -> pa.RecordBatch:
    numbers = range(count)
    columns = [
        [bytes(number * 5) for number in numbers],
        ["3"] * count,
        [str(number * 1000) for number in numbers],
        list(numbers),
        [1_700_000_000_000_000 + number * 1000 for number in numbers],
        [f"key-{number}" if number % 3 else None for number in numbers],
        [[("a", "b"), ("n", str(number))] if number % 2 else None for number in numbers],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, EVENT_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA)


class _NotOfProton(Exception):
    """Proton for Python has no such value, or alters it."""


def _to_proton(value: object) -> object:
    if isinstance(value, Described):
        if isinstance(value.value, Described):  # proton 0.40 loses count of what follows one in a list
            raise _NotOfProton
        return peer.Described(_to_proton(value.descriptor), _to_proton(value.value))
    if isinstance(value, dict):
        return {_to_proton(key): _to_proton(item) for key, item in value.items()}
    if type(value) in (list, tuple):
        return [_to_proton(item) for item in value]  # type: ignore[attr-defined]
    if type(value) in _TO_PROTON:
        return _TO_PROTON[type(value)](value)
    if type(value) in _PROTON:
        return value
    raise _NotOfProton
