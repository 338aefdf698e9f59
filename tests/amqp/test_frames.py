"""Frames: whole however the bytes arrive, the same thousands at a time as one by one, and never a nonsense one."""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubline.amqp.codec.performatives import (
    RECEIVER,
    Accepted,
    Begin,
    Disposition,
    Flow,
    Open,
    SaslInit,
    SaslOutcome,
    Transfer,
)
from hubline.amqp.codec.types import Described, Symbol, UInt, ULong
from hubline.amqp.transport.errors import AmqpDecodeError, AmqpEncodeError, AmqpFrameError
from hubline.amqp.transport.frames import (
    AMQP_HEADER,
    BUFFER_BYTES_FIRST,
    HEARTBEAT,
    OWN_BYTES_MIN,
    SASL_HEADER,
    Frame,
    FrameReader,
    encode_frame,
    encode_transfer,
)
from hubline.amqp.transport.transfer_runs import Deliveries
from tests.amqp.encodings import fuzz, integers, needs_core, spell

FRAME_BYTES_MAX = 4096

# A delivery, or what was said on a channel.
Said = tuple[object, ...]


@st.composite
def _frames(draw: st.DrawFn) -> bytes:
    """A frame in one of its legal encodings: mostly simple transfers, as one peer or another writes them."""
    kind = draw(st.sampled_from(["transfer"] * 12 + ["odd transfer", "flow", "heartbeat"]))
    channel = draw(st.sampled_from([0, 0, 0, 1, 65535]))
    if kind == "heartbeat":
        return HEARTBEAT
    if kind == "flow":
        return encode_frame(channel, Flow(1, 2, 3, 4, 5))
    fields: list[object] = [
        UInt(draw(st.sampled_from([0, 0, 0, 7, 300]))),
        UInt(draw(integers(0, 2**32 - 1))),
        draw(st.sampled_from([b"", b"\x00", b"\x01\x02"])),
        UInt(0),
        draw(st.sampled_from([True, True, False])),
        False,
    ]
    if kind == "odd transfer":
        change, value = draw(st.sampled_from(_ODD))
        fields += [None, None, False, False, False]
        fields[change] = value
    body = spell(Described(ULong(0x14), fields), Random(draw(st.integers(0, 2))))
    payload = draw(st.binary(max_size=40))
    return struct.pack(">IBBH", 8 + len(body) + len(payload), 2, 0, channel) + body + payload


_ODD: Sequence[tuple[int, object]] = [
    (1, None),
    (2, None),
    (3, UInt(0x80013700)),
    (3, None),
    (4, None),
    (5, True),
    (7, Described(ULong(0x24), [])),
    (8, True),
    (9, True),
]


@given(st.lists(_frames(), max_size=60))
@fuzz
def test_frames_taken_together_say_what_they_say_one_by_one(frames: list[bytes]) -> None:
    together = _by_link(_said(_filled(b"".join(frames)).take_frames()))
    assert together == _by_link(_said(_one_by_one(_filled(b"".join(frames)))))


@given(st.lists(_frames(), max_size=30), st.lists(st.integers(1, 200), min_size=1, max_size=30))
@fuzz
def test_frames_come_out_whole_however_the_bytes_arrive(frames: list[bytes], pieces: list[int]) -> None:
    data = b"".join(frames)
    reader = FrameReader(frame_bytes_max=FRAME_BYTES_MAX)
    said: list[Said] = []
    position = number = 0
    while position < len(data):
        count = pieces[number % len(pieces)]
        _receive(reader, data[position : position + count])
        said += _said(reader.take_frames())
        position, number = position + count, number + 1
    assert reader.is_empty
    assert _by_link(said) == _by_link(_said(_one_by_one(_filled(data))))


@given(st.lists(_frames(), min_size=10, max_size=30), st.data())
@fuzz
def test_damaged_frames_are_read_or_refused(frames: list[bytes], data: st.DataObject) -> None:
    damaged = bytearray(b"".join(frames))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with suppress(AmqpDecodeError):
        list(_filled(damaged).take_frames())


@pytest.mark.parametrize("sizes", [[100] * 5000, [100, 101] * 1000, [100] * 40 + [50] * 3 + [100] * 200, [60] * 10])
def test_every_frame_is_found_where_many_have_the_same_size(sizes: list[int]) -> None:
    frames = [_transfer(number, bytes(size)) for number, size in enumerate(sizes)]
    said = _said(_filled(b"".join(frames), frame_bytes_max=1 << 20).take_frames())
    assert [(identity, len(payload)) for _, _, identity, _, payload in said] == list(enumerate(sizes))  # type: ignore[arg-type]


