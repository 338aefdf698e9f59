"""Rows as PostgreSQL takes them by COPY: binary from Arrow, or text for types that have no binary form here."""

from __future__ import annotations

import io
from collections.abc import Iterator

import pgpq
import pgpq.encoders
import pgpq.schema
import pyarrow as pa
import pyarrow.csv

from hubline.sinks.sql_sink.table_schema import InsertPlan, Rejection, family

COPY_ROWS = 8_192
"""Rows encoded and sent at a time: the server works on some while the next are encoded, and a rejection costs one."""


def encode_binary(rows: pa.Table, plan: InsertPlan) -> Iterator[bytes]:
    encoder = _encoder(rows.schema, plan)
    yield encoder.write_header()
    for batch in rows.to_batches(max_chunksize=COPY_ROWS):
        try:
            data = encoder.write_batch(batch)
        except ValueError as error:
            raise Rejection(str(error), kind="ValueError") from None
        yield data
    yield encoder.finish()


def _encoder(schema: pa.Schema, plan: InsertPlan) -> pgpq.ArrowToPostgresBinaryEncoder:
    documents = [column.name for column in plan.columns if column.type_name == "jsonb"]
    if not documents:
        return pgpq.ArrowToPostgresBinaryEncoder(schema)  # made at a fraction of the cost
    builders = {field.name: pgpq.ArrowToPostgresBinaryEncoder.infer_encoder(field) for field in schema}
    for name in documents:
        builders[name] = pgpq.encoders.StringEncoderBuilder.new_with_output(schema.field(name), pgpq.schema.Jsonb())
    return pgpq.ArrowToPostgresBinaryEncoder.new_with_encoders(schema, builders)


def encode_csv(rows: pa.Table) -> Iterator[bytes]:
    """Every value in quotes, so that an empty text is none of the NULLs, which are nothing at all."""
    options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="all_valid")
    for batch in rows.to_batches(max_chunksize=COPY_ROWS):
        buffer = io.BytesIO()
        pyarrow.csv.write_csv(_as_text(batch), buffer, options)
        yield buffer.getvalue()


def _as_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Binary columns as PostgreSQL writes them; the others as Arrow does."""
    arrays = [
        pa.array([None if value is None else f"\\x{value.hex()}" for value in column.to_pylist()], pa.string())
        if family(column.type) == "binary"
        else column
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=batch.schema.names)
