"""What a query's progress adds up to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hubline.pipeline.progress import DataLoss, Tally
from hubline.spark.source.offsets import HUB_KEY


def batch(number: int, start: dict[str, Any] | None, end: dict[str, Any]) -> dict[str, Any]:
    """As Spark tells it, shortened."""
    source = {"startOffset": start, "endOffset": end, "latestOffset": end}
    spent = {"addBatch": 1, "triggerExecution": 5}
    return {"runId": "r", "batchId": number, "timestamp": f"{number}", "durationMs": spent, "sources": [source]}


def offset(start: int, end: int) -> dict[str, Any]:
    return {HUB_KEY: {"name": "raw"}, "0": {"from": start, "to": end, "epoch": 1}}


def test_one_event_that_is_gone_is_one() -> None:
    assert "raw: 1 event is gone (expired)" in str(DataLoss("raw", "0", "expired", 4, 5))
    assert "raw: 2 events are gone (expired)" in str(DataLoss("raw", "0", "expired", 4, 6))


def test_batch_that_only_moves_a_watermark_counts_no_event_again() -> None:
    tally = Tally()
    first, second = offset(0, 10), offset(10, 13)
    assert tally.add([batch(2, first, second), batch(1, first, first), batch(0, None, first)], now=1.0)
    assert (tally.events, tally.batches, tally.lag_events) == (13, 3, 0)


def test_progress_is_read_up_to_what_was_read_before() -> None:
    tally = Tally()
    known = batch(0, None, offset(0, 10))
    idle = known | {"timestamp": "later", "durationMs": {"triggerExecution": 1}}
    assert tally.add([known], now=1.0)

    def newest_first(*new: dict[str, Any]) -> Iterator[dict[str, Any]]:
        yield from (*new, known)
        raise AssertionError("read on, past what was known")

    assert not tally.add(newest_first(), now=2.0)
    assert tally.add(newest_first(batch(1, offset(0, 10), offset(10, 13))), now=3.0)
    assert (tally.events, tally.batches) == (13, 2)
    known = batch(1, offset(0, 10), offset(10, 13))
    assert not tally.add(newest_first(idle), now=4.0)
    assert (tally.events, tally.batches) == (13, 2)


def test_lag_is_that_of_the_partitions_that_are_held() -> None:
    tally = Tally()
    end = offset(0, 10) | {"1": {"from": 5, "to": 5, "epoch": 1, "held": False}}
    behind = batch(0, None, end)
    behind["sources"][0]["latestOffset"] = {"0": {"to": 13}, "1": {"to": 500}}

    tally.add([behind], now=1.0)

    assert tally.lag_events == 3


def test_batch_that_replays_what_was_handled_before_gets_no_further() -> None:
    tally = Tally()
    replayed = {**offset(0, 10), "0": {"from": 0, "to": 10, "epoch": 1, "replayed_to": 10}}
    assert not tally.add([batch(0, None, replayed)], now=1.0)
    assert not tally.add([batch(1, replayed, replayed)], now=2.0)
    mixed = {**offset(10, 13), "0": {"from": 8, "to": 13, "epoch": 1, "replayed_to": 10}}
    assert tally.add([batch(2, replayed, mixed)], now=3.0)
    assert (tally.events, tally.batches) == (15, 3)
