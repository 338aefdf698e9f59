"""The events: a seed gives the same ones every time.

Of 50 events, 1 is a person, 3 are auctions and 46 are bids, as in Nexmark's own generator. Half of the bids are for
the auction that is hot at the time; sellers and bidders are people who came lately. Bodies are JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from hubline.model.events import OUTGOING_SCHEMA

CYCLE: Final = 50
PEOPLE: Final = 1
AUCTIONS: Final = 3
BIDS: Final = CYCLE - PEOPLE - AUCTIONS

EVENTS_PER_SECOND: Final = 10_000
"""By the events' own times: a million of them are 100 seconds."""

STARTED_MS: Final = 1_750_000_000_000
LATER_MS: Final = 3_600_000
"""The last event of each kind comes so long after the others: by then every window is over."""

ACTIVE_PEOPLE: Final = 1000
OPEN_AUCTIONS: Final = 300
HOT_EVERY: Final = 100
CATEGORIES: Final = 5
FIRST_CATEGORY: Final = 10

FIRST_NAMES: Final = ("Ada", "Alan", "Barbara", "Edsger", "Grace", "John", "Katherine", "Leslie", "Margaret", "Tony")
LAST_NAMES: Final = ("Hamilton", "Hoare", "Hopper", "Johnson", "Lamport", "Liskov", "Lovelace", "McCarthy", "Turing")
PLACES: Final = (
    ("Phoenix", "AZ"),
    ("Los Angeles", "CA"),
    ("San Francisco", "CA"),
    ("Boise", "ID"),
    ("Portland", "OR"),
    ("Bend", "OR"),
    ("Seattle", "WA"),
    ("Cheyenne", "WY"),
)
CHANNELS: Final = ("apple", "baidu", "facebook", "google")

_Numbers = npt.NDArray[np.int64]


def generate(count: int, *, seed: int, batch_count: int = 10_000) -> Iterator[pa.RecordBatch]:
    """``count`` events in order (OUTGOING_SCHEMA), then one of each kind that ends the stream."""
    rng = np.random.default_rng(seed)
    for first in range(0, count, batch_count):
        numbers = np.arange(first, min(first + batch_count, count))
        yield _batch(numbers, STARTED_MS + numbers * 1000 // EVENTS_PER_SECOND, rng)
    # A person, an auction and a bid: the first, second and fifth of a cycle that is not there.
    last = (count // CYCLE + 1) * CYCLE
    ending = last + np.array([0, PEOPLE, PEOPLE + AUCTIONS])
    yield _batch(ending, np.full(len(ending), STARTED_MS + count * 1000 // EVENTS_PER_SECOND + LATER_MS), rng)


def _batch(numbers: _Numbers, times: _Numbers, rng: np.random.Generator) -> pa.RecordBatch:
    place = numbers % CYCLE
    is_person, is_bid = place < PEOPLE, place >= PEOPLE + AUCTIONS
    kinds = ((is_person, _people), (~is_person & ~is_bid, _auctions), (is_bid, _bids))
    made = [(np.flatnonzero(mask), make(numbers[mask], times[mask], rng)) for mask, make in kinds]
    # Each kind was made by itself: back into the order of the numbers.
    order = np.argsort(np.concatenate([places for places, _ in made]))
    bodies = pa.concat_arrays([bodies for _, (bodies, _) in made]).take(order)
    keys = pa.concat_arrays([keys for _, (_, keys) in made]).take(order)
    nothing = pa.nulls(len(numbers), OUTGOING_SCHEMA.field("properties").type)
    return pa.RecordBatch.from_arrays([bodies.cast(pa.binary()), keys, nothing], schema=OUTGOING_SCHEMA)


def _people(numbers: _Numbers, times: _Numbers, rng: np.random.Generator) -> tuple[pa.Array, pa.Array]:
    count = len(numbers)
    ids = _text(_person_ids(numbers))
    first, last = _chosen(FIRST_NAMES, rng, count), _chosen(LAST_NAMES, rng, count)
    place = rng.integers(len(PLACES), size=count)
    city, state = (pa.array([one[column] for one in PLACES]).take(pa.array(place)) for column in (0, 1))
    bodies = _json(
        ('{"kind":"person","id":', ids),
        (',"name":"', first),
        (" ", last),
        ('","email":"', first),
        (".", last),
        ('@example.org","city":"', city),
        ('","state":"', state),
        ('","at":', _text(times)),
    )
    return bodies, ids


def _auctions(numbers: _Numbers, times: _Numbers, rng: np.random.Generator) -> tuple[pa.Array, pa.Array]:
    count = len(numbers)
    ids = _auction_ids(numbers)
    initial = rng.integers(1, 1000, size=count)
    bodies = _json(
        ('{"kind":"auction","id":', _text(ids)),
        (',"item":"item ', _text(ids)),
        ('","seller":', _text(_recent(_person_ids(numbers), ACTIVE_PEOPLE, rng))),
        (',"category":', _text(FIRST_CATEGORY + rng.integers(CATEGORIES, size=count))),
        (',"initial":', _text(initial)),
        (',"reserve":', _text(initial + rng.integers(1, 1000, size=count))),
        (',"expires":', _text(times + rng.integers(10_000, 60_000, size=count))),
        (',"at":', _text(times)),
    )
    return bodies, _text(ids)


def _bids(numbers: _Numbers, times: _Numbers, rng: np.random.Generator) -> tuple[pa.Array, pa.Array]:
    count = len(numbers)
    newest = _auction_ids(numbers)
    hot = newest // HOT_EVERY * HOT_EVERY
    auctions = np.where(rng.random(count) < 0.5, hot, _recent(newest, OPEN_AUCTIONS, rng))
    ids = _text(auctions)
    bodies = _json(
        ('{"kind":"bid","auction":', ids),
        (',"bidder":', _text(_recent(_person_ids(numbers), ACTIVE_PEOPLE, rng))),
        (',"price":', _text(np.exp(rng.uniform(0, np.log(1e6), size=count)).astype(np.int64) + 100)),
        (',"channel":"', _chosen(CHANNELS, rng, count)),
        ('","at":', _text(times)),
    )
    return bodies, ids


def _person_ids(numbers: _Numbers) -> _Numbers:
    """The newest person at the time of each event, who has come by then."""
    return numbers // CYCLE * PEOPLE


def _auction_ids(numbers: _Numbers) -> _Numbers:
    """The newest auction at the time of each event; -1 before the first."""
    return numbers // CYCLE * AUCTIONS + np.clip(numbers % CYCLE - PEOPLE, -1, AUCTIONS - 1)


def _recent(newest: _Numbers, count: int, rng: np.random.Generator) -> _Numbers:
    """One of the last so many."""
    oldest: _Numbers = np.maximum(newest - count + 1, 0)
    chosen: _Numbers = oldest + (rng.random(len(newest)) * (newest - oldest + 1)).astype(np.int64)
    return chosen


def _chosen(texts: Sequence[str], rng: np.random.Generator, count: int) -> pa.Array:
    return pa.array(texts).take(pa.array(rng.integers(len(texts), size=count)))


def _text(numbers: _Numbers) -> pa.Array:
    return pa.array(numbers).cast(pa.string())


def _json(*fields: tuple[str, pa.Array]) -> pa.Array:
    pieces = [piece for before, values in fields for piece in (pa.scalar(before), values)]
    return pc.binary_join_element_wise(*pieces, pa.scalar("}"), pa.scalar(""))
