"""What hubline takes from messages that are events: the reference, which accepts every valid encoding.

Events by the thousand go through :mod:`hubline.amqp.events.decoder`, which gives the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Final

import numpy as np

from hubline.amqp.arrays import Positions
from hubline.amqp.codec.data_sections import DATA_SECTIONS, noted_sections
from hubline.amqp.codec.decode import Bytes, Reader
from hubline.amqp.codec.encode import encode
from hubline.amqp.codec.message import (
    AMQP_SEQUENCE,
    AMQP_VALUE,
    APPLICATION_PROPERTIES,
    DATA,
    DELIVERY_ANNOTATIONS,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    Body,
    Data,
    Sequences,
    body_of,
    read_section,
)
from hubline.amqp.codec.property_types import TYPES, named_fields, noted_types, type_name
from hubline.amqp.codec.text import to_json, to_text
from hubline.amqp.codec.types import Decimal, Described, Symbol, Timestamp, ULong
from hubline.amqp.core.library import Sections, address_of, core
from hubline.amqp.service_names import (
    ENQUEUED_TIME,
    LAST_ENQUEUED,
    LAST_OFFSET,
    LAST_SEQUENCE,
    OFFSET,
    PARTITION_KEY,
    RETRIEVED,
    SEQUENCE_NUMBER,
)
from hubline.amqp.transport.errors import AmqpDecodeError

# A message whose Data sections each hold a message.
BATCH_FORMAT: Final = 0x8001_3700

KNOWN_ANNOTATIONS: Final = frozenset((SEQUENCE_NUMBER, OFFSET, ENQUEUED_TIME, PARTITION_KEY))

_RUNTIME_METRICS: Final = frozenset((LAST_SEQUENCE, LAST_OFFSET, LAST_ENQUEUED, RETRIEVED))

# Type codes of binary values.
BINARIES: Final = (0xA0, 0xB0)

_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class EventFields:
    """What hubline keeps of a message. What the message does not have is None; its body is then empty."""

    body: bytes
    sequence_number: int | None
    offset: str | None
    enqueued_ms: int | None
    partition_key: str | None
    properties: list[tuple[str, str | None]] | None


def read_event(data: Bytes, start: int, end: int, *, takes_notes: bool = False) -> EventFields:
    """An event, from any valid encoding of a message. Raises AmqpDecodeError.

    Properties, the message's own and those of the application, become text (:mod:`hubline.amqp.codec.text`). A body of
    bytes is taken as it is; a string as UTF-8; other values, and sequences, as JSON. Header, footer and other
    annotations are passed over. The types of properties, and the sections that a body came in, can be noted among the
    properties (:mod:`hubline.amqp.codec.property_types`).
    """
    reader = Reader(data, start, end)
    known: dict[str, object] = {}
    properties: list[tuple[str, object]] = []
    parts: list[tuple[int, object]] = []
    while not reader.is_at_end:
        code = read_section(reader)
        if code == MESSAGE_ANNOTATIONS:
            known |= _read_known(reader, KNOWN_ANNOTATIONS)
        elif code == PROPERTIES:
            properties += named_fields(reader.value())
        elif code == APPLICATION_PROPERTIES:
            properties += [(to_text(key) or "", reader.value()) for key in reader.map_keys()]
        elif code in (DATA, AMQP_SEQUENCE, AMQP_VALUE):
            parts.append((code, reader.value()))
        else:
            reader.skip()
    body = body_of(parts)
    pairs = [(name, to_text(value)) for name, value in properties]
    if takes_notes:
        pairs += _notes(properties, body)
    return EventFields(
        body=_body_bytes(body),
        sequence_number=_integer(known, SEQUENCE_NUMBER),
        offset=_offset(known.get(OFFSET)),
        enqueued_ms=_integer(known, ENQUEUED_TIME),
        partition_key=to_text(known.get(PARTITION_KEY)),
        properties=pairs or None,
    )


def _notes(properties: Sequence[tuple[str, object]], body: Body) -> Iterator[tuple[str, str]]:
    """What the text of the properties and the bytes of the body do not tell."""
    types = noted_types((name, type_name(value)) for name, value in properties)
    for name, note in ((TYPES, types), (DATA_SECTIONS, noted_sections(body))):
        if note is not None:
            yield name, note


@dataclass(frozen=True, slots=True, eq=False)
class SentBatch:
    """Where in a batch its messages are, and the key of them all."""

    starts: Positions
    ends: Positions
    partition_key: str | None


def read_batch(payload: Bytes) -> SentBatch:
    """What a message of the format BATCH_FORMAT holds. Raises AmqpDecodeError."""
    reader = Reader(payload)
    spans: list[Positions] = []
    known: dict[str, object] = {}
    while not reader.is_at_end:
        usual = _take_usual_data(reader)
        if usual is not None:
            spans.append(usual)
            continue
        code = read_section(reader)
        if code == MESSAGE_ANNOTATIONS:
            known |= _read_known(reader, KNOWN_ANNOTATIONS)
        elif code == DATA:
            span = reader.span()
            if span.code not in BINARIES:
                raise AmqpDecodeError(f"a batch holds messages as binary data (at byte {span.position})")
            spans.append(np.array([[span.start], [span.end]]))
        elif code in (AMQP_SEQUENCE, AMQP_VALUE):
            raise AmqpDecodeError("the body of a batch is data: one section for each message")
        else:
            reader.skip()
    starts, ends = np.concatenate(spans, axis=1) if spans else np.empty((2, 0), np.int64)
    return SentBatch(starts, ends, to_text(known.get(PARTITION_KEY)))


def _take_usual_data(reader: Reader) -> Positions | None:
    """Starts and ends of the Data sections that follow, as far as the core finds them; None if there is none."""
    compiled = core()
    if compiled is None:
        return None
    data = np.frombuffer(reader.data, np.uint8)
    sections = Sections(data=address_of(data), start=reader.position, end=reader.end)
    compiled.sections(sections)
    if not sections.count:
        return None
    spans = np.empty((2, sections.count), np.int64)
    sections.start, sections.starts, sections.ends = reader.position, address_of(spans[0]), address_of(spans[1])
    compiled.sections(sections)
    reader.position = sections.start
    return spans


@dataclass(frozen=True, slots=True)
class RuntimeMetrics:
    """The newest event of a partition, as a hub tells it to a receiver that asked, with every event."""

    last_sequence: int
    last_offset: str
    last_enqueued_ms: int
    retrieved_ms: int

    def encode(self) -> bytes:
        """A section of delivery annotations."""
        return encode(
            Described(
                ULong(DELIVERY_ANNOTATIONS),
                {
                    Symbol(LAST_SEQUENCE): self.last_sequence,
                    Symbol(LAST_OFFSET): self.last_offset,
                    Symbol(LAST_ENQUEUED): Timestamp(self.last_enqueued_ms),
                    Symbol(RETRIEVED): Timestamp(self.retrieved_ms),
                },
            )
        )


def read_runtime_metrics(data: Bytes, start: int, end: int) -> RuntimeMetrics | None:
    """What a message tells of its partition; None if it tells nothing. Raises AmqpDecodeError."""
    reader = Reader(data, start, end)
    while not reader.is_at_end:
        if read_section(reader) == DELIVERY_ANNOTATIONS:
            return _runtime_metrics(_read_known(reader, _RUNTIME_METRICS))
        reader.skip()
    return None


def _runtime_metrics(values: Mapping[str, object]) -> RuntimeMetrics | None:
    sequence, offset = _integer(values, LAST_SEQUENCE), _offset(values.get(LAST_OFFSET))
    enqueued, retrieved = _integer(values, LAST_ENQUEUED), _integer(values, RETRIEVED)
    if sequence is None or offset is None or enqueued is None:
        return None
    return RuntimeMetrics(sequence, offset, enqueued, enqueued if retrieved is None else retrieved)


def _read_known(reader: Reader, names: Set[str]) -> dict[str, object]:
    """Those values of a map that are of interest, by name."""
    known: dict[str, object] = {}
    for key in reader.map_keys():
        if isinstance(key, str) and key in names:
            known[str(key)] = reader.value()
        else:
            reader.skip()
    return known


def _integer(known: Mapping[str, object], name: str) -> int | None:
    value = known.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise AmqpDecodeError(f"{name} is {type(value).__name__} instead of a number")
    if not _INT64_MIN <= value <= _INT64_MAX:
        raise AmqpDecodeError(f"{name} does not fit into 64 bits")
    return int(value)


def _offset(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(int(value))
    raise AmqpDecodeError(f"{OFFSET} is {type(value).__name__} instead of a string")


def _body_bytes(body: Body) -> bytes:
    if isinstance(body, Data):
        return b"".join(part or b"" for part in body.parts)
    if isinstance(body, Sequences):
        return to_json([item for part in body.parts for item in part]).encode()
    value = body.value
    if isinstance(value, bytes) and not isinstance(value, Decimal):
        return value
    if isinstance(value, str):
        return value.encode()
    return b"" if value is None else to_json(value).encode()
