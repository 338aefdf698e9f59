"""Events: the Arrow schemas, one event, a batch of events, and new events to send."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import repeat
from typing import Any, Final, TypeAlias

import pyarrow as pa

from hubline.errors import ConfigError
from hubline.model.event_columns import EventColumns

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


# Found by place, a column takes half as long.
_OFFSET: Final[int] = EVENT_SCHEMA.get_field_index("offset")
_SEQUENCE_NUMBER: Final[int] = EVENT_SCHEMA.get_field_index("sequenceNumber")

# From Python values, Arrow would import pandas if it is there: a third of a second in every process that starts.
_NO_EVENTS = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in EVENT_SCHEMA], schema=EVENT_SCHEMA)


class _Placed:
    """Which event of its batch it is, for the values that are made when they are read."""

    __slots__ = ("_index",)

    _index: int


@dataclass(frozen=True, slots=True)
class Event(_Placed):
    """One event of a hub. Handlers of `on_event` get it, and iteration over an `EventBatch` makes it.

    Attributes:
        body: The bytes that the producer sent.
        partition: The id of the partition.
        offset: Where the hub keeps the event: an opaque string.
        sequence_number: Its number in the partition. Numbers rise by 1 from event to event.
        enqueued_time: When the hub received it, in UTC.
        partition_key: The producer's key, which chose the partition. None: it gave no key.
        properties: The producer's own properties.

    Example:
        reading = json.loads(event.body)
        print(event.partition_key, reading["celsius"])
    """

    body: bytes
    partition: str
    offset: str
    sequence_number: int
    enqueued_time: datetime
    partition_key: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """Return the body as text.

        Raises:
            UnicodeDecodeError: The body is not UTF-8.
        """
        return self.body.decode("utf-8")


def _made_when_read(name: str) -> None:
    """Lets a value of an event be its batch's columns, until it is read.

    Few handlers read all values, and a Python object of each would take longer than all that comes before the handler.
    """
    slot = Event.__dict__[name]
    get, put, values_of = slot.__get__, slot.__set__, EventColumns.__dict__[name].__get__

    def read(event: Event) -> Any:
        value = get(event)
        if value.__class__ is EventColumns:
            value = (values_of(value) or value.made(name))[event._index]  # noqa: SLF001
            put(event, value)
        return value

    setattr(Event, name, property(read, put))


for _name in ("offset", "enqueued_time", "properties"):
    _made_when_read(_name)


class _NewEvent(_Placed):
    """An event as it is made from columns: it has the slots of an `Event`, which it becomes, and they can be set."""

    __slots__ = Event.__slots__

    def __init__(
        self, body: bytes, partition: str, sequence: int, key: str | None, columns: EventColumns, index: int
    ) -> None:
        self.body = body
        self.partition = partition
        self.offset = columns
        self.sequence_number = sequence
        self.enqueued_time = columns
        self.partition_key = key
        self.properties = columns
        self._index = index


class EventBatch:
    """Consecutive events of one partition, in order, as the columns of one Arrow record batch.

    `len(batch)` counts the events. Iteration and `batch[0]` make an `Event` for each; `batch.arrow` and `batch.bodies`
    are faster. An empty batch is a heartbeat: no event arrived within `max_wait_seconds`.

    Args:
        partition: The id of the partition.
        arrow: The columns, with the schema `EVENT_SCHEMA`: `body`, `partition`, `offset`, `sequenceNumber`,
            `enqueuedTime`, `partitionKey` and `properties`.

    Raises:
        ConfigError: The columns are not those of `EVENT_SCHEMA`.

    Example:
        hot = batch.arrow.filter(pc.greater(pc.binary_length(batch.arrow["body"]), 100))
    """

    __slots__ = ("_ends", "_last_offset", "arrow", "partition")

    def __init__(self, partition: str, arrow: pa.RecordBatch) -> None:
        if not arrow.schema.equals(EVENT_SCHEMA):
            raise ConfigError(
                f"an EventBatch must have the columns of EVENT_SCHEMA, not {', '.join(arrow.schema.names)}."
            )
        self.partition = partition
        self.arrow = arrow
        self._ends: tuple[int, int] | None = None
        self._last_offset: str | None = None

    @classmethod
    def empty(cls, partition: str) -> EventBatch:
        """Make a batch without events.

        Args:
            partition: The id of the partition.
        """
        return cls(partition, _NO_EVENTS)

    @classmethod
    def concat(cls, batches: Iterable[EventBatch]) -> EventBatch:
        """Join consecutive batches of one partition.

        Args:
            batches: The batches, in order: one at least.

        Raises:
            ConfigError: There is no batch.
        """
        parts = list(batches)
        if not parts:
            raise ConfigError("there is nothing to concatenate. Give at least one batch.")
        if len(parts) == 1:
            return parts[0]
        return cls(parts[0].partition, pa.concat_batches([part.arrow for part in parts]))

    def __len__(self) -> int:
        count: int = self.arrow.num_rows
        return count

    def __getitem__(self, index: int) -> Event:
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(f"event {index} of a batch of {len(self)}")
        return next(iter(self.slice(index, 1)))

    def __iter__(self) -> Iterator[Event]:
        partition, arrow = self.partition, self.arrow
        columns, keys = EventColumns(arrow), arrow.column("partitionKey")
        given = (
            arrow.column("body").to_pylist(),
            arrow.column("sequenceNumber").to_numpy().tolist(),
            repeat(None, len(keys)) if keys.null_count == len(keys) else keys.to_pylist(),
            range(len(keys)),
        )
        for body, sequence, key, index in zip(*given, strict=True):
            event: Any = _NewEvent(body, partition, sequence, key, columns, index)
            event.__class__ = Event
            yield event

    def __repr__(self) -> str:
        if not len(self):
            return f"EventBatch(partition={self.partition!r}, empty)"
        return (
            f"EventBatch(partition={self.partition!r}, sequences "
            f"{self.first_sequence}..{self.last_sequence}, {len(self)} events)"
        )

    @property
    def nbytes(self) -> int:
        """The bytes that the events take in memory."""
        return int(self.arrow.nbytes)

    @property
    def first_sequence(self) -> int:
        """The sequence number of the first event. IndexError: the batch is empty."""
        return (self._ends or self._found_ends())[0]

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last event. IndexError: the batch is empty."""
        return (self._ends or self._found_ends())[1]

    @property
    def last_offset(self) -> str:
        """The offset of the last event. IndexError: the batch is empty."""
        if self._last_offset is None:
            self._require_events()
            self._last_offset = str(self.arrow.column(_OFFSET)[len(self) - 1].as_py())
        return self._last_offset

    @property
    def bodies(self) -> list[bytes]:
        """The bodies of all events, in order."""
        bodies: list[bytes] = self.arrow.column("body").to_pylist()
        return bodies

    def slice(self, start: int, count: int | None = None) -> EventBatch:
        """Return some of the events without copying them.

        Args:
            start: The index of the first.
            count: How many. Default: all that follow.
        """
        return EventBatch(self.partition, self.arrow.slice(start, count))

    def _found_ends(self) -> tuple[int, int]:
        self._require_events()
        sequences = self.arrow.column(_SEQUENCE_NUMBER)
        first, last = sequences[0].as_py(), len(sequences) - 1
        self._ends = ends = first, sequences[last].as_py() if last else first
        return ends

    def _require_events(self) -> None:
        if not len(self):
            raise IndexError("an empty batch has no first or last event: test len(batch) first")


