"""The compiled core beside the reference decoder: it takes what peers send, and never says anything else of it."""

from __future__ import annotations

import os
import re
import shutil
import struct
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubline.amqp.codec.types import Float, Timestamp
from hubline.amqp.core import library
from hubline.amqp.events.compiled_decoder import CompiledDecoder
from hubline.amqp.events.decoder import EventDecoder, SentDecoder, join_messages
from hubline.amqp.events.encoder import Destination, encode_batches, encode_deliveries
from hubline.amqp.events.reference_decoder import BATCH_FORMAT, EventFields, read_event
from hubline.amqp.transport.frames import Frame, FrameReader
from hubline.model.events import OUTGOING_SCHEMA
from tests.amqp import fuzzing
from tests.amqp.encodings import fuzz, needs_core
from tests.amqp.events import differing, shapes, spell_message
from tests.amqp.sdk_messages import REAL_PROPERTIES, message_of, placed, sdk_messages


def test_the_core_is_built_where_there_is_a_compiler() -> None:
    """Otherwise the tests below would be skipped for good."""
    assert library.core() is not None or shutil.which("cc") is None or library.VARIABLE in os.environ


@needs_core
@given(st.lists(st.tuples(shapes, differing), min_size=1, max_size=20))
@fuzz
def test_messages_of_every_shape_are_what_the_reference_says(pairs: Any) -> None:
    messages = [spell_message(shape, values) for shape, values in pairs]
    for has_position in (True, False):
        require_as_reference(messages, has_position=has_position)


