"""Bodies to columns, with the reason where one cannot be read: the rows and the dead letters of a SQL sink."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (as all of Spark's users have it)
from pyspark.sql.types import ArrayType, BooleanType, StringType, StructField, StructType

from hubline.errors import ConfigError

ERROR_COLUMN: Final = "_error"
"""Why a row is not a result but a dead letter; null for all others."""

_IS_EMPTY: Final = "_hubline_is_empty"
_TEXT: Final = "_hubline_text"
_PARSED: Final = "_hubline_parsed"
_MALFORMED: Final = "_hubline_malformed"
# Spark reads one value, and does not look at what comes after it. Put into a list within an object, the body has to end
# where that continues: of a body that has several objects, line by line, all but the first would be lost.
_BODIES: Final = "bodies"
_END: Final = "end"
_OPENING: Final = f'{{"{_BODIES}":['
_CLOSING: Final = f'],"{_END}":true}}'


def parse_json(events: DataFrame, schema: StructType | str, *, required: bool = False) -> DataFrame:
    """Parse JSON bodies into columns, and say in the column `_error` why a body could not be parsed.

    In a pipeline, rows with an `_error` become dead letters, so keep them and the column to the end of the stage. The
    fields of such rows are null: `where("_error IS NOT NULL OR status = 'paid'")` keeps them. A stage whose filter,
    join or aggregate by these fields would drop them is refused, unless it names `_error`, or a step before it does, as
    `where("_error IS NULL")`, or the column was dropped.

    A body that is not one JSON object, is not UTF-8, or has a value of another type is an error of its event. The query
    never stops for it.

    Args:
        events: A DataFrame with a column `body`, as the source `eventhubs` gives it.
        schema: The fields, as text (`"device string, celsius double"`) or as a `StructType`.
        required: Whether a missing field is an error. Default: False; the column is null then.

    Returns:
        The columns of `events`, one column for each field, and `_error`, which is null where all is well.

    Raises:
        ConfigError: The schema is not valid, or a field has the name of a column of `events`.

    Example:
        readings = parse_json(events, "device string, celsius double").where("_error IS NULL")
    """
    fields = _fields(events, schema)
    body = F.col("body").cast("string")
    text = F.when(F.is_valid_utf8(body), F.concat(F.lit(_OPENING), body, F.lit(_CLOSING)))
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _MALFORMED, "allowSingleQuotes": "false"}
    wanted = StructType(
        [
            StructField(_BODIES, ArrayType(fields)),
            StructField(_END, BooleanType()),
            StructField(_MALFORMED, StringType()),
        ]
    )
    # In steps: Spark interprets what stands beside from_json, and would look for the method behind is_valid_utf8 in
    # each row, which takes as long as parsing. The body itself goes no further than the first, unless it is wanted.
    read = events.withColumns({_TEXT: text, _IS_EMPTY: F.col("body").isNull()})
    parsed = read.withColumn(_PARSED, F.from_json(_TEXT, wanted, options))
    columns = [_field(field.name).alias(field.name) for field in fields]
    return parsed.select(*map(_quoted, events.columns), *columns, _error(fields, required=required).alias(ERROR_COLUMN))


def _field(name: str) -> Column:
    return _body().getField(name)


def _body() -> Column:
    return F.get(F.col(_PARSED).getField(_BODIES), F.lit(0))


def _quoted(name: str) -> str:
    """A column's name as Spark takes it whatever is in it: behind a dot it would look for a field."""
    return f"`{name.replace('`', '``')}`"


def _error(fields: StructType, *, required: bool) -> Column:
    parsed = F.col(_PARSED)
    is_one = F.size(parsed.getField(_BODIES)) == 1
    error = F.when(F.col(_IS_EMPTY), F.lit("the event has no body"))
    error = error.when(F.col(_TEXT).isNull(), F.lit("the body is not UTF-8 text"))
    error = error.when(
        ~F.coalesce(is_one, F.lit(False))
        | _body().isNull()
        | parsed.getField(_END).isNull()
        | parsed.getField(_MALFORMED).isNotNull(),
        F.lit(f"the body is not a JSON object of {fields.simpleString().removeprefix('struct')}"),
    )
    if required:
        for field in fields:
            error = error.when(_field(field.name).isNull(), F.lit(f"the field {field.name} is missing"))
    return error


def _fields(events: DataFrame, schema: StructType | str) -> StructType:
    fields = schema if isinstance(schema, StructType) else _from_text(schema)
    if not fields.fields:
        raise ConfigError(
            "parse_json has no fields to read from bodies. Name them, for example 'device string, celsius double'."
        )
    taken = {name.lower() for name in [*events.columns, ERROR_COLUMN]}
    if clash := [field.name for field in fields if field.name.lower() in taken]:
        raise ConfigError(
            f"the events already have a column {clash[0]!r}. Rename it first, "
            f"events.withColumnRenamed({clash[0]!r}, ...), or leave the field out."
        )
    if "body" not in events.columns:
        raise ConfigError(
            f"parse_json reads the column body, but the events have only {', '.join(events.columns)}. Keep body."
        )
    return fields


def _from_text(schema: str) -> StructType:
    fields = StructType.fromDDL(schema)
    if not isinstance(fields, StructType):
        raise ConfigError(f"{schema!r} is one type, not fields. Write 'device string, celsius double', for example.")
    return fields