@pytest.mark.parametrize("first_size", [None, 0, 7, 100, 2**32 - 1])
def test_payloads_that_look_like_frames_mislead_nobody(first_size: int | None) -> None:
    """A frame that holds the heads of others, just where frames of one size would have them."""
    usual = _transfer(0, bytes(100))
    head = usual[:8] if first_size is None else struct.pack(">I", first_size) + usual[4:8]
    room = len(_transfer(1, b""))
    fakes = bytes(len(usual) - room) + (usual[:8] + bytes(len(usual) - 8)) * 2 + head + bytes(len(usual) - 8)
    frames = [usual] * 3 + [_transfer(1, fakes)] + [usual] * 20
    assert _said(_filled(b"".join(frames)).take_frames()) == _said(_one_by_one(_filled(b"".join(frames))))


@needs_core
def test_simple_transfers_are_taken_together() -> None:
    """Otherwise the tests above would compare one way with itself."""
    frames = [_transfer(number, b"x") for number in range(200)]
    frames.insert(100, encode_frame(0, Flow(1, 2, 3, 4)))
    items = list(_filled(b"".join(frames)).take_frames())
    assert [type(item) for item in items] == [Deliveries, Frame, Deliveries]
    assert [len(item) for item in items if isinstance(item, Deliveries)] == [100, 100]


@pytest.mark.parametrize("is_cut", [False, True])
def test_the_rest_of_a_delivery_is_never_taken_for_a_whole_one(is_cut: bool) -> None:
    """Its last frame looks like any other; also where the first one came long before."""
    small = [_transfer(number, b"small") for number in range(50)]
    parts = list(encode_transfer(0, Transfer(0, 50, b"t", 0, settled=True), bytes(2000), frame_bytes_max=512))
    elsewhere = [encode_frame(1, Transfer(0, number, b"t", 0, settled=True), b"else") for number in range(20)]
    reader = FrameReader(frame_bytes_max=FRAME_BYTES_MAX)
    said: list[Said] = []
    for data in (small + parts[:-1], elsewhere + parts[-1:] + small):
        _receive(reader, b"".join(data))
        if is_cut:
            said += _said(reader.take_frames())
    said += _said(reader.take_frames())
    payloads = [item[-1] for item in said if isinstance(item[-1], bytes)]
    assert payloads[:50] == payloads[-50:] == [b"small"] * 50
    assert payloads.count(b"else") == 20
    assert sum(len(payload) for payload in payloads if not payload.strip(b"\x00")) == 2000


@pytest.mark.parametrize("names_delivery", [True, False])
def test_parts_that_begin_alike_are_distinguished_by_their_content(names_delivery: bool) -> None:
    """Some peers say only in the first frame which delivery it is."""
    first = [Transfer(handle, 7, b"t", 1, settled=True, more=True) for handle in (0, 1)]
    rest = first if names_delivery else [Transfer(handle, more=True) for handle in (0, 1)]
    last = [Transfer(handle, 7, b"t", 1, settled=True) for handle in (0, 1)]
    sent = [(performative, bytes([number]) * 40_000) for number, performative in enumerate(first + rest * 5 + last)]
    reader = FrameReader(frame_bytes_max=65536)
    taken: list[tuple[object, bytes]] = []
    for performative, payload in sent:
        _receive(reader, encode_frame(0, performative, payload))
        if len(taken) % 3 == 0:
            taken += _parts(reader)
    assert taken + _parts(reader) == sent


def _parts(reader: FrameReader) -> list[tuple[object, bytes]]:
    return [(item.performative, bytes(item.payload)) for item in reader.take_frames() if isinstance(item, Frame)]


@needs_core
def test_deliveries_of_several_links_come_apart() -> None:
    frames = [
        encode_frame(number % 2, Transfer(number % 3, number, b"t", 0, settled=True), b"x") for number in range(60)
    ]
    items = [item for item in _filled(b"".join(frames)).take_frames() if isinstance(item, Deliveries)]
    assert sorted((item.channel, item.handle, len(item)) for item in items) == [
        (channel, handle, 10) for channel in (0, 1) for handle in (0, 1, 2)
    ]


