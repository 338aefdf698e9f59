"""What every store says when an epoch may not move a checkpoint."""

from __future__ import annotations

from hubline.errors import Fenced
from hubline.model import PartitionKey

NOBODY = -1
"""The held epoch of a checkpoint that nobody fenced yet: below every epoch."""


def fenced(key: PartitionKey, *, epoch: int, held_epoch: int) -> Fenced:
    """The error for an ``epoch`` that does not hold the checkpoint, or that asks for it too late."""
    holder = "nobody has taken it" if held_epoch == NOBODY else f"epoch {held_epoch} holds it"
    return Fenced(
        f"the checkpoint of {key} is not epoch {epoch}'s to move: {holder}",
        partition=key.partition,
        epoch=epoch,
        held_epoch=held_epoch,
    )
