"""Partition keys land where the service and the official SDKs put them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubline.hubs.partition_hash import hash_codes, partition_index, partition_indexes

# From the tests of the official SDKs, which took them from the service.
KNOWN_HASHES = {
    "7": -15263,
    "131": 30562,
    "7149583486996073602": 12977,
    "FWfAT": -22341,
    "sOdeEAsyQoEuEFPGerWO": -6503,
    "FAyAIctPeCgmiwLKbJcyswoHglHVjQdvtBowLACDNORsYvOcLddNJYDmhAVkbyLOrHTKLneMNcbgWVlasVywOByANjs": 5226,
    "1XYM6!(7(lF5wq4k4m*e$Nc!1ezLJv*1YK1Y-C^*&B$O)lq^iUkG(TNzXG;Zi#z2Og*Qq0#^*k)"
    ":vXh$3,C7We7%W0meJ;b3,rQCg^J;^twXgs5E$$hWKxqp": 23950,
    "E(x;RRIaQcJs*P;D&jTPau-4K04oqr:lF6Z):ERpo&;"
    "9040qyV@G1_c9mgOs-8_8/10Fwa-7b7-yP!T-!IH&968)FWuI;(^g$2fN;)HJ^^yTn:": -29304,
    "!c*_!I@1^c": 15372,
    "p4*!jioeO/z-!-;w:dh": -3104,
    "$0cb": 26269,
    "-4189260826195535198": 453,
}
KNOWN_PARTITIONS = [
    ("alphabet", 3, 0),
    ("alphabet", 11, 4),
    ("TheBestParitionEver", 4, 2),
    ("TheWorstParitionEver", 15, 1),
]


def test_hashes_are_those_of_the_official_sdks() -> None:
    hashes = hash_codes(pa.array(KNOWN_HASHES))

    assert dict(zip(KNOWN_HASHES, hashes.tolist(), strict=True)) == KNOWN_HASHES


@pytest.mark.parametrize(("key", "partition_count", "expected"), KNOWN_PARTITIONS)
def test_partitions_are_those_of_the_official_sdks(key: str, partition_count: int, expected: int) -> None:
    assert partition_index(key, partition_count) == expected


def test_a_negative_hash_gives_the_magnitude_of_the_remainder() -> None:
    assert partition_index("7", 10) == 15263 % 10


def test_an_empty_key_hashes_to_zero() -> None:
    assert hash_codes(pa.array([""])).tolist() == [0]


@given(st.lists(st.text(max_size=40), max_size=30), st.integers(0, 5))
def test_a_key_hashes_the_same_alone_and_in_any_column(keys: list[str], skipped: int) -> None:
    column = pa.array(keys, pa.string()).slice(skipped)

    alone = [int(hash_codes(pa.array([key]))[0]) for key in keys[skipped:]]

    assert hash_codes(column).tolist() == alone


@given(st.lists(st.text(max_size=40), min_size=1, max_size=30), st.integers(1, 1024))
def test_every_key_has_a_partition(keys: list[str], partition_count: int) -> None:
    indexes = partition_indexes(pa.array(keys), partition_count)

    assert np.all((indexes >= 0) & (indexes < partition_count))
