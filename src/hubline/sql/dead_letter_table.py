"""Dead letters in the table `hubline_dead_letter`: as rows, and the queries of a sink about them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Self

from hubline.errors import RecordDamaged
from hubline.model.dead_letters import DeadLetter, DeadLetterState
from hubline.model.events import Event
from hubline.model.keys import GroupKey, PartitionKey
from hubline.sql.checkpoint_rows import of_partition
from hubline.sql.dialect import Connection, Statement
from hubline.sql.queries import Queries

MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class DeadLetterRow(NamedTuple):
    """The columns of a dead letter, in the order of the table, up to ``state``; the database adds ``failed_at``."""

    namespace: str
    hub: str
    consumer_group: str
    partition_id: str
    sequence_number: int
    offset: str
    enqueued_at: datetime
    partition_key: str | None
    body: bytes | None
    properties: str | None
    stage: str
    error_type: str
    error_text: str
    traceback: str
    attempts: int
    state: str

    @classmethod
    def of(cls, dead_letter: DeadLetter, *, keep_body: bool) -> Self:
        key, event = dead_letter.key, dead_letter.event
        keeps = keep_body and dead_letter.is_body_kept
        return cls(
            key.namespace,
            key.hub,
            key.group,
            key.partition,
            event.sequence_number,
            event.offset,
            event.enqueued_time,
            None if event.partition_key is None else storable(event.partition_key),
            event.body if keeps else None,
            # ASCII: characters that no database takes are escaped, and come back.
            _json(event.properties) if keeps else None,
            storable(dead_letter.stage),
            storable(dead_letter.error_type),
            storable(dead_letter.error_text),
            storable(dead_letter.traceback),
            dead_letter.attempts,
            dead_letter.state,
        )

    def in_ascii(self) -> Self:
        """For a database that has not all characters: an event that nobody can keep would stop its partition."""
        return self._replace(
            partition_key=None if self.partition_key is None else _ascii(self.partition_key),
            error_type=_ascii(self.error_type),
            error_text=_ascii(self.error_text),
            traceback=_ascii(self.traceback),
        )


COLUMNS = (
    "namespace",
    "hub",
    "consumer_group",
    "partition_id",
    "sequence_number",
    '"offset"',
    "enqueued_at",
    "partition_key",
    "body",
    "properties",
    "stage",
    "error_type",
    "error_text",
    "traceback",
    "attempts",
    "state",
)
"""The table's names for the fields of :class:`DeadLetterRow`."""


class DeadLetterTable:
    """The dead letters of partitions, by one connection of a sink."""

    def __init__(self, connection: Connection, queries: Queries) -> None:
        self._connection = connection
        self._queries = queries

    def waiting_keys(self, key: PartitionKey, *, last_sequence: int) -> set[str]:
        """The partition keys that have a dead letter waiting, of an event up to this one."""
        params = {**of_partition(key), "last_sequence": last_sequence}
        rows = self._connection.read(Statement(self._queries.waiting_keys, params))
        return {str(partition_key) for (partition_key,) in rows}

    def waiting_sequences(self, key: PartitionKey, *, first_sequence: int, last_sequence: int) -> list[int]:
        """The events of a range that have a dead letter waiting."""
        params = {**of_partition(key), "first_sequence": first_sequence, "last_sequence": last_sequence}
        rows: Any = self._connection.read(Statement(self._queries.waiting_dead_letters, params))
        return [sequence for (sequence,) in rows]

    def mark_redriven(self, key: PartitionKey, sequence: int) -> None:
        params = {**of_partition(key), "sequence_number": sequence}
        self._connection.read(Statement(self._queries.settle_dead_letter, params))

    def last_sequence(self, key: PartitionKey) -> int:
        """The newest event of the partition that has a dead letter, whatever its state; -1 if there is none."""
        ((sequence,),) = self._connection.read(Statement(self._queries.last_dead_letter, of_partition(key)))
        return sequence if isinstance(sequence, int) else -1

    def remove(self, key: PartitionKey, sequence: int) -> None:
        params = {**of_partition(key), "sequence_number": sequence}
        self._connection.read(Statement(self._queries.remove_dead_letter, params))


def micros(time: datetime) -> int:
    """Microseconds since 1970, as SQLite keeps an enqueued time."""
    return (time - _EPOCH) // MICROSECOND


def storable(text: str) -> str:
    """Text that every database takes: what is not a character, and the zero that PostgreSQL refuses, is escaped."""
    if text.isascii() and "\x00" not in text:
        return text
    return text.encode("utf-8", "backslashreplace").decode().replace("\x00", "\\x00")


def _ascii(text: str) -> str:
    return text.encode("ascii", "backslashreplace").decode()


def _json(properties: Mapping[str, str]) -> str:
    return json.dumps(dict(properties)) if properties else "{}"


def read_dead_letter(group: GroupKey, row: Sequence[object]) -> DeadLetter:
    """A dead letter from the columns after the group's, then ``failed_at``; times as microseconds since 1970."""
    (partition, sequence, offset, enqueued, partition_key, body, properties, *error, attempts, state, failed_at) = row
    stage, error_type, error_text, traceback = map(str, error)
    return DeadLetter(
        group.partition(str(partition)),
        Event(
            body=bytes(body) if isinstance(body, (bytes, memoryview)) else b"",
            partition=str(partition),
            offset=str(offset),
            sequence_number=_number(sequence),
            enqueued_time=_EPOCH + _number(enqueued) * MICROSECOND,
            partition_key=None if partition_key is None else str(partition_key),
            properties=json.loads(properties) if isinstance(properties, str) else {},
        ),
        error_type=error_type,
        error_text=error_text,
        traceback=traceback,
        attempts=_number(attempts),
        stage=stage,
        state=DeadLetterState(str(state)),
        failed_at=_EPOCH + _number(failed_at) * MICROSECOND,
        is_body_kept=body is not None,
    )


def read_dead_letter_row(row: Sequence[object]) -> DeadLetter:
    """The dead letter in a row of `DeadLetterQueries.page`."""
    namespace, hub, group, *own = row
    try:
        return read_dead_letter(GroupKey(str(namespace), str(hub), str(group)), own)
    except (ValueError, TypeError, AssertionError) as error:
        partition, sequence = own[:2]
        raise RecordDamaged(
            f"the dead letter {namespace}/{hub}/{group}/{partition}/{sequence} cannot be read "
            f"({type(error).__name__}). Fix its row in hubline_dead_letter, or delete it.",
            partition=str(partition),
            record="dead letter",
        ) from None


def _number(value: object) -> int:
    assert isinstance(value, int)  # noqa: S101 (the column holds nothing else)
    return value
