"""What a query's progress adds up to."""

from __future__ import annotations

from typing import Any

from hubline.pipeline.progress import Tally
from hubline.spark.offsets import HUB_KEY


def batch(number: int, start: dict[str, Any] | None, end: dict[str, Any]) -> dict[str, Any]:
    """As Spark tells it, shortened."""
    source = {"startOffset": start, "endOffset": end, "latestOffset": end}
    return {"runId": "r", "batchId": number, "durationMs": {"addBatch": 1, "triggerExecution": 5}, "sources": [source]}


def offset(start: int, end: int) -> dict[str, Any]:
    return {HUB_KEY: {"name": "raw"}, "0": {"from": start, "to": end, "epoch": 1}}


def test_batch_that_only_moves_a_watermark_counts_no_event_again() -> None:
    tally = Tally()
    first, second = offset(0, 10), offset(10, 13)
    assert tally.add([batch(0, None, first), batch(1, first, first), batch(2, first, second)], now=1.0)
    assert (tally.events, tally.batches, tally.lag_events) == (13, 3, 0)
    assert not tally.add([batch(2, first, second)], now=2.0)
    assert tally.events == 13


def test_lag_is_that_of_the_partitions_that_are_held() -> None:
    tally = Tally()
    end = offset(0, 10) | {"1": {"from": 5, "to": 5, "epoch": 1, "held": False}}
    told = batch(0, None, end)
    told["sources"][0]["latestOffset"] = {"0": {"to": 13}, "1": {"to": 500}}

    tally.add([told], now=1.0)

    assert tally.lag_events == 3
