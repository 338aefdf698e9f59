"""Properties of messages, and their types, in a map of text: what goes in comes out."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given

from hubline.amqp.codec.data_sections import DATA_SECTIONS
from hubline.amqp.codec.message import Data, Message, Properties
from hubline.amqp.codec.property_types import FIELDS, TYPES, encode_properties
from hubline.amqp.codec.types import (
    Byte,
    Char,
    Decimal,
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
from hubline.amqp.events.decoder import BULK_COUNT_MIN, SentDecoder
from hubline.amqp.events.reference_decoder import BATCH_FORMAT
from hubline.model.events import OUTGOING_SCHEMA, new_events
from tests.amqp.encoded import encode_outgoing
from tests.amqp.encodings import fuzz, simple, typed

A_UUID = UUID(int=7)

VALUES: dict[object, object] = {
    "text": "häuser",
    "empty": "",
    "nothing": None,
    "yes": True,
    "no": False,
    "ubyte": UByte(1),
    "ushort": UShort(2),
    "uint": UInt(3),
    "uint 0": UInt(0),
    "ulong": ULong(2**64 - 1),
    "byte": Byte(-1),
    "short": Short(-2),
    "int": Int(-3),
    "long": 2**62,
    "float": Float(0.5),
    "double": float("inf"),
    "decimal": Decimal(b"\x01\x02\x03\x04"),
    "char": Char("ü"),
    "time": Timestamp(1_700_000_000_123),
    "no time": Timestamp(2**62),
    "uuid": A_UUID,
    "binary": b"\x00\xff",
    "symbol": Symbol("s"),
}

OWN = Properties(
    message_id=A_UUID,
    user_id=b"\x01",
    to="to",
    subject="subject",
    reply_to="reply",
    correlation_id=ULong(9),
    content_type="application/json",
    content_encoding="gzip",
    absolute_expiry_time=1,
    creation_time=2,
    group_id="group",
    group_sequence=3,
    reply_to_group_id="other",
)


def through(messages: Sequence[Message]) -> list[Message]:
    """Messages as an endpoint takes them and gives them out."""
    encoded = [message.encode() for message in messages]
    payload = b"".join(b"\x00\x53\x75\xb0" + len(message).to_bytes(4, "big") + message for message in encoded)
    events = SentDecoder().decode(payload, BATCH_FORMAT)
    return [Message.decode(message) for message in encode_outgoing(events).to_pylist()]


@pytest.mark.parametrize("count", [1, BULK_COUNT_MIN * 2])
def test_properties_of_every_type_come_back_as_they_were(count: int) -> None:
    sent = [Message(Data((b"x",)), properties=OWN, application_properties=VALUES)] * count
    for message in through(sent):
        assert message.properties == OWN
        assert typed(message.properties.message_id) == typed(A_UUID)
        assert message.application_properties is not None
        assert typed(dict(message.application_properties)) == typed(VALUES)


@given(simple)
@fuzz
def test_any_simple_value_comes_back_as_it_was(value: object) -> None:
    (message,) = through([Message(Data((b"",)), application_properties={"a": value, "b": "text"})])
    assert message.application_properties is not None
    assert typed(message.application_properties["a"]) == typed(value)


def test_events_with_and_without_such_properties_are_kept_apart() -> None:
    kinds: list[dict[object, object] | None] = [{"n": Int(1)}, {"text": "t"}, None, {"n": "1"}, {"b": b"1", "t": "t"}]
    sent = [Message(Data((b"%d" % number,)), application_properties=kinds[number % 5]) for number in range(100)]
    assert [typed(message) for message in through(sent)] == [typed(message) for message in sent]


def test_strings_are_noted_nowhere() -> None:
    payload = Message(Data((b"x",)), application_properties={"a": "b"}).encode()
    assert SentDecoder().decode(payload, 0).column("properties").to_pylist() == [[("a", "b")]]


def test_values_of_no_simple_type_come_back_as_text() -> None:
    (message,) = through([Message(Data((b"",)), application_properties={"list": [1, "a"], "n": Int(1)})])
    assert message.application_properties == {"list": '[1,"a"]', "n": 1}


@pytest.mark.parametrize(
    "pairs",
    [
        [("n", "1"), (TYPES, "no json")],
        [("n", "1"), (TYPES, "[" * 100_000)],
        [("n", "1"), (TYPES, '["n"]')],
        [("n", "one"), (TYPES, '{"n":"int"}')],
        [("n", "300"), (TYPES, '{"n":"ubyte"}')],
        [("n", "1"), (TYPES, '{"n":["int"]}')],
        [("n", "1"), (TYPES, '{"n":"list","m":"int"}')],
        [("n", "ü"), (TYPES, '{"n":"symbol"}')],
        [("n", "ab"), (TYPES, '{"n":"char"}')],
        [("n", "=="), (TYPES, '{"n":"binary"}')],
        [("n", "0x01"), (TYPES, '{"n":"decimal"}')],
        [("n", "Z"), (TYPES, '{"n":"timestamp"}')],
    ],
)
def test_types_that_make_no_sense_leave_text(pairs: list[tuple[str, str]]) -> None:
    message = Message.decode(encode_properties(pairs) + Message(Data((b"",))).encode())
    assert message.application_properties == dict(pairs[:1])


def test_what_does_not_fit_a_field_is_an_application_property() -> None:
    pairs = [("amqp:content-type", "ü"), ("amqp:group-sequence", "-1"), ("amqp:to", None), ("amqp:other", "x")]
    message = Message.decode(encode_properties(pairs) + Message(Data((b"",))).encode())
    assert message.properties is None
    assert message.application_properties == dict(pairs)


def test_every_field_can_be_set_by_its_name() -> None:
    texts = dict.fromkeys(FIELDS, "7") | {"amqp:user-id": "Nw=="}
    (encoded,) = encode_outgoing(new_events([{"body": b"x", "properties": texts}])).to_pylist()
    properties = Message.decode(encoded).properties
    assert properties == Properties("7", b"7", "7", "7", "7", "7", "7", "7", 7, 7, "7", 7, "7")


@pytest.mark.parametrize("properties", [None, {}, {"amqp:data-section": "[1,2]"}, {"a-key-of-18-bytes.": "[1,2]"}])
def test_body_without_a_note_of_its_sections_has_one(properties: dict[str, str] | None) -> None:
    events = new_events([{"body": b"abc", "properties": properties}] * 3)
    assert [Message.decode(each).body for each in encode_outgoing(events).to_pylist()] == [Data((b"abc",))] * 3


def test_sections_of_a_part_of_a_batch_are_those_of_its_events() -> None:
    notes = [{DATA_SECTIONS: "[1,2]"}, {"a": "b"}, {DATA_SECTIONS: "[2,1]", "a": "b"}, {}]
    rows = [{"body": b"abc", "properties": notes[number % 4]} for number in range(40)]
    bodies = [Message.decode(each).body for each in encode_outgoing(new_events(rows).slice(3, 8)).to_pylist()]
    kinds = [Data((b"a", b"bc")), Data((b"abc",)), Data((b"ab", b"c")), Data((b"abc",))]
    assert bodies == [kinds[number % 4] for number in range(3, 11)]


def test_a_part_of_a_batch_is_encoded_as_it_is_alone() -> None:
    rows = [{"body": b"%d" % n, "properties": {"amqp:subject": str(n)} if n % 3 else {"a": str(n)}} for n in range(30)]
    events = new_events(rows)
    assert encode_outgoing(events.slice(7, 11)).to_pylist() == encode_outgoing(new_events(rows[7:18])).to_pylist()
    nulls = pa.RecordBatch.from_pylist([{"body": b"x"}, *events.to_pylist()], schema=OUTGOING_SCHEMA)
    assert encode_outgoing(nulls).to_pylist()[1:] == encode_outgoing(events).to_pylist()
