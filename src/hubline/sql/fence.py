"""The fence of a checkpoint: taking it, and the error when an epoch does not hold it."""

from __future__ import annotations

from hubline.errors import Fenced
from hubline.model.keys import PartitionKey
from hubline.model.ownership import Checkpoint
from hubline.sql.checkpoint_rows import (
    of_partition,
    read_checkpoint,
)
from hubline.sql.dialect import Connection, Statement
from hubline.sql.queries import Queries

NOBODY = -1
"""The held epoch of a checkpoint that nobody fenced yet: below every epoch."""


def fenced(key: PartitionKey, *, epoch: int, held_epoch: int) -> Fenced:
    """The error for an ``epoch`` that does not hold the checkpoint, or that asks for it too late."""
    holder = "nobody has taken it" if held_epoch == NOBODY else f"epoch {held_epoch} holds it"
    return Fenced(
        f"the checkpoint of {key} cannot be moved with epoch {epoch}: {holder}. Nothing was written. "
        "hubline stops processing the partition here; its new owner continues.",
        partition=key.partition,
        epoch=epoch,
        held_epoch=held_epoch,
    )


def take_fence(connection: Connection, queries: Queries, key: PartitionKey, *, epoch: int) -> Checkpoint | None:
    """Takes the partition's checkpoint for the epoch: the one way to do it, for stores and sinks alike."""
    (rows,) = connection.write(Statement(queries.fence, {**of_partition(key), "epoch": epoch}))
    if not rows:
        held_epoch, _ = stored_checkpoint(connection, queries, key)
        raise fenced(key, epoch=epoch, held_epoch=held_epoch)
    _, checkpoint = read_checkpoint(key, rows[0])
    return checkpoint


def stored_checkpoint(connection: Connection, queries: Queries, key: PartitionKey) -> tuple[int, Checkpoint | None]:
    """Who holds the fence, and the checkpoint. A row that is missing is held by nobody."""
    rows = connection.read(Statement(queries.read_checkpoint, of_partition(key)))
    return read_checkpoint(key, rows[0]) if rows else (NOBODY, None)
