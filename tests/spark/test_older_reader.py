"""How Spark 4.0 and 4.1 call a stream reader: without saying where a batch starts, its limit, or its trigger."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition

from hubline.errors import ConfigError
from hubline.spark.compatibility import OlderReader, ReadAllAvailable, ReadLimit, ReadMaxRows
from hubline.spark.source.offsets import Entry, StreamOffset

LIMIT = 30


class Reader:
    """A hub with one partition. It plans as the real one does, by where a batch starts and how much it may take."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.calls: list[str] = []

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return StreamOffset("today").to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        done = StreamOffset.from_json(start).entries.get("0", Entry(0, 0)).end
        end = self.count if isinstance(limit, ReadAllAvailable) else min(self.count, done + LIMIT)
        self.calls.append(f"{done}-{end}")
        return start if end == done else StreamOffset("today", {"0": Entry(done, end, 1)}).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(LIMIT)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"0": {"to": self.count}}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return []

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return iter(())

    def settle(self) -> None:
        self.calls.append("settled")

    def stop(self) -> None:
        self.calls.append("stopped")


def older(reader: Reader, *, limits_first_batch: bool = False, is_ended_by_batches: bool = True) -> OlderReader:
    return OlderReader(reader, limits_first_batch=limits_first_batch, is_ended_by_batches=is_ended_by_batches)


def batch(reader: OlderReader, start: dict[str, Any]) -> dict[str, Any]:
    """A trigger: the end of the batch is asked for, and then what it reads."""
    end = reader.latestOffset()
    reader.partitions(start, end)
    return end


def test_first_batch_takes_all_since_there_may_be_no_other_and_the_limit_counts_from_the_second_on() -> None:
    reader = Reader(100)
    spark = older(reader)
    end = batch(spark, spark.initialOffset())
    reader.count = 200
    batch(spark, end)
    assert reader.calls == ["settled", "0-100", "100-130"]


def test_first_batch_that_found_nothing_was_the_first_one() -> None:
    reader = Reader(0)
    spark = older(reader)
    end = spark.latestOffset()
    assert end == spark.initialOffset()
    reader.count = 100
    assert StreamOffset.from_json(spark.latestOffset()).entries["0"].end == LIMIT


def test_option_limits_the_first_batch_too() -> None:
    reader = Reader(100)
    batch(older(reader, limits_first_batch=True), StreamOffset("today").to_json())
    assert reader.calls == ["0-30"]


def test_restart_continues_where_spark_says_that_the_query_stands() -> None:
    reader = Reader(100)
    spark, done = older(reader), StreamOffset("today", {"0": Entry(0, 40, 1)}).to_json()
    spark.partitions(done, done)
    batch(spark, done)
    assert reader.calls == ["settled", "40-100"]


def test_limit_counts_after_a_batch_that_was_interrupted() -> None:
    reader = Reader(100)
    spark = older(reader)
    before, interrupted = (StreamOffset("today", {"0": Entry(0, to, 1)}).to_json() for to in (10, 40))
    spark.partitions(interrupted, interrupted)
    spark.partitions(before, interrupted)
    batch(spark, interrupted)
    assert reader.calls == ["40-70"]


@pytest.mark.parametrize("is_known", [False, True])
def test_query_that_ends_after_a_batch_that_was_repeated_says_what_is_left(
    caplog: pytest.LogCaptureFixture, *, is_known: bool
) -> None:
    reader = Reader(100)
    spark = older(reader, is_ended_by_batches=not is_known)
    before, interrupted = (StreamOffset("today", {"0": Entry(0, to, 1)}).to_json() for to in (10, 40))
    spark.partitions(interrupted, interrupted)
    spark.partitions(before, interrupted)
    with caplog.at_level(logging.WARNING):
        spark.stop()
    said = [record.getMessage() for record in caplog.records]
    assert [text for text in said if "events_left count=60" in text and "start the query again" in text] == said
    assert len(said) == (0 if is_known else 1)
    assert reader.calls == ["stopped"]


def test_query_that_read_all_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    reader = Reader(100)
    spark = older(reader)
    batch(spark, spark.initialOffset())
    reader.count = 150  # these came later
    spark.stop()
    assert caplog.records == []


def test_offset_says_where_the_hub_ends_for_the_lag() -> None:
    reader = Reader(100)
    end = batch(older(reader, limits_first_batch=True), StreamOffset("today").to_json())
    assert end["@hub"]["ends"] == {"0": 100}
    assert StreamOffset.from_json(end) == StreamOffset("today", {"0": Entry(0, 30, 1)})


def test_setting_by_which_events_would_come_twice_is_refused() -> None:
    reader = Reader(100)
    spark, done = older(reader), StreamOffset("today", {"0": Entry(0, 40, 1)}).to_json()
    spark.latestOffset()
    with pytest.raises(ConfigError, match=r"triggerAvailableNowWrapper\.enabled"):
        spark.partitions(done, done)
