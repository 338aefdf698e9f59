"""Performatives: at full length when written, however short when read, and each field of its type."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubline.amqp.codec.composites import Composite
from hubline.amqp.codec.decode import decode
from hubline.amqp.codec.encode import encode
from hubline.amqp.codec.message import Data, Header, Message, Properties, Sequences, Value
from hubline.amqp.codec.performatives import (
    PERFORMATIVES,
    RECEIVER,
    SASL_PERFORMATIVES,
    SENDER,
    Accepted,
    Attach,
    Begin,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Modified,
    Open,
    Received,
    Rejected,
    Released,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    Source,
    Target,
    Transfer,
)
from hubline.amqp.codec.types import Array, Described, Int, Symbol, UInt, ULong
from hubline.amqp.transport.errors import AmqpDecodeError, AmqpEncodeError
from tests.amqp.encodings import fuzz, spell, values

ERROR = Error("amqp:link:stolen", "another reader took it", {Symbol("who"): "b"})
SOURCE = Source("hub", filter={Symbol("f"): Described(Symbol("f"), "x > 1")}, outcomes=("amqp:accepted:list",))

# Each with all its fields, and how many there are.
EVERYTHING: Sequence[tuple[Composite, int]] = [
    (Open("c", "h", 512, 5, 60000, ("en",), ("de",), ("o",), ("d", "e"), {Symbol("p"): 1}), 10),
    (Begin(1, 2, 3, 4, 5, ("o",), ("d",), {Symbol("p"): 1}), 8),
    (Attach("l", 1, RECEIVER, 1, 1, SOURCE, Target("t"), {}, True, 5, 2**40, ("o",), ("d",), {Symbol("p"): 1}), 14),
    (Flow(1, 2, 3, 4, 5, 6, 7, 8, True, True, {Symbol("p"): 1}), 11),
    (Transfer(1, 2, b"t", 3, True, True, 1, Accepted(), True, True, True), 11),
    (Disposition(SENDER, 1, 2, True, Rejected(ERROR), True), 6),
    (Detach(1, True, ERROR), 3),
    (End(ERROR), 1),
    (Close(ERROR), 1),
]
SASL: Sequence[Composite] = [
    SaslMechanisms(("MSSBCBS", "ANONYMOUS")),
    SaslInit("ANONYMOUS", b"r", "h"),
    SaslChallenge(b"c"),
    SaslResponse(b"r"),
    SaslOutcome(1, b"a"),
]


def _name(value: object) -> str:
    return type(value).__name__


@pytest.mark.parametrize(("performative", "length"), EVERYTHING, ids=_name)
def test_every_field_comes_back_and_none_is_left_out(performative: Composite, length: int) -> None:
    assert PERFORMATIVES.decode(performative.encode()) == performative
    assert len(_fields(performative)) == length


@pytest.mark.parametrize(
    ("performative", "length"),
    [
        (Open("c"), 10),
        (Begin(), 8),
        (Attach("l", 1, SENDER), 14),
        (Flow(), 11),
        (Transfer(1), 11),
        (Disposition(SENDER, 1), 6),
        (Detach(1), 3),
        (End(), 1),
        (Close(), 1),
    ],
    ids=_name,
)
def test_what_is_absent_is_written_as_null(performative: Composite, length: int) -> None:
    assert len(_fields(performative)) == length
    assert PERFORMATIVES.decode(performative.encode()) == performative


@pytest.mark.parametrize("performative", SASL, ids=_name)
def test_sasl_comes_back(performative: Composite) -> None:
    assert SASL_PERFORMATIVES.decode(performative.encode()) == performative


@pytest.mark.parametrize(
    "state", [Accepted(), Released(), Rejected(), Rejected(ERROR), Modified(True, True), Received(1, 2)]
)
def test_every_outcome_comes_back(state: Accepted | Released | Rejected | Modified | Received) -> None:
    disposition = Disposition(RECEIVER, 1, state=state)
    assert PERFORMATIVES.decode(disposition.encode()) == disposition


def test_an_error_is_a_list_of_three() -> None:
    assert len(_fields(Error("amqp:not-found"))) == 3


@pytest.mark.parametrize(("performative", "length"), EVERYTHING, ids=_name)
@given(seed=st.integers(0, 2**32))
@fuzz
def test_trailing_fields_may_be_absent_and_the_descriptor_symbolic(
    performative: Composite, length: int, seed: int
) -> None:
    random = Random(seed)
    fields = _fields(performative)
    kept = random.randint(_required_count(type(performative)), length)
    descriptor = random.choice([ULong(performative.CODE), Symbol(performative.NAME)])
    short = PERFORMATIVES.decode(spell(Described(descriptor, fields[:kept]), random))
    rest = Described(ULong(performative.CODE), fields[:kept] + [None] * (length - kept))
    assert short == PERFORMATIVES.decode(encode(rest))
    if kept == length:
        assert short == performative


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ([], "container_id"),
        ([None], "container_id"),
        ([5], "container_id has to be string, not int"),
        (["c", "h", "large"], "max_frame_size has to be uint, not str"),
        (["c", "h", Int(5)], "max_frame_size"),
        (["c", "h", True], "max_frame_size"),
        (["c", None, None, None, None, None, None, None, Array([UInt(1)])], "desired_capabilities"),
        (["c", *[None] * 8, ["p"]], "properties has to be map"),
        (["c", *[None] * 10], "has 10 fields, not 11"),
    ],
)
def test_a_field_that_is_missing_or_of_another_type_is_named(fields: list[object], match: str) -> None:
    with pytest.raises(AmqpDecodeError, match=match):
        PERFORMATIVES.decode(encode(Described(ULong(0x10), fields)))


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        Described(ULong(0x99), []),
        Described(True, []),
        Described(Symbol("amqp:nothing:list"), []),
        Described(ULong(0x10), {}),
        Described(ULong(0x40), [Symbol("ANONYMOUS")]),
    ],
    ids=repr,
)
def test_what_is_no_performative_is_refused(value: object) -> None:
    with pytest.raises(AmqpDecodeError):
        PERFORMATIVES.decode(encode(value))


@given(st.sampled_from(EVERYTHING), st.integers(0, 13), values)
@fuzz
def test_any_value_in_any_field_is_taken_or_refused(
    everything: tuple[Composite, int], place: int, value: object
) -> None:
    performative, length = everything
    fields = _fields(performative)
    fields[place % length] = value
    try:
        read = PERFORMATIVES.decode(encode(Described(ULong(performative.CODE), fields)))
    except AmqpDecodeError:
        return
    assert isinstance(read, type(performative))


def test_what_a_field_cannot_carry_is_refused_with_its_name() -> None:
    with pytest.raises(AmqpEncodeError, match="max_frame_size has to be uint"):
        Open("c", max_frame_size="large").encode()  # type: ignore[arg-type]
    with pytest.raises(AmqpEncodeError, match="range"):
        Open("c", max_frame_size=2**32).encode()


def test_a_terminus_that_is_not_known_stays_as_it_came() -> None:
    coordinator = Described(ULong(0x30), [Array([Symbol("amqp:local-transactions")])])
    attach = Attach("l", 0, SENDER, target=coordinator)
    assert PERFORMATIVES.decode(attach.encode()) == attach


@pytest.mark.parametrize("identity", ["id", ULong(7), b"id"])
def test_ids_of_messages_keep_their_type(identity: object) -> None:
    message = Message(Value(None), Properties(message_id=identity, correlation_id=identity))
    read = Message.decode(message.encode()).properties
    assert read is not None
    assert (type(read.message_id), type(read.correlation_id)) == (type(identity), type(identity))
    assert read == message.properties


@pytest.mark.parametrize("body", [Value({"a": 1}), Data((b"a", b"b")), Data(()), Sequences(([1], ["x"]))])
def test_every_section_of_a_message_comes_back(body: Value | Data | Sequences) -> None:
    message = Message(
        body,
        Properties("i", b"u", "t", "s", "r", "c", "ct", "ce", 1, 2, "g", 3, "rg"),
        {"p": 1},
        {Symbol("m"): 1},
        {Symbol("d"): 1},
        Header(True, 5, 6, True, 7),
        {Symbol("f"): 1},
    )
    assert Message.decode(message.encode()) == message


@given(st.binary(max_size=100))
@fuzz
def test_any_bytes_are_a_message_or_a_typed_error(data: bytes) -> None:
    try:
        Message.decode(b"\x00\x53\x70\x45" + data)
    except AmqpDecodeError:
        return


def _fields(performative: Composite) -> list[object]:
    value = decode(performative.encode())
    assert isinstance(value, Described)
    assert isinstance(value.value, list)
    return value.value


def _required_count(kind: type[Composite]) -> int:
    return {Open: 1, Attach: 3, Transfer: 1, Disposition: 2, Detach: 1}.get(kind, 0)
