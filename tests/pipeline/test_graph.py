"""How stages feed each other."""

from __future__ import annotations

import pytest

from hubline.pipeline.graph import StageGraph


def graph(**stages: str) -> StageGraph:
    """Each stage as "ab>cd": it reads a and b, and writes c and d."""
    return StageGraph(
        {name: frozenset(arrow.partition(">")[0]) for name, arrow in stages.items()},
        {name: frozenset(arrow.partition(">")[2]) for name, arrow in stages.items()},
    )


@pytest.mark.parametrize(
    ("stages", "levels"),
    [
        ({}, ()),
        ({"one": "a>b"}, (("one",),)),
        ({"last": "b>c", "first": "a>b"}, (("first",), ("last",))),
        ({"left": "a>b", "right": "a>c", "both": "bc>d"}, (("left", "right"), ("both",))),
        ({"z": "a>b", "y": "a>c", "x": "a>d"}, (("z", "y", "x"),)),
    ],
)
def test_levels_have_stages_after_those_that_feed_them_in_their_order(
    stages: dict[str, str], levels: tuple[tuple[str, ...], ...]
) -> None:
    assert graph(**stages).levels() == levels
    assert graph(**stages).cycle() == ()


@pytest.mark.parametrize(
    ("stages", "cycle"),
    [
        ({"one": "a>a"}, ("one", "one")),
        ({"one": "a>b", "two": "b>a"}, ("one", "two", "one")),
        ({"start": "x>a", "one": "a>b", "two": "b>c", "three": "c>a"}, ("one", "two", "three", "one")),
    ],
)
def test_cycle_is_named_from_its_first_stage_as_events_go(stages: dict[str, str], cycle: tuple[str, ...]) -> None:
    assert graph(**stages).cycle() == cycle


def test_origins_are_the_datasets_that_events_may_first_have_come_from() -> None:
    stages = graph(one="a>b", two="b>c", other="x>y")
    assert stages.origins("two") == {"a", "b"}
    assert stages.origins("other") == {"x"}
    assert graph(one="a>b", two="b>a").origins("one") == {"a", "b"}
    assert stages.fed_by("one") == ("two",)
