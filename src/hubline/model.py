"""The nouns of hubline: keys, positions, events and batches, checkpoints and ownership.

All are frozen values that validate themselves. Columns are Arrow from end to end; :class:`Event` objects are
views made on demand.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Any

import pyarrow as pa

from hubline.errors import ConfigError

EVENT_SCHEMA = pa.schema(
    [
        pa.field("body", pa.binary(), nullable=False),
        pa.field("partition", pa.string(), nullable=False),
        pa.field("offset", pa.string(), nullable=False),
        pa.field("sequenceNumber", pa.int64(), nullable=False),
        pa.field("enqueuedTime", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("partitionKey", pa.string()),
        pa.field("properties", pa.map_(pa.string(), pa.string())),
    ]
)
"""What is received. The names are those of the JVM Spark connector, so that existing jobs move over unchanged."""

OUTGOING_SCHEMA = pa.schema(
    [EVENT_SCHEMA.field("body"), EVENT_SCHEMA.field("partitionKey"), EVENT_SCHEMA.field("properties")]
)
"""What is sent: the hub adds the rest."""


@dataclass(frozen=True, slots=True, order=True)
class GroupKey:
    """A consumer group of a hub: what shares the work, and what a store lists."""

    namespace: str
    hub: str
    group: str

    def __post_init__(self) -> None:
        if not (self.namespace and self.hub and self.group):
            raise ConfigError(f"a consumer group needs a namespace, a hub and a name: {self}")

    def partition(self, partition: str) -> PartitionKey:
        """The key of one partition in this group."""
        return PartitionKey(self.namespace, self.hub, self.group, partition)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.hub}/{self.group}"


@dataclass(frozen=True, slots=True, order=True)
class PartitionKey:
    """One partition as a consumer group sees it: the key of every ownership and checkpoint."""

    namespace: str
    hub: str
    group: str
    partition: str

    def __post_init__(self) -> None:
        if not (self.namespace and self.hub and self.group and self.partition):
            raise ConfigError(f"a partition key needs a namespace, a hub, a group and an id: {self}")

    @property
    def group_key(self) -> GroupKey:
        return GroupKey(self.namespace, self.hub, self.group)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.hub}/{self.group}/{self.partition}"


class PositionKind(enum.StrEnum):
    """What a position is measured by."""

    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSET = "offset"
    SEQUENCE = "sequence"
    ENQUEUED = "enqueued"


@dataclass(frozen=True, slots=True)
class Position:
    """Where to start reading a partition. Make one with the class methods.

    ``inclusive`` says whether the event at the position itself is read. Offsets are opaque strings.
    """

    kind: PositionKind
    value: str | int | datetime | None = None
    inclusive: bool = False

    def __post_init__(self) -> None:
        expected = _POSITION_VALUE[self.kind]
        if type(self.value) is not expected:
            raise ConfigError(f"a position by {self.kind} takes {expected.__name__}, not {type(self.value).__name__}")
        if self.kind is PositionKind.OFFSET and not self.value:
            raise ConfigError("a position by offset needs an offset: the string is empty")
        if isinstance(self.value, datetime) and self.value.tzinfo is None:
            raise ConfigError("a position by time needs a time zone, for instance datetime.now(UTC)")

    @classmethod
    def earliest(cls) -> Position:
        """The oldest event that the hub still holds."""
        return cls(PositionKind.EARLIEST, None, inclusive=True)

    @classmethod
    def latest(cls, *, inclusive: bool = False) -> Position:
        """The end: only what arrives from now on; inclusive also the newest event that is there."""
        return cls(PositionKind.LATEST, None, inclusive=inclusive)

    @classmethod
    def offset(cls, offset: str, *, inclusive: bool = False) -> Position:
        """After (or at) the event with this offset."""
        return cls(PositionKind.OFFSET, offset, inclusive=inclusive)

    @classmethod
    def sequence(cls, sequence_number: int, *, inclusive: bool = False) -> Position:
        """After (or at) the event with this sequence number."""
        return cls(PositionKind.SEQUENCE, sequence_number, inclusive=inclusive)

    @classmethod
    def enqueued(cls, time: datetime, *, inclusive: bool = True) -> Position:
        """The first event enqueued at or after (not inclusive: after) this time."""
        return cls(PositionKind.ENQUEUED, time, inclusive=inclusive)

    def __str__(self) -> str:
        if self.value is None:
            return str(self.kind)
        shown = self.value.isoformat() if isinstance(self.value, datetime) else self.value
        return f"{self.kind}:{shown}{' inclusive' if self.inclusive else ''}"


_POSITION_VALUE: Mapping[PositionKind, type] = {
    PositionKind.EARLIEST: type(None),
    PositionKind.LATEST: type(None),
    PositionKind.OFFSET: str,
    PositionKind.SEQUENCE: int,
    PositionKind.ENQUEUED: datetime,
}


@dataclass(frozen=True, slots=True)
class StartPositions:
    """Where partitions without a checkpoint start: a general position, and others for single partitions."""

    general: Position
    by_partition: Mapping[str, Position] = field(default_factory=dict)

    @classmethod
    def of(cls, start: Position | Mapping[str, Position] | StartPositions) -> StartPositions:
        """From one position, or a mapping of partition ids whose ``"*"`` is the general one."""
        if isinstance(start, StartPositions):
            return start
        if isinstance(start, Position):
            return cls(start)
        if not isinstance(start, Mapping):
            raise ConfigError(
                f"start is a Position, or a mapping of partition ids to positions, not {start!r}: "
                "write for instance start=Position.earliest()"
            )
        by_partition = dict(start)
        general = by_partition.pop("*", None)
        if general is None:
            raise ConfigError(
                'start positions by partition need a general one too, under "*", '
                "for partitions that are not named (a hub may grow)"
            )
        return cls(general, by_partition)

    def for_partition(self, partition: str) -> Position:
        return self.by_partition.get(partition, self.general)


@dataclass(frozen=True, slots=True)
class Event:
    """One event, as a view made on demand from a batch."""

    body: bytes
    partition: str
    offset: str
    sequence_number: int
    enqueued_time: datetime
    partition_key: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """The body as UTF-8 text."""
        return self.body.decode("utf-8")


class EventBatch:
    """Consecutive events of one partition: one Arrow record batch with :data:`EVENT_SCHEMA`.

    ``len(batch)``, iteration and indexing give events; ``batch.arrow`` gives the columns, which is the fast way.
    An empty batch is a heartbeat: nothing arrived within the wait.
    """

    __slots__ = ("arrow", "partition")

    def __init__(self, partition: str, arrow: pa.RecordBatch) -> None:
        if not arrow.schema.equals(EVENT_SCHEMA):
            raise ConfigError(f"an EventBatch needs the columns of EVENT_SCHEMA, not {', '.join(arrow.schema.names)}")
        self.partition = partition
        self.arrow = arrow

    @classmethod
    def empty(cls, partition: str) -> EventBatch:
        return cls(partition, pa.RecordBatch.from_pylist([], schema=EVENT_SCHEMA))

    @classmethod
    def concat(cls, batches: Iterable[EventBatch]) -> EventBatch:
        """One batch from consecutive ones of the same partition."""
        parts = list(batches)
        if not parts:
            raise ConfigError("nothing to concatenate: give at least one batch")
        if len(parts) == 1:
            return parts[0]
        return cls(parts[0].partition, pa.concat_batches([part.arrow for part in parts]))

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def __getitem__(self, index: int) -> Event:
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(f"event {index} of a batch of {len(self)}")
        return next(iter(self.slice(index, 1)))

    def __iter__(self) -> Iterator[Event]:
        columns = (column.to_pylist() for column in self.arrow.columns)
        for body, partition, offset, sequence, enqueued, key, properties in zip(*columns, strict=True):
            yield Event(body, partition, offset, sequence, enqueued, key, dict(properties or ()))

    def __repr__(self) -> str:
        if not len(self):
            return f"EventBatch(partition={self.partition!r}, empty)"
        return (
            f"EventBatch(partition={self.partition!r}, sequences "
            f"{self.first_sequence}..{self.last_sequence}, {len(self)} events)"
        )

    @property
    def nbytes(self) -> int:
        """Bytes that the events take in memory."""
        return int(self.arrow.nbytes)

    @property
    def first_sequence(self) -> int:
        return self._sequence_at(0)

    @property
    def last_sequence(self) -> int:
        return self._sequence_at(len(self) - 1)

    @property
    def last_offset(self) -> str:
        self._require_events()
        return str(self.arrow.column("offset")[len(self) - 1].as_py())

    @property
    def bodies(self) -> list[bytes]:
        bodies: list[bytes] = self.arrow.column("body").to_pylist()
        return bodies

    def slice(self, start: int, count: int | None = None) -> EventBatch:
        """A view of some of the events; nothing is copied."""
        return EventBatch(self.partition, self.arrow.slice(start, count))

    def _sequence_at(self, index: int) -> int:
        self._require_events()
        return int(self.arrow.column("sequenceNumber")[index].as_py())

    def _require_events(self) -> None:
        if not len(self):
            raise IndexError("an empty batch has no first or last event: test len(batch) first")


def outgoing(events: Iterable[bytes | str | Mapping[str, Any]], *, partition_key: str | None = None) -> pa.RecordBatch:
    """Columns to send, from bodies or from mappings with ``body``, ``partitionKey`` and ``properties``."""
    rows: list[Mapping[str, Any]] = [event if isinstance(event, Mapping) else {"body": event} for event in events]
    bodies = [_as_bytes(row.get("body"), index) for index, row in enumerate(rows)]
    keys = [row.get("partitionKey", partition_key) for row in rows]
    properties = [_as_pairs(row.get("properties"), index) for index, row in enumerate(rows)]
    columns: Iterable[tuple[pa.Field, Sequence[object]]] = zip(OUTGOING_SCHEMA, (bodies, keys, properties), strict=True)
    return pa.RecordBatch.from_arrays([_column(*column) for column in columns], schema=OUTGOING_SCHEMA)


def _as_bytes(body: object, index: int) -> bytes:
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        try:
            return body.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ConfigError(f"the body of event {index} is no text that UTF-8 has: {error}") from None
    what = "missing" if body is None else type(body).__name__
    raise ConfigError(f"the body of event {index} is {what}: give bytes or str")


def _as_pairs(properties: object, index: int) -> list[tuple[str, str]] | None:
    if not properties:
        return None
    if not isinstance(properties, Mapping):
        raise ConfigError(f"the properties of event {index} are {type(properties).__name__}: give a mapping")
    return list(properties.items())


def _column(column: pa.Field, values: Sequence[object]) -> pa.Array:
    """The values as Arrow has them; Arrow does not say whose value is wrong, so then they are tried one by one."""
    try:
        return pa.array(values, column.type)
    except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeEncodeError):
        for index, value in enumerate(values):
            try:
                pa.array([value], column.type)
            except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeEncodeError) as error:
                what = f"the {column.name} of event {index} cannot be sent ({error})"
                raise ConfigError(f"{what}: give text that UTF-8 has") from None
        raise


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The last event of a partition that is done. Reading resumes after it.

    Of what others wrote one of the two may not be known: an empty offset, or a sequence number of -1.
    """

    key: PartitionKey
    offset: str
    sequence_number: int

    def __post_init__(self) -> None:
        if not self.offset and self.sequence_number < 0:
            raise ConfigError(f"a checkpoint needs an offset or a sequence number ({self.key})")
        if self.sequence_number < -1:
            raise ConfigError(f"a checkpoint's sequence number is not negative ({self.key})")

    @classmethod
    def before_first(cls, key: PartitionKey) -> Checkpoint:
        """Nothing is done yet, and everything from the first event on is to be done: offset -1, as the SDKs have it."""
        return cls(key, "-1", -1)

    @property
    def resume(self) -> Position:
        """Just after the checkpointed event."""
        is_before_first = (self.offset, self.sequence_number) == ("-1", -1)
        if self.offset and not is_before_first:
            return Position.offset(self.offset)
        return Position.sequence(self.sequence_number)

    @property
    def last_sequence(self) -> int | None:
        """The sequence number, -1 before the first event; None if it is not known."""
        is_known = self.sequence_number >= 0 or self.offset == "-1"
        return self.sequence_number if is_known else None


