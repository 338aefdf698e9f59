"""When a partition stops rather than to turn everything into dead letters."""

from __future__ import annotations

import numpy as np
import pytest

from hubline.errors import DeadLetterLimit
from hubline.processor.delivery.failure_limits import FailureCount, FailureLimits, FailureTally


def tally(*, in_row_max: int = 1_000, ratio_max: float = 1.0) -> FailureTally:
    return FailureTally(FailureLimits(in_row_max, ratio_max), "0")


def flags(text: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """One character for each event: ``x`` for one that failed."""
    return np.array([character == "x" for character in text], np.bool_)


def test_a_row_goes_on_over_batches_and_ends_with_a_success() -> None:
    three = tally(in_row_max=3).after(flags("..xx"), 0.0).after(flags("x"), 0.0)

    assert three.after(flags(".xxx"), 0.0).in_row == 3
    with pytest.raises(DeadLetterLimit, match="more than 3 events in a row"):
        three.after(flags("x."), 0.0)


def test_an_empty_batch_ends_no_row() -> None:
    assert tally().after(flags("x"), 0.0).after(flags(""), 0.0).in_row == 1


def test_a_batch_that_was_not_committed_counts_nothing() -> None:
    before = tally(in_row_max=3).after(flags("x"), 0.0)

    with pytest.raises(DeadLetterLimit):
        before.after(flags("xxx"), 0.0)

    assert before.after(flags("xx"), 0.0).in_row == 3


def test_a_ratio_is_of_the_last_thousand_and_says_nothing_of_a_few() -> None:
    few = tally(ratio_max=0.1).after(flags("x" * 9), 0.0)
    many = few.after(flags("." * 5_000), 10.0)

    with pytest.raises(DeadLetterLimit, match="more than 10%"):
        few.after(flags("x" * 5 + "." * 95), 10.0)
    with pytest.raises(DeadLetterLimit):
        many.after(flags("x" * 200 + "." * 800), 20.0)
    many.after(flags("x" * 90 + "." * 910), 20.0)


def test_a_long_run_of_handled_events_counts_as_if_each_were_counted() -> None:
    count = FailureCount(FailureLimits(1_000, 0.1), "0")
    count.add_handled(20_000, 0.0)
    count.add_handled(20_000, 10.0)  # which changes nothing

    with pytest.raises(DeadLetterLimit, match="of the last"):
        count.add(flags("x" * 200), 0.0)


def test_what_is_remembered_is_bounded() -> None:
    counted = tally()
    for number in range(5_000):
        counted = counted.after(flags("x" if number % 50 == 0 else "."), number * 0.001)

    assert len(counted.recent) < 100
