"""Functions of a person's own in tasks: over Arrow tables of one partition, or event by event.

Rows keep what is known of their events (partition, sequence number, id, body, ...), unless the function gives such a
column itself: so a table knows what it was made of, a hub gets the same ids again, and a dead letter has its body.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from hubline.arrow_helpers import exact
from hubline.errors import ConfigError
from hubline.model.dead_letters import ERROR_TEXT_LENGTH_MAX
from hubline.model.events import Event
from hubline.spark.arrow_columns import plain
from hubline.spark.json_parsing import ERROR_COLUMN
from hubline.spark.tasks.gc_tuning import freeze_loaded_modules
from hubline.text import counted

TRACED: Final = ("partition", "sequenceNumber", "eventId")
"""By these a row is known to come from its event."""

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BatchHandler:
    """What a task does for ``@pipeline.batch_stage``. ``own`` are the columns that the function gives."""

    stage: str
    function: Callable[[pa.Table], pa.Table | pa.RecordBatch]
    own: pa.Schema
    output: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for events in by_partition(plain(batch)):
                yield from self._rows(events).to_batches()
        freeze_loaded_modules()

    def _rows(self, events: pa.Table) -> pa.Table:
        given = self.function(events)
        if isinstance(given, pa.RecordBatch):
            given = pa.Table.from_batches([given])
        if not isinstance(given, pa.Table):
            raise self._error(f"must return a pyarrow.Table, not {type(given).__name__}")
        if missing := [name for name in self.own.names if name not in given.column_names and name != ERROR_COLUMN]:
            raise self._error(
                f"returned no column {missing[0]}, which schema names. Return it, or remove it from schema."
            )
        if ERROR_COLUMN in given.column_names and ERROR_COLUMN not in self.own.names:
            raise self._error(
                f"returned {ERROR_COLUMN}, which makes rows dead letters, and schema does not name it. "
                f"Add '{ERROR_COLUMN} string'."
            )
        if set(TRACED) <= set(self.own.names):
            events = self._given(events, given)
        elif len(given) != len(events):
            raise self._untraced(len(events), len(given))
        arrays = [self._column(field, given, events) for field in self.output]
        return pa.Table.from_arrays(arrays, schema=self.output)

    def _column(self, field: pa.Field, given: pa.Table, events: pa.Table) -> pa.ChunkedArray:
        if field.name in self.own.names and field.name in given.column_names:
            return given.column(field.name).cast(field.type)
        if field.name in events.column_names:
            return events.column(field.name).cast(field.type)
        return pa.chunked_array([pa.nulls(len(given), field.type)])

    def _given(self, events: pa.Table, given: pa.Table) -> pa.Table:
        """The event of each row. Rows of others than the function was given would be lost, or pass for written."""
        for name in ("partition", "sequenceNumber"):
            values = given.column(name).cast(events.schema.field(name).type)
            places = pc.index_in(values, events.column(name).combine_chunks())
            if len(strange := values.filter(pc.is_null(places))):
                raise self._error(
                    f"returned a row with {name} {strange[0]}, which none of its events has. Return these columns "
                    "of the events unchanged, and give your column another name."
                )
        return events.take(places)  # which are those of the numbers: all events are of one partition

    def _untraced(self, events_count: int, rows_count: int) -> ConfigError:
        lost = [name for name in TRACED if name not in self.own.names]
        return self._error(
            f"returned {counted(rows_count, 'row')} for {counted(events_count, 'event')}, and hubline "
            f"cannot tell which row is of which event. Return {', '.join(lost)} as columns as well, and "
            "name them in schema."
        )

    def _error(self, text: str) -> ConfigError:
        return ConfigError(f"stage {self.stage}: its function {text}")


@dataclass(frozen=True, slots=True)
class EventHandler:
    """What a task does for ``@pipeline.event_stage``. An event that fails is a row with an ``_error``.

    So is one of which the function says so itself, whether or not the schema names that column.
    """

    stage: str
    function: Callable[[Event], Row | None]
    own: pa.Schema
    output: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in map(plain, batches):
            places, rows, errors = self._handled(batch)
            yield self._columns(batch.take(pa.array(places, pa.int64())), rows, errors)
        freeze_loaded_modules()

    def _handled(self, batch: pa.RecordBatch) -> tuple[list[int], list[Row], list[str | None]]:
        """Of each event that is not left out its place, its row, and why it failed."""
        places: list[int] = []
        rows: list[Row] = []
        errors: list[str | None] = []
        for place, record in enumerate(batch.to_pylist()):
            row, error = self._try(record)
            if row is not None or error is not None:
                places.append(place)
                rows.append(row or {})
                errors.append(error)
        return places, rows, errors

    def _try(self, record: Mapping[str, Any]) -> tuple[Row | None, str | None]:
        try:
            row = self.function(_event(record))
            return row, None if row is None else self._wrong(row)
        except Exception as error:  # noqa: BLE001 - whatever a handler raises makes its event a dead letter
            return {}, _as_text(f"{type(error).__name__}: {error}")

    def _wrong(self, row: object) -> str | None:
        """Why the event is a dead letter: what its row says itself, or what is wrong with the row."""
        if not isinstance(row, Mapping):
            return f"the function must return a dictionary or None, not {type(row).__name__}"
        if (error := row.get(ERROR_COLUMN)) is not None:
            return _as_text(str(error))
        if unknown := [name for name in row if name not in self.own.names and name != ERROR_COLUMN]:
            return f"the function returned {unknown[0]!a}, which schema does not name"
        return None

    def _columns(self, events: pa.RecordBatch, rows: list[Row], errors: list[str | None]) -> pa.RecordBatch:
        own = {field.name: self._own_column(field, rows, errors) for field in self.own if field.name != ERROR_COLUMN}
        failed = pa.array([error is not None for error in errors], pa.bool_())
        arrays = []
        for field in self.output:
            if field.name == ERROR_COLUMN:
                arrays.append(pa.array(errors, pa.string()))
            elif field.name in own:
                # A dead letter has what its event had, and not what was to be made of it.
                arrays.append(pc.if_else(failed, _of_events(events, field), own[field.name]))
            else:
                arrays.append(events.column(field.name).cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.output)

    def _own_column(self, field: pa.Field, rows: list[Row], errors: list[str | None]) -> pa.Array:
        """The values of a column. Those that do not fit are noted among the errors, and are null."""
        values = [None if error is not None else row.get(field.name) for row, error in zip(rows, errors, strict=True)]
        try:
            return exact(values, field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            pass  # the values are tried one by one, to find those to blame
        for place, value in enumerate(values):
            try:
                exact([value], field.type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                values[place] = None
                errors[place] = _as_text(f"{field.name} does not fit {field.type}: {error}")
        return exact(values, field.type)


def _of_events(events: pa.RecordBatch, field: pa.Field) -> pa.Array | pa.Scalar:
    """The events' own column of that name and type; else nothing."""
    if field.name in events.schema.names:
        column = events.column(field.name)
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", "UTC"))  # from the session's time zone
        if column.type == field.type:
            return column
    return pa.scalar(None, field.type)


def _as_text(error: str) -> str:
    """What went wrong, as a column can hold it: a text of JSON may have half a surrogate pair in it."""
    return error.encode("utf-8", "backslashreplace").decode()[:ERROR_TEXT_LENGTH_MAX]


def by_partition(batch: pa.RecordBatch) -> Iterator[pa.Table]:
    """The events of each partition, in their order. Tasks read one after the other: mostly there is one."""
    partitions = batch.column("partition")
    for partition in pc.unique(partitions).to_pylist():
        yield pa.Table.from_batches([batch.filter(pc.equal(partitions, partition))])


def _event(record: Mapping[str, Any]) -> Event:
    return Event(
        record["body"],
        record["partition"],
        record["offset"],
        record["sequenceNumber"],
        record["enqueuedTime"],
        record["partitionKey"],
        dict(record["properties"] or ()),
    )