NewEvent: TypeAlias = bytes | str | Mapping[str, Any] | Event
"""An event to send: its body, a mapping with `OUTGOING_SCHEMA`'s names, or one that was received."""

OutgoingRow: TypeAlias = tuple[bytes, str | None, list[tuple[str, str]] | None]
"""An event to send, as the columns of `OUTGOING_SCHEMA` take it."""


_OUTGOING_NAMES: Final = frozenset(OUTGOING_SCHEMA.names)
_ONE_EVENT: Final = (bytes, str, Mapping, Event)


def new_events(events: NewEvent | Iterable[NewEvent], *, partition_key: str | None = None) -> pa.RecordBatch:
    """Make events to send, as the columns that a sender takes.

    Args:
        events: Bodies (text is encoded as UTF-8), mappings with `body`, `partitionKey` and `properties`, or events
            that were received, which keep these three. One event, or several.
        partition_key: The partition key of the events that have no other. Default: None, no key.

    Returns:
        One row for each event.

    Raises:
        ConfigError: An event is none of these, or has a value that cannot be sent.

    Example:
        sender = await hub.open_sender()
        await sender.send(hubline.new_events(["21.5 C", {"body": "22 C", "properties": {"sensor": "7"}}]))
    """
    return outgoing_events(outgoing_rows(events, partition_key=partition_key))


def outgoing_rows(events: NewEvent | Iterable[NewEvent], *, partition_key: str | None = None) -> list[OutgoingRow]:
    """As `new_events`, row by row. Text that UTF-8 does not have is found only by `outgoing_events`."""
    if isinstance(events, _ONE_EVENT):
        return [_row(events, 0, partition_key)]
    try:
        several = iter(events)
    except TypeError:
        raise ConfigError(
            f"events to send cannot be of type {type(events).__name__}. Give an event, or several in a list."
        ) from None
    return [_row(event, index, partition_key) for index, event in enumerate(several)]


def outgoing_events(rows: Sequence[OutgoingRow]) -> pa.RecordBatch:
    """The rows as columns. Raises ConfigError for a value that cannot be sent."""
    columns = zip(*rows, strict=True) if rows else ((),) * len(OUTGOING_SCHEMA)
    arrays = [_column(field, values) for field, values in zip(OUTGOING_SCHEMA, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=OUTGOING_SCHEMA)


def _row(event: object, index: int, partition_key: str | None) -> OutgoingRow:
    if isinstance(event, bytes):
        return event, partition_key, None
    if isinstance(event, (dict, Mapping)):  # most are dictionaries, which is the quicker question
        if not event.keys() <= _OUTGOING_NAMES:
            raise ConfigError(
                f"event {index} has the unknown key {min(map(ascii, event.keys() - _OUTGOING_NAMES))}: an event to "
                "send has body, partitionKey and properties. Put anything else into its properties."
            )
        key, properties = event.get("partitionKey"), event.get("properties")
        return _as_bytes(event.get("body"), index), _or(key, partition_key), _as_pairs(properties, index)
    if isinstance(event, Event):
        return event.body, _or(event.partition_key, partition_key), _as_pairs(event.properties, index)
    return _as_bytes(event, index), partition_key, None


def _or(key: str | None, default: str | None) -> str | None:
    return default if key is None else key


def _as_bytes(body: object, index: int) -> bytes:
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        try:
            return body.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ConfigError(
                f"the body of event {index} is not text that UTF-8 can encode ({error}). Give bytes, or other text."
            ) from None
    what = "missing" if body is None else type(body).__name__
    raise ConfigError(f"the body of event {index} is {what}. Give bytes or str.")


def _as_pairs(properties: object, index: int) -> list[tuple[str, str]] | None:
    if not properties:
        return None
    if not isinstance(properties, Mapping):
        raise ConfigError(f"the properties of event {index} must be a mapping, not {type(properties).__name__}.")
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
                raise ConfigError(f"{what}. Give text that UTF-8 can encode.") from None
        raise
