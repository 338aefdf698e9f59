"""The queries: each takes the events, of a stream or a batch, and gives its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

EVENT: Final = (
    "kind string, id long, name string, city string, state string, item string, seller long, category int, "
    "initial long, reserve long, expires long, auction long, bidder long, price long, channel string, at long"
)
WATERMARK: Final = "10 seconds"
"""Partitions are read evenly, and their events were made in order: none is later than that."""

EURO_PER_DOLLAR: Final = 0.908
SUGGESTED_CATEGORY: Final = 10
SUGGESTED_STATES: Final = ("OR", "ID", "CA")


def parsed(hub: DataFrame) -> DataFrame:
    event = F.from_json(F.col("body").cast("string"), EVENT)
    fields = hub.select(event.alias("event")).select("event.*")
    return fields.withColumn("at", F.timestamp_millis("at")).withWatermark("at", WATERMARK)


def _of(events: DataFrame, kind: str, *columns: str) -> DataFrame:
    return events.where(F.col("kind") == kind).select(*columns)


def _bids(events: DataFrame) -> DataFrame:
    return _of(events, "bid", "auction", "bidder", "price", "channel", "at")


def pass_through(events: DataFrame) -> DataFrame:
    return _bids(events)


def currency_conversion(events: DataFrame) -> DataFrame:
    return _bids(events).withColumn("price", F.col("price") * EURO_PER_DOLLAR)


def selection(events: DataFrame) -> DataFrame:
    """Bids on some of the auctions."""
    return _bids(events).where(F.col("auction") % 123 == 0).select("auction", "price")


def local_item_suggestion(events: DataFrame) -> DataFrame:
    """Who is selling in some category and some states."""
    auctions = _of(events.where(F.col("category") == SUGGESTED_CATEGORY), "auction", "id", "seller")
    people = _of(events, "person", F.col("id").alias("person"), "name", "city", "state")  # type: ignore[arg-type]
    people = people.where(F.col("state").isin(*SUGGESTED_STATES))
    return auctions.join(people, F.col("seller") == F.col("person")).select("name", "city", "state", "id")


def hot_items(events: DataFrame) -> DataFrame:
    """The auction with the most bids in each ten seconds, every two seconds; of several the one with the lowest id."""
    counts = _bids(events).groupBy(F.window("at", "10 seconds", "2 seconds"), "auction").agg(F.count("*").alias("bids"))
    most = F.max(F.struct("bids", (-F.col("auction")).alias("negative"))).alias("most")
    return (
        counts.groupBy("window")
        .agg(most)
        .select(F.col("window.start").alias("start"), (-F.col("most.negative")).alias("auction"), "most.bids")
    )


def new_users(events: DataFrame) -> DataFrame:
    """Who came and opened an auction within the same ten seconds."""
    during = F.window("at", "10 seconds").alias("during")
    people = _of(events, "person", "id", "name", "at").groupBy(during, "id", "name").agg(F.count("*").alias("times"))
    sellers = _of(events, "auction", "seller", "at").groupBy(during, "seller").agg(F.count("*").alias("auctions"))
    joined = people.alias("p").join(sellers.alias("s"), F.expr("p.during = s.during AND p.id = s.seller"))
    return joined.select("id", "name", F.col("p.during.start").alias("start"))


QUERIES: Final[Mapping[str, Callable[[DataFrame], DataFrame]]] = {
    "q0": pass_through,
    "q1": currency_conversion,
    "q2": selection,
    "q3": local_item_suggestion,
    "q5": hot_items,
    "q8": new_users,
}

WINDOWED: Final = ("q5", "q8")
"""Of these, a stream never answers for the last window: it waits for what comes after it."""