@pytest.mark.parametrize("size", [0, 1, 7, FRAME_BYTES_MAX + 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("before", [0, 1, 100])
def test_a_frame_of_an_impossible_size_is_refused(size: int, before: int) -> None:
    data = HEARTBEAT * before + struct.pack(">I", size) + bytes(20)
    with pytest.raises(AmqpFrameError, match=f"{size:,} bytes"):
        list(_filled(data).take_frames())
    reader = _filled(data)
    with pytest.raises(AmqpFrameError, match=f"{size:,} bytes"):
        list(_one_by_one(reader))


@pytest.mark.parametrize("header", ["0000000800000000", "0000000801000000", "0000000803000000", "00000008ff000000"])
def test_a_body_that_starts_outside_of_its_frame_is_refused(header: str) -> None:
    with pytest.raises(AmqpFrameError, match="starts at byte"):
        _filled(bytes.fromhex(header)).take_frame()


def test_an_extended_header_is_passed_over() -> None:
    body = Begin(None, 1, 2, 3).encode()
    frame = _filled(struct.pack(">IBBH", 16 + len(body), 4, 0, 5) + b"whatever" + body).take_frame()
    assert frame == Frame(5, Begin(None, 1, 2, 3))


def test_a_frame_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(AmqpFrameError, match="type 9"):
        _filled(bytes.fromhex("0000000802090000")).take_frame()


def test_what_is_no_performative_is_refused() -> None:
    for body in (b"\x40", b"\x00\x53\x70\x45", b"\x00\x53\x10\x40", b"\x00\x53\x10\x45", b"\x00"):
        with pytest.raises(AmqpDecodeError):
            _filled(struct.pack(">IBBH", 8 + len(body), 2, 0, 0) + body).take_frame()


@pytest.mark.parametrize("header", [AMQP_HEADER, SASL_HEADER])
def test_a_protocol_header_is_taken_once_it_is_complete(header: bytes) -> None:
    reader = FrameReader(frame_bytes_max=FRAME_BYTES_MAX)
    for octet in header[:-1]:
        _receive(reader, bytes([octet]))
        assert reader.take_header() is None
    _receive(reader, header[-1:] + HEARTBEAT)
    assert reader.take_header() == header
    assert reader.take_frame() == Frame(0, None)


@pytest.mark.parametrize("data", [b"G", b"AX", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01", b"AMQX"])
def test_a_peer_that_does_not_speak_amqp_is_detected_at_its_first_wrong_byte(data: bytes) -> None:
    with pytest.raises(AmqpFrameError, match="does not speak AMQP"):
        _filled(data).take_header()


def test_sasl_and_amqp_may_arrive_together() -> None:
    reader = _filled(
        SASL_HEADER
        + encode_frame(0, SaslInit("ANONYMOUS", b"", "h"))
        + encode_frame(0, SaslOutcome(0))
        + AMQP_HEADER
        + encode_frame(0, Open("c"))
    )
    assert reader.take_header() == SASL_HEADER
    assert reader.take_frame() == Frame(0, SaslInit("ANONYMOUS", b"", "h"))
    assert reader.take_frame() == Frame(0, SaslOutcome(0))
    assert reader.take_header() == AMQP_HEADER
    assert reader.take_frame() == Frame(0, Open("c"))


def test_the_buffer_grows_with_what_arrives_and_no_further() -> None:
    bound = 4 * BUFFER_BYTES_FIRST
    reader = FrameReader(frame_bytes_max=FRAME_BYTES_MAX, buffer_bytes_max=bound)
    assert len(reader.writable()) == BUFFER_BYTES_FIRST
    stream = encode_frame(0, Flow(properties={Symbol("filler"): "x" * 2000})) * 1000
    position = count = 0
    while position < len(stream):
        free = reader.writable()
        assert 0 < len(free) <= bound
        part = stream[position : position + len(free)]
        free[: len(part)] = part
        reader.filled(len(part))
        count += len(list(reader.take_frames()))
        position += len(part)
    assert count == 1000


def test_a_frame_as_large_as_agreed_is_taken_by_a_small_buffer() -> None:
    frame_bytes_max = 1024 * 1024
    reader = FrameReader(frame_bytes_max=frame_bytes_max, buffer_bytes_max=1)
    frame = encode_frame(0, Transfer(0, 0, b"", 0), bytes(frame_bytes_max - 100))
    for _ in range(2):
        _receive(reader, frame)
        taken = reader.take_frame()
        assert taken is not None
        assert len(taken.payload) == frame_bytes_max - 100


@pytest.mark.parametrize("piece_bytes", [1000, 100_000, 1_000_000, 10_000_000])
def test_large_frames_among_others_stay_where_they_were_received(piece_bytes: int) -> None:
    """Whatever is received after them, and wherever the pieces that arrive begin and end."""
    frame_bytes_max = 4 * OWN_BYTES_MIN
    sizes = [10, OWN_BYTES_MIN, frame_bytes_max - 100, 100, 0, 200, OWN_BYTES_MIN - 100, frame_bytes_max - 100] * 2
    payloads = [bytes([number]) * size for number, size in enumerate(sizes)]
    stream = b"".join(_transfer(number, payload) for number, payload in enumerate(payloads))
    reader = FrameReader(frame_bytes_max=frame_bytes_max, buffer_bytes_max=1)
    stayed: list[memoryview] = []
    said: list[Said] = []
    for item in _arriving(reader, stream, piece_bytes):
        said += _said([item])
        if isinstance(item, Frame) and isinstance(item.payload, memoryview) and item.payload.readonly:
            stayed.append(item.payload)
    assert reader.is_empty
    assert [payload for *_, payload in said] == payloads
    assert [bytes(payload) for payload in stayed] == [payload for payload in payloads if len(payload) >= OWN_BYTES_MIN]


def test_the_rest_of_a_delivery_after_a_large_part_is_never_taken_for_a_whole_one() -> None:
    parts = list(
        encode_transfer(0, Transfer(0, 0, b"t", 0, settled=True), bytes(3 * OWN_BYTES_MIN), frame_bytes_max=2**19)
    )
    reader = FrameReader(frame_bytes_max=2**19)
    stream = b"".join([*parts, *(_transfer(number, b"small") for number in range(1, 20))])
    said = [each for item in _arriving(reader, stream, 100_000) for each in _said([item])]
    assert len(parts) == 2
    assert len(said) == 2 + 19


@pytest.mark.parametrize("length", [0, 1, 400, 471, 472, 473, 5000])
def test_a_message_larger_than_a_frame_takes_several(length: int) -> None:
    message = bytes(range(256)) * 20
    message = message[:length]
    transfer = Transfer(3, 7, b"tag", 0, settled=True)
    frames = list(encode_transfer(1, transfer, message, frame_bytes_max=512))
    assert all(len(frame) <= 512 for frame in frames)
    parts = [_filled(frame).take_frame() for frame in frames]
    assert b"".join(part.payload for part in parts if part) == message
    more = [part.performative.more for part in parts if part and isinstance(part.performative, Transfer)]
    assert more == [True] * (len(frames) - 1) + [False]


def test_a_delivery_tag_that_fills_a_frame_is_refused() -> None:
    with pytest.raises(AmqpEncodeError, match="tag"):
        list(encode_transfer(0, Transfer(0, 0, bytes(600)), b"x", frame_bytes_max=512))


def test_a_disposition_keeps_its_outcome() -> None:
    performative = Disposition(RECEIVER, 5, 9, settled=True, state=Accepted())
    assert _filled(encode_frame(2, performative)).take_frame() == Frame(2, performative)


def _transfer(number: int, payload: bytes) -> bytes:
    return encode_frame(0, Transfer(0, number, b"t", 0, settled=True), payload)


def _receive(reader: FrameReader, data: bytes | bytearray) -> None:
    while data:
        free = reader.writable()
        count = min(len(free), len(data))
        assert count, "take frames before there is no room left"
        free[:count] = data[:count]
        reader.filled(count)
        data = data[count:]


def _arriving(reader: FrameReader, stream: bytes, piece_bytes: int) -> Iterator[Frame | Deliveries]:
    """What is taken while the bytes arrive, as many at a time or as there is room for."""
    while stream:
        free = reader.writable()
        count = min(piece_bytes, len(free), len(stream))
        free[:count] = stream[:count]
        reader.filled(count)
        stream = stream[count:]
        yield from reader.take_frames()


def _filled(data: bytes | bytearray, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> FrameReader:
    reader = FrameReader(frame_bytes_max=frame_bytes_max)
    _receive(reader, data)
    return reader


def _one_by_one(reader: FrameReader) -> Iterator[Frame]:
    while (frame := reader.take_frame()) is not None:
        yield frame


def _said(items: Iterable[Frame | Deliveries]) -> list[Said]:
    """What frames or deliveries say, in one form."""
    said: list[Said] = []
    for item in items:
        if isinstance(item, Deliveries):
            said += _deliveries_said(item)
        elif isinstance(item.performative, Transfer) and _is_simple(item.performative):
            transfer = item.performative
            said.append(
                (item.channel, transfer.handle, transfer.delivery_id, bool(transfer.settled), bytes(item.payload))
            )
        else:
            said.append((item.channel, item.performative, bytes(item.payload)))
    return said


def _deliveries_said(deliveries: Deliveries) -> Iterator[Said]:
    for identity, start, end in zip(
        deliveries.delivery_ids.tolist(), deliveries.starts.tolist(), deliveries.ends.tolist(), strict=True
    ):
        payload = deliveries.data[start:end].tobytes()
        yield deliveries.channel, deliveries.handle, identity, deliveries.is_settled, payload


def _is_simple(transfer: Transfer) -> bool:
    odd = transfer.message_format, transfer.more, transfer.state, transfer.resume, transfer.aborted
    return not any(odd) and transfer.delivery_id is not None and transfer.delivery_tag is not None


def _by_link(said: Iterable[Said]) -> dict[object, list[Said]]:
    """The order is kept for each link, and of what is said to no link."""
    links: dict[object, list[Said]] = defaultdict(list)
    for item in said:
        key = item[:2] if len(item) == 5 else getattr(item[1], "handle", None)
        links[key if isinstance(key, tuple) else (item[0], key)].append(item)
    return links
