"""Rows as events: which columns are taken, what is refused before anything is sent, and where each event goes."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimestampType,
)

from hubline.errors import ConfigError
from hubline.event_ids import ID_PROPERTY
from hubline.hubs.partition_hash import partition_index
from hubline.model.events import OUTGOING_SCHEMA
from hubline.producer.routing import ANYWHERE
from hubline.spark.compatibility import arrow_schema
from hubline.spark.schema import SOURCE_SCHEMA
from hubline.spark.sink.row_layout import Outgoing, RowLayout

PARTITIONS = ("0", "1", "2", "3")
TEXTS = MapType(StringType(), StringType())


def schema(**columns: DataType) -> StructType:
    made = StructType()
    for name, kind in columns.items():
        made.add(name, kind)
    return made


def outgoing(
    columns: StructType, *rows: tuple[object, ...], first_row: int = 0, are_types_large: bool = False
) -> Outgoing:
    arrow = to_arrow_schema(columns, prefers_large_types=True) if are_types_large else arrow_schema(columns)
    values = [pa.array([row[place] for row in rows], field.type) for place, field in enumerate(arrow)]
    batch = pa.RecordBatch.from_arrays(values, schema=arrow)
    return RowLayout(columns).outgoing(batch, PARTITIONS, first_row=first_row)


class TestColumns:
    def test_the_body_alone_is_enough(self) -> None:
        for kind, body in ((StringType(), "ä"), (BinaryType(), "ä".encode())):
            made = outgoing(schema(body=kind), (body,))

            assert made.events.schema.equals(OUTGOING_SCHEMA)
            assert made.events.to_pylist() == [{"body": "ä".encode(), "partitionKey": None, "properties": None}]
            assert made.targets.tolist() == [ANYWHERE]

    def test_events_are_the_same_where_spark_has_large_types(self) -> None:
        columns = schema(body=BinaryType(), partitionKey=StringType(), properties=TEXTS, eventId=StringType())
        row = (b"\xff", "ann", {"a": "b"}, "ns/hub@1/0/7/0")
        made = outgoing(columns, row, are_types_large=True)

        assert made.events.equals(outgoing(columns, row).events)
        assert made.targets.tolist() == [partition_index("ann", len(PARTITIONS))]

    def test_text_that_is_no_utf_8_is_made_so_but_for_the_body(self) -> None:
        """No reader could get past an event with such a property, or such a key."""
        columns = schema(body=StringType(), partitionKey=StringType(), properties=TEXTS)
        bad = pa.StringArray.from_buffers(1, *pa.array([b"a\xff"]).buffers()[1:])
        properties = pa.MapArray.from_arrays([0, 1], bad, bad)
        batch = pa.RecordBatch.from_arrays([bad, bad, properties], schema=arrow_schema(columns))

        made = RowLayout(columns).outgoing(batch, PARTITIONS, first_row=0).events.to_pylist()

        assert made == [{"body": b"a\xff", "partitionKey": "a\ufffd", "properties": [("a\ufffd", "a\ufffd")]}]

    def test_a_dataframe_that_was_read_from_a_hub_may_be_written_as_it_is(self) -> None:
        RowLayout(SOURCE_SCHEMA)

    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("body", IntegerType()),
            ("body", NullType()),
            ("body", ArrayType(BinaryType())),
            ("body", StructType()),
            ("partitionId", DoubleType()),
            ("partitionId", BooleanType()),
            ("partitionKey", BinaryType()),
            ("partitionKey", LongType()),
            ("properties", StringType()),
            ("properties", MapType(StringType(), IntegerType())),
            ("properties", MapType(BinaryType(), StringType())),
            ("properties", ArrayType(StringType())),
            ("eventId", TimestampType()),
            ("eventId", LongType()),
        ],
    )
    def test_another_type_is_refused_by_name(self, name: str, kind: DataType) -> None:
        columns = schema(**{"body": BinaryType(), name: kind})

        with pytest.raises(ConfigError, match=f"the column {name} must be .*, not .*Cast it"):
            RowLayout(columns)

    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            (schema(), "there is no column body"),
            (
                schema(partitionKey=StringType()),
                "there is no column body, string or binary, among 'partitionKey'",
            ),
            (schema(Body=StringType()), r"the column 'Body' is unknown \(did you mean body\?\)"),
            (schema(body=StringType(), partition_key=StringType()), r"did you mean partitionKey\?"),
            (schema(body=StringType(), temperature=DoubleType()), "'temperature' is unknown .*properties"),
            (schema(body=StringType(), partition=StringType(), partitionId=StringType()), "mean the same. Drop one"),
            (StructType().add("body", StringType()).add("body", BinaryType()), "there are two columns body"),
            (schema(**{"body": StringType(), "\n\x1b[2J" + "x" * 10_000: StringType()}), "is unknown"),
        ],
    )
    def test_wrong_columns_are_refused_by_name(self, columns: StructType, message: str) -> None:
        with pytest.raises(ConfigError, match=message) as caught:
            RowLayout(columns)

        assert str(caught.value).isprintable()

    def test_columns_of_nothing_but_nulls_may_have_no_type(self) -> None:
        none = NullType()
        columns = schema(body=StringType(), partitionKey=none, properties=none, partitionId=none, eventId=none)

        assert outgoing(columns, ("a", None, None, None, None)).targets.tolist() == [ANYWHERE]


class TestRows:
    @pytest.mark.parametrize(
        ("columns", "row", "message"),
        [
            (schema(body=BinaryType()), (None,), "has a null body"),
            (
                schema(body=StringType(), partitionId=StringType()),
                ("a", "4"),
                "names a partition that the hub does not have: it has 0 to 3",
            ),
            (schema(body=StringType(), partitionId=IntegerType()), ("a", -1), "names a partition"),
            (schema(body=StringType(), partition=StringType()), ("a", ""), "names a partition"),
            (schema(body=StringType(), partition=StringType(), partitionKey=StringType()), ("a", "1", "k"), "has both"),
            (schema(body=StringType(), eventId=StringType()), ("a", "17"), "has an eventId that is not valid"),
        ],
    )
    def test_a_wrong_row_is_refused_by_its_number(self, columns: StructType, row: tuple[object], message: str) -> None:
        good = ("a", *(None for _ in row[1:]))

        with pytest.raises(ConfigError, match=f"row 1001 of the task {message}"):
            outgoing(columns, good, row, row, first_row=1000)

    def test_a_wrong_id_is_refused_with_where_its_row_was_read(self) -> None:
        columns = schema(body=StringType(), partition=StringType(), sequenceNumber=LongType(), eventId=StringType())

        with pytest.raises(
            ConfigError, match=r"row 1 of the task \(sequence number 17 of partition '3'\) has an eventId .*, 'x\\n'"
        ):
            outgoing(columns, ("a", "3", 16, "h/3/16/0"), ("b", "3", 17, "x\n"))

    def test_properties_arrive_as_they_are_and_nulls_among_them(self) -> None:
        columns = schema(body=StringType(), properties=TEXTS)

        made = outgoing(columns, ("a", [("x", "1"), ("y", None)]), ("b", None), ("c", []))

        assert made.events.column("properties").to_pylist() == [[("x", "1"), ("y", None)], None, []]

    def test_an_event_id_travels_in_the_properties(self) -> None:
        columns = schema(body=StringType(), properties=TEXTS, eventId=StringType())

        made = outgoing(columns, ("a", [("x", "1")], "h/0/7/0"), ("b", None, None))

        assert made.events.column("properties").to_pylist()[0] == [("x", "1"), (ID_PROPERTY, "h/0/7/0")]
        assert not made.events.column("properties").to_pylist()[1]


class TestTargets:
    def test_a_row_goes_where_it_says_or_where_its_key_belongs(self) -> None:
        columns = schema(body=StringType(), partitionId=StringType(), partitionKey=StringType())

        made = outgoing(
            columns, ("a", "2", None), ("b", None, "k"), ("c", None, None), ("d", "0", None), ("e", None, "")
        )

        assert made.targets.tolist() == [2, partition_index("k", 4), ANYWHERE, 0, partition_index("", 4)]

    def test_numbers_name_partitions_too(self) -> None:
        assert outgoing(schema(body=StringType(), partitionId=LongType()), ("a", 3), ("b", None)).targets.tolist() == [
            3,
            ANYWHERE,
        ]

    def test_what_came_from_one_partition_goes_to_one_partition_however_often_it_is_sent(self) -> None:
        columns = schema(body=StringType(), partitionKey=StringType(), eventId=StringType())
        rows = [("a", None, f"h/{origin}/{number}/0") for origin in ("0", "5", "x-y") for number in range(3)]

        targets = outgoing(columns, *rows).targets.tolist()

        assert targets == [0, 0, 0, 1, 1, 1, *[partition_index("x-y", 4)] * 3]
        assert outgoing(columns, ("a", "k", "h/5/1/0")).targets.tolist() == [partition_index("k", 4)]

    def test_an_id_that_an_event_carries_already_counts_as_well(self) -> None:
        columns = schema(body=StringType(), properties=TEXTS)

        made = outgoing(columns, ("a", [(ID_PROPERTY, "h/2/1/0")]), ("b", [(ID_PROPERTY, "of somebody else")]))

        assert made.targets.tolist() == [2, ANYWHERE]
