"""How much a batch takes of each partition, and which task reads what. Pure: numbers in, numbers out."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterable, Mapping

from hubline.spark.source.offsets import Range, in_order


def allot(backlogs: Mapping[str, int], budget: int, *, turn: int = 0) -> dict[str, int]:
    """Shares the budget out: small backlogs are taken whole, and the larger ones share the rest evenly.

    Where there is less than one for each, ``turn`` says whose turn it is: it rises from batch to batch.
    """
    waiting = [partition for partition in in_order(backlogs) if backlogs[partition] > 0]
    if budget < len(waiting):
        first = turn % len(waiting)
        return dict.fromkeys((waiting[first:] + waiting[:first])[:budget], 1)
    allotted: dict[str, int] = {}
    smallest_first = sorted(waiting, key=backlogs.__getitem__)
    for number, partition in enumerate(smallest_first):
        # What those before it left is shared by this one and those after it.
        allotted[partition] = min(backlogs[partition], budget // (len(waiting) - number))
        budget -= allotted[partition]
    return allotted


def pack(ranges: Iterable[Range], *, tasks: int, max_records: int | None) -> list[tuple[Range, ...]]:
    """At most ``tasks`` lists of about equal length. A partition stays in one, unless large ranges are to be split."""
    pieces = [piece for whole in ranges for piece in _split(whole, max_records)]
    pieces.sort(key=lambda piece: (-piece.count, piece.partition, piece.start))
    bins: list[list[Range]] = [[] for _ in range(min(tasks, len(pieces)))]
    heap = [(0, index) for index in range(len(bins))]
    for piece in pieces:
        count, index = heap[0]
        bins[index].append(piece)
        heapq.heapreplace(heap, (count + piece.count, index))
    return [tuple(sorted(packed, key=lambda piece: (piece.partition, piece.start))) for packed in bins]


def _split(whole: Range, max_records: int | None) -> list[Range]:
    """Pieces of about equal length, none longer than asked."""
    if max_records is None or whole.count <= max_records:
        return [whole]
    parts = -(-whole.count // max_records)
    edges = [whole.start + whole.count * number // parts for number in range(parts + 1)]
    return [Range(whole.partition, start, end, whole.replayed_to) for start, end in itertools.pairwise(edges)]
