"""What the steps of a query do with events that failed, and with those of other partitions, as its plan's text says."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Protocol

_ERROR: Final = re.compile(r"\b_error#\d+")
_MADE: Final = re.compile(r" AS _error#\d+")
# In a list of columns it is only passed on; within brackets, something is computed of it.
_COMPUTED_OF: Final = re.compile(r"\((?:NOT )?_error#\d+")
_KEYS: Final = re.compile(r"[^\[]*\[([^\]]*)\]")
_PARTITION: Final = re.compile(r"\bpartition#\d+")
_JOIN: Final = re.compile(r"Join (\w+)")

_DEDUPLICATING: Final = frozenset({"Deduplicate", "DeduplicateWithinWatermark", "Distinct"})
_LOSING: Final = _DEDUPLICATING | {"Aggregate", "Except", "Filter", "GlobalLimit", "Intersect", "LocalLimit", "Sample"}
_KEYED: Final = _DEDUPLICATING | {"Aggregate"}
_WITH_STATE: Final = re.compile(r"FlatMapGroups\w*WithState|TransformWithState\w*")
# The sides of a join of which every row is kept.
_KEPT_SIDES: Final = {"LeftOuter": (0,), "RightOuter": (1,), "FullOuter": (0, 1), "Cross": (0, 1)}


class Step(Protocol):
    """A step of a logical plan: Spark's name of it, its line in the plan, and the steps that it takes rows from."""

    @property
    def kind(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def inputs(self) -> Sequence[Step]: ...


def losing_step(plan: Step) -> str | None:
    """What drops rows with an `_error` without a look at it, if anything does.

    The fields of such rows are null, so a filter drops them, and an aggregate makes one row of them: their events
    become neither rows nor dead letters. What looks at `_error`, such as `_error IS NULL`, says what the user wants.
    """
    return _followed(plan)[0]


def state_over_partitions(plan: Step) -> str | None:
    """What keeps state of events of several partitions, if anything does."""
    below = next(filter(None, map(state_over_partitions, plan.inputs)), None)
    return below or (plan.kind if _is_stream(plan) and _mixes_partitions(plan) else None)


def _followed(step: Step) -> tuple[str | None, bool]:
    """What loses failures, there or before, and whether rows that failed come out of the step."""
    below = [_followed(each) for each in step.inputs]
    lost = next((kind for kind, _ in below if kind), None)
    failed = [has_failed for _, has_failed in below]
    if lost is not None:
        return lost, False
    if step.kind == "Project" and _MADE.search(step.text):
        return None, True
    if not any(failed) or _is_decided(step):
        return None, False
    return (step.kind, False) if _loses(step, failed) else (None, True)


def _is_decided(step: Step) -> bool:
    return (_COMPUTED_OF if step.kind == "Project" else _ERROR).search(step.text) is not None


def _loses(step: Step, failed: Sequence[bool]) -> bool:
    if step.kind == "Join":
        kept = _KEPT_SIDES.get(_join_type(step), ())
        return any(has_failed and side not in kept for side, has_failed in enumerate(failed))
    if step.kind == "Generate":
        return ", false, [" in step.text  # not explode_outer
    return step.kind in _LOSING


def _join_type(step: Step) -> str:
    match = _JOIN.search(step.text)
    return match[1] if match else ""


def _mixes_partitions(step: Step) -> bool:
    if step.kind in _KEYED:
        keys = _KEYS.match(step.text)
        return keys is None or _PARTITION.search(keys[1]) is None
    if step.kind == "Join":
        return all(map(_is_stream, step.inputs))
    return _WITH_STATE.fullmatch(step.kind) is not None


def _is_stream(step: Step) -> bool:
    return step.kind.startswith("Streaming") or any(map(_is_stream, step.inputs))