@dataclass(frozen=True, slots=True)
class Ownership:
    """Who owns a partition, as a store listed it.

    ``owner_id`` is empty for a partition that was given up. ``version`` changes with every write, and a claim
    holds only if it names the current one. ``epoch`` rises by one with every change of owner and fences what the
    former owner writes. ``age_seconds`` is by the store's own clock. ``requested_by`` asks for a hand-over.
    """

    key: PartitionKey
    owner_id: str
    epoch: int
    version: str | None = None
    age_seconds: float = 0.0
    requested_by: str | None = None
    request_age_seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.epoch < 0:
            raise ConfigError(f"an epoch is not negative ({self.key})")


@dataclass(frozen=True, slots=True)
class Member:
    """A processor that is there, with or without partitions. ``partitions_max`` is None for no limit."""

    owner_id: str
    partitions_max: int | None = None
    age_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class GroupState:
    """All that a store knows of who reads a group. ``damaged`` maps partitions to what is wrong with their record."""

    ownerships: tuple[Ownership, ...]
    members: tuple[Member, ...]
    damaged: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StoreExamination:
    """What a store shows to who looks for faults: its own time of day, and the checkpoints that do not read back.

    ``damaged`` maps partitions to what is wrong with their checkpoint, and how to mend it.
    """

    time: datetime
    damaged: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HubProperties:
    """What a hub is."""

    namespace: str
    name: str
    partition_ids: tuple[str, ...]
    created_at: datetime


