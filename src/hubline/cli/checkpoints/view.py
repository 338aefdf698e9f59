"""How checkpoints are shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hubline.checkpoints.copy import Step
    from hubline.model.ownership import Checkpoint


def sequence_of(checkpoint: Checkpoint | None) -> int | None:
    """For a table."""
    return None if checkpoint is None else checkpoint.last_sequence


def checkpoint_data(checkpoint: Checkpoint | None) -> dict[str, object] | None:
    """For ``--json``."""
    if checkpoint is None:
        return None
    return {"sequenceNumber": checkpoint.last_sequence, "offset": checkpoint.offset or None}


def step_data(step: Step, *, is_done: bool) -> dict[str, object]:
    """A step of a copy or a migration, for ``--json``."""
    return {
        "partition": step.partition,
        "step": step.kind.value,
        "done": is_done,
        "source": checkpoint_data(step.source),
        "before": checkpoint_data(step.before),
        "checkpoint": checkpoint_data(step.after),
        "reason": step.reason,
    }
