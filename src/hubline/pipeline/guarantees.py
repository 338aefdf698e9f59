"""What a stage promises, in words: what ``hubline plan`` prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hubline.pipeline.datasets import FILE_FORMATS, FormatPlace, HubPlace, TablePlace
from hubline.pipeline.definition import Checkpoints, DropRepeats
from hubline.pipeline.planning import PlannedStage

_SHARING: Final = {
    "all": "one runner reads all partitions; a second one stands by",
    "balanced": "runners share the partitions evenly, moving one at a time",
    "greedy": "runners share the partitions evenly, all at once",
}


def promises(stage: PlannedStage) -> list[str]:
    """One sentence each."""
    return list(_promises(stage))


def _promises(stage: PlannedStage) -> Iterator[str]:
    yield _delivery(stage)
    if stage.lookback is not None:
        yield (
            f"at each start the last {stage.lookback} are read again into state, marked as replayed and not published; "
            "what arrived meanwhile is"
        )
    yield _progress(stage)
    if stage.on_data_loss != "fail":
        yield (
            "events that are gone before they were read are jumped: reading goes on at the "
            f"{stage.on_data_loss} event, and the run tells of the gap"
        )
    if isinstance(stage.target, TablePlace):
        yield "dead letters: in the same transaction, table hubline_dead_letter of the same database"
        if stage.repeats is not DropRepeats.NONE:
            yield "what a stage before it publishes twice is left out, by its id, where rows are those of single events"
    elif stage.letters is not None:
        yield f"dead letters: at least once, in {stage.letters}, written before the batch counts"
    if stage.checkpoint is Checkpoints.EACH_BATCH:
        yield _SHARING.get(stage.ownership) or _fixed(stage.ownership)


def _delivery(stage: PlannedStage) -> str:
    match stage.target:
        case TablePlace():
            return "exactly once: rows, dead letters and checkpoint are one transaction"
        case HubPlace() if stage.stage.identity:
            return "at least once, with the same id each time: a table at the end drops what comes twice"
        case HubPlace():
            return "at least once, without ids: what is published twice stays twice"
        case FormatPlace(format=kind) if kind in FILE_FORMATS and stage.letters is None:
            return "exactly once, as long as the state folder is kept: Spark's files remember their batches by number"
        case _:
            return "at least once"


def _progress(stage: PlannedStage) -> str:
    match stage.checkpoint:
        case Checkpoints.EACH_BATCH:
            return "progress: a checkpoint after each batch"
        case Checkpoints.BY_HAND:
            return "progress: none is written; every start reads on from the checkpoint that you set"
        case Checkpoints.NONE:
            return f"progress: none is kept; every start begins at {stage.start}"


def _fixed(ownership: str) -> str:
    _, count, *lock = ownership.split(":")
    locked = ", locked by Blob Storage" if lock else ""
    return f"each runner keeps {count} partitions{locked}, and gives none up while it lives"