@dataclass(frozen=True, slots=True)
class PartitionProperties:
    """What a partition holds: an empty one has ``begin_sequence == last_sequence + 1``.

    ``last_sequence`` and ``last_offset`` are of the newest event that there ever was, also if retention removed it:
    -1 and None where there was none.
    """

    partition: str
    begin_sequence: int
    last_sequence: int
    last_offset: str | None
    last_enqueued_time: datetime | None
    bytes_count: int | None = None

    @property
    def is_empty(self) -> bool:
        return self.begin_sequence > self.last_sequence


class LetterState(enum.StrEnum):
    """What became of a dead letter."""

    WAITING = "waiting"
    """Nothing yet: somebody has to look."""
    REDRIVEN = "redriven"
    """Its event was handled after all, or sent to a hub again."""
    DISCARDED = "discarded"
    """Somebody decided that it is not needed."""


class Stage(enum.StrEnum):
    """Where an event failed."""

    HANDLER = "handler"
    """Its handler raised."""
    SINK = "sink"
    """The database refused what its handler made of it."""
    QUERY = "query"
    """A Spark query found it wrong."""
    QUARANTINE = "quarantine"
    """An earlier event of its partition key failed, and order per key was asked for."""


ERROR_TEXT_LENGTH_MAX = 4_000
TRACEBACK_LENGTH_MAX = 16_000
"""A letter tells what went wrong; the whole of a runaway message or recursion would tell no more."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """An event that could not be taken, with the reason. Make one of an exception with :meth:`of`.

    ``failed_at`` is by the clock of whoever made the letter; once it is stored, by the store's. Of a letter that was
    stored without its body (``is_body_kept`` is False), the event has neither body nor properties: the hub may.
    """

    key: PartitionKey
    event: Event
    error_type: str
    error_text: str
    traceback: str
    attempts: int
    stage: str = Stage.HANDLER
    state: LetterState = LetterState.WAITING
    failed_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    is_body_kept: bool = True

    @classmethod
    def of(
        cls, key: PartitionKey, event: Event, error: BaseException, *, attempts: int, stage: str = Stage.HANDLER
    ) -> DeadLetter:
        """The letter of an event that failed with an exception: its type, its text, and where it was raised.

        The traceback names files, lines and functions; it shows no values, which may be secret.
        """
        kind = type(error)
        module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
        return cls(
            key,
            event,
            error_type=f"{module}{kind.__qualname__}",
            error_text=_bounded(_text_of(error), ERROR_TEXT_LENGTH_MAX),
            traceback=_bounded("".join(_frames(error.__traceback__)), TRACEBACK_LENGTH_MAX),
            attempts=attempts,
            stage=stage,
        )


def _frames(trace: TracebackType | None) -> Iterator[str]:
    """Where an error passed, innermost last. Neither values nor lines of source: both may hold secrets."""
    while trace is not None:
        code = trace.tb_frame.f_code
        yield f'  File "{code.co_filename}", line {trace.tb_lineno}, in {code.co_name}\n'
        trace = trace.tb_next


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failed:  # noqa: BLE001 - an error of the user's own may have no text, and is kept all the same
        return f"(its text cannot be made: {type(failed).__name__})"


def _bounded(text: str, length_max: int) -> str:
    """The text, without its middle where it is too long: the first and the last words of an error tell most."""
    if len(text) <= length_max:
        return text
    half = length_max // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters ...\n{text[-half:]}"