@needs_core
@pytest.mark.parametrize("has_position", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_damaged_messages_are_what_the_reference_says(seed: int, has_position: bool) -> None:
    random = Random(seed)
    originals = [message_of(properties) for properties in REAL_PROPERTIES]
    messages = [damaged(random.choice(originals), random) for _ in range(1500)]
    assert require_as_reference(messages, has_position=has_position) > 300


@needs_core
def test_what_peers_send_is_not_left_to_python() -> None:
    messages = [message_of(properties) for properties in REAL_PROPERTIES]
    for has_position in (True, False):
        assert require_as_reference(messages, has_position=has_position) == len(messages)


@needs_core
def test_no_message_of_an_sdk_is_left_to_python() -> None:
    """Those of five languages, of 42 shapes each."""
    sent = sdk_messages()
    assert require_as_reference(sent, has_position=False) == len(sent) == 210
    assert require_as_reference([placed(message) for message in sent], has_position=True) == 210


@needs_core
def test_damaged_messages_break_nothing_under_sanitizers(tmp_path: Path) -> None:
    """`make fuzz` runs more of them."""
    harness = fuzzing.build(tmp_path)
    if harness is None:
        pytest.skip("no compiler with the address and undefined-behavior sanitizers")
    said = fuzzing.run(harness, tmp_path, executions=100_000, seed=0)
    assert int(re.findall(r"(\d+) events taken", said)[0]) > 30_000


@needs_core
def test_numbers_with_fractions_have_the_digits_of_python() -> None:
    random = Random(0)
    numbers: list[object] = [random.uniform(-1000, 1000) for _ in range(1000)]
    numbers += [round(random.uniform(-(10**9), 10**9), random.randrange(9)) for _ in range(1000)]
    numbers += [struct.unpack(">d", random.randbytes(8))[0] for _ in range(1000)]
    numbers += [2.0 ** random.randrange(-20, 60) * random.choice([1, -1, 3, 1.5]) for _ in range(500)]
    numbers += [Float(struct.unpack(">f", struct.pack(">f", random.uniform(-100, 100)))[0]) for _ in range(1000)]
    numbers += [Float(2.0 ** random.randrange(-20, 30)) for _ in range(300)]
    numbers += [0.0, -0.0, float("nan"), float("inf"), float("-inf"), Float(0.1), 0.0001, 1e15, 1e16, 2.0**53]
    taken = require_as_reference([message_of({"n": number, "in": [number]}) for number in numbers], has_position=True)
    assert taken > 3000  # those with an exponent are left to Python


@needs_core
def test_times_of_all_years_are_those_of_python() -> None:
    random = Random(0)
    ends = [-62_135_596_800_000, 253_402_300_799_999, 253_402_300_800_000, -30_610_224_000_000, -(2**63), 2**63 - 1]
    times = [random.randrange(-62_135_596_800_000, 253_402_300_800_000) for _ in range(3000)] + ends + [-1, 0, 1]
    assert require_as_reference([message_of({"t": Timestamp(time)}) for time in times], has_position=True) > 2000


@needs_core
def test_columns_grow_with_what_comes() -> None:
    """Text may be far longer than the bytes it came as, and than that of the events before it."""
    decoder = EventDecoder("0")
    for count in (3, 5000, 3, 20_000, 1, 0):
        properties: dict[object, object] = {f"p{number}": None for number in range(count)}
        messages = [message_of(properties), message_of({"t": [True] * count}), message_of({})] * 2
        rows = decoder.decode(*join_messages(messages)).to_pylist()
        assert [len(row["properties"] or ()) for row in rows] == [count, 1, 0] * 2
        assert rows[1]["properties"] == [("t", "[" + ",".join(["true"] * count) + "]")]


@needs_core
def test_what_the_core_leaves_comes_in_its_place() -> None:
    messages = [message_of({"n": number} if number % 3 else {"n": 1e300, "i": number}) for number in range(50)]
    rows = EventDecoder("0").decode(*join_messages(messages)).to_pylist()
    assert [dict(row["properties"])["n"] for row in rows] == [str(n) if n % 3 else "1e+300" for n in range(50)]
    assert [dict(row["properties"]).get("i") for row in rows] == [None if n % 3 else str(n) for n in range(50)]


@needs_core
def test_positions_outside_of_the_bytes_are_left_to_python() -> None:
    message = message_of({})
    data = np.frombuffer(message, np.uint8)
    starts, ends = np.array([0, -1, 5, 0]), np.array([len(message), 3, 4, len(message) + 1])
    assert decode_by_core(data, starts, ends, has_position=True)[1] == [1, 2, 3]


def test_without_the_core_everything_is_decoded_one_by_one(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    messages = [message_of({"n": number}) for number in range(20)]
    expected = EventDecoder("0").decode(*join_messages(messages))
    for left_out in ("variable", "missing"):
        if left_out == "variable":
            monkeypatch.setenv(library.VARIABLE, "python")
        else:
            monkeypatch.delenv(library.VARIABLE)
            monkeypatch.setattr(library, "LIBRARY", library.LIBRARY.with_name("none.so"))
        library.core.cache_clear()
        try:
            assert library.core() is None
            decoders = [EventDecoder("0"), EventDecoder("0")]
            assert all(decoder.decode(*join_messages(messages)).equals(expected) for decoder in decoders)
            assert SentDecoder().decode(messages[0], 0).column("properties").to_pylist()[0][0] == ("n", "0")
        finally:
            library.core.cache_clear()
    notices = [record.getMessage() for record in caplog.records if record.name == "hubline.amqp"]
    assert [notice.split()[0] for notice in notices] == ["amqp_core_missing"]


def test_without_the_core_messages_and_frames_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    events = EventDecoder("0").decode(*join_messages([message_of({"n": str(number)}) for number in range(20)]))
    sent = events.select(OUTGOING_SCHEMA.names)
    destination = Destination(channel=1, handle=2, frame_bytes_max=512)
    kept = []
    for way in ("compiled", "python"):
        monkeypatch.setenv(library.VARIABLE, way)
        library.core.cache_clear()
        frames = b"".join(encode_deliveries(events, destination, first_delivery_id=2**32 - 5, delivery_annotations=b""))
        reader = FrameReader(frame_bytes_max=512)
        reader.writable()[: len(frames)] = frames
        reader.filled(len(frames))
        payloads = [
            message
            for item in reader.take_frames()
            for message in (
                [bytes(item.payload)]
                if isinstance(item, Frame)
                else [item.data[start:end].tobytes() for start, end in zip(item.starts, item.ends, strict=True)]
            )
        ]
        (batch,) = encode_batches(sent, max_bytes=100_000, partition_key="k")
        taken = SentDecoder().decode(batch.payload, BATCH_FORMAT)
        kept.append((EventDecoder("0").decode(*join_messages(payloads)), taken))
    library.core.cache_clear()
    assert kept[0][0].equals(events)
    assert kept[1][0].equals(events)
    assert kept[0][1].equals(kept[1][1])


def damaged(message: bytes, random: Random) -> bytes:
    octets = bytearray(message)
    for _ in range(random.choice([0, 1, 1, 2, 4])):
        place = random.randrange(len(octets))
        octets[place : place + random.randrange(3)] = random.choice(
            [random.randbytes(random.randrange(3)), bytes([random.choice(octets)])]
        )
    return bytes(octets)


def decode_by_core(data: Any, starts: Any, ends: Any, *, has_position: bool) -> tuple[list[EventFields], list[int]]:
    core = library.core()
    assert core is not None
    columns = CompiledDecoder(core, has_position=has_position, takes_notes=not has_position).decode(data, starts, ends)
    for array in (columns.body, columns.offset, columns.partition_key, columns.properties):
        array.validate(full=True)
    count = len(columns.body)
    offsets = columns.offset.to_pylist() if has_position else [None] * count
    fields = [
        columns.body.to_pylist(),
        columns.sequence_numbers.tolist() if has_position else [None] * count,
        offsets,
        columns.enqueued_ms.tolist() if has_position else [None] * count,
        columns.partition_key.to_pylist(),
        columns.properties.to_pylist(),
    ]
    return [EventFields(*row) for row in zip(*fields, strict=True)], columns.others


def require_as_reference(messages: Sequence[bytes], *, has_position: bool) -> int:
    """What the core takes is what the reference reads. Returns how many messages that are."""
    taken, others = decode_by_core(*join_messages(messages), has_position=has_position)
    indexes = sorted(set(range(len(messages))) - set(others))
    assert len(indexes) == len(taken)
    for index, event in zip(indexes, taken, strict=True):
        expected = read_event(messages[index], 0, len(messages[index]), takes_notes=not has_position)
        if not has_position:
            expected = EventFields(expected.body, None, None, None, expected.partition_key, expected.properties)
        assert event == expected, messages[index].hex()
        assert not has_position or None not in (event.sequence_number, event.offset, event.enqueued_ms)
    return len(taken)
