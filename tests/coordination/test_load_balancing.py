"""The texts that stand for strategies, and the values that strategies refuse."""

from __future__ import annotations

from typing import Any

import pytest

from hubline.coordination.strategies import (
    All,
    Balanced,
    Fixed,
    Greedy,
    Strategy,
    load_balancing_text,
    parse_load_balancing,
)
from hubline.errors import ConfigError

TEXTS: list[tuple[str, Strategy]] = [
    ("balanced", Balanced()),
    ("greedy", Greedy()),
    ("fixed:2", Fixed(2)),
    ("fixed:2:30s", Fixed(2, lease=30)),
    ("all", All()),
]


@pytest.mark.parametrize(("text", "strategy"), TEXTS)
def test_a_text_stands_for_a_strategy_and_back(text: str, strategy: Strategy) -> None:
    assert parse_load_balancing(text) == strategy
    assert load_balancing_text(strategy) == text


@pytest.mark.parametrize("strategy", [Balanced(3), Greedy(), Fixed(1), All()])
def test_a_strategy_is_returned_as_it_is(strategy: Strategy) -> None:
    assert parse_load_balancing(strategy) is strategy


@pytest.mark.parametrize("value", ["", "fair", "fixed", "fixed:0", "fixed:-1", "fixed:x", "Greedy", "fixed: 2"])
def test_an_unknown_text_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r'is not a load balancing strategy. Write "balanced", "greedy"'):
        parse_load_balancing(value)


def test_the_nearest_text_is_suggested() -> None:
    with pytest.raises(ConfigError, match=r"did you mean balanced\?"):
        parse_load_balancing("balance")


@pytest.mark.parametrize("value", [None, 2, True, Fixed, Greedy, ["greedy"]])
def test_what_is_neither_text_nor_strategy_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"load_balancing must be a (load balancing strategy|Strategy)"):
        parse_load_balancing(value)


def test_a_limit_cannot_be_written_as_text() -> None:
    with pytest.raises(ConfigError, match="cannot be written as text"):
        load_balancing_text(Greedy(3))


@pytest.mark.parametrize("count", [True, "2", 2.0, None])
def test_a_count_that_is_not_a_whole_number_is_refused(count: Any) -> None:
    with pytest.raises(ConfigError, match="count must be a whole number, 1 or more, not"):
        Fixed(count)
    if count is not None:
        with pytest.raises(ConfigError, match="max_partitions must be None or a whole number, 1 or more, not"):
            Balanced(count)
        with pytest.raises(ConfigError, match="max_partitions must be None or a whole number, 1 or more, not"):
            Greedy(count)
