from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pyarrow as pa

from benchmarks.nexmark.generator import LATER_MS, generate

COUNT = 5000


def events(*, seed: int = 1, batch_count: int = 1000) -> list[dict[str, Any]]:
    return [
        json.loads(body) for batch in generate(COUNT, seed=seed, batch_count=batch_count) for body in _bodies(batch)
    ]


def _bodies(batch: pa.RecordBatch) -> list[bytes]:
    bodies: list[bytes] = batch.column("body").to_pylist()
    return bodies


def test_a_seed_gives_the_same_events_and_another_gives_others() -> None:
    assert events() == events()
    assert events() != events(seed=2)


def test_the_kinds_come_in_their_proportion() -> None:
    assert Counter(event["kind"] for event in events()[:COUNT]) == {"person": 100, "auction": 300, "bid": 4600}


def test_events_are_about_what_came_before_them() -> None:
    people, auctions = set(), set()
    for event in events()[:COUNT]:
        if event["kind"] == "person":
            people.add(event["id"])
        elif event["kind"] == "auction":
            assert event["seller"] in people
            auctions.add(event["id"])
        else:
            assert event["auction"] in auctions
            assert event["bidder"] in people


def test_the_stream_ends_with_one_of_each_kind_long_after_all_others() -> None:
    *others, person, auction, bid = events()
    assert [event["kind"] for event in (person, auction, bid)] == ["person", "auction", "bid"]
    assert {event["at"] - LATER_MS for event in (person, auction, bid)} == {others[0]["at"] + COUNT // 10}
