"""What a stage guarantees, in words: what ``hubline plan`` prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from hubline.pipeline.datasets import FILE_FORMATS, FormatDataset, HubDataset, TableDataset
from hubline.pipeline.plan import PlannedStage
from hubline.text import counted

_LOAD_BALANCING: Final = {
    "all": "one instance reads all partitions; a second one stands by",
    "balanced": "instances share the partitions evenly, moving one at a time",
    "greedy": "instances share the partitions evenly, all at once",
}


def guarantees(stage: PlannedStage) -> list[str]:
    """One sentence each."""
    return list(_sentences(stage))


def _sentences(stage: PlannedStage) -> Iterator[str]:
    yield _delivery(stage)
    if stage.options.lookback is not None:
        yield (
            f"at each start the last {stage.options.lookback} are replayed into state, marked so and not published; "
            "what arrived meanwhile is"
        )
    yield _progress(stage)
    if stage.options.queries > 1:
        yield f"{stage.options.queries} queries, each with its own partitions: a blocked commit holds up only its query"
    if stage.options.on_data_loss != "fail":
        yield (
            "events that are gone before they were read are skipped: reading continues at the "
            f"{stage.options.on_data_loss} event, and the run reports the data loss"
        )
    if isinstance(stage.sink, TableDataset):
        yield "dead letters: in the same transaction, table hubline_dead_letter of the same database"
        if stage.drop_duplicates != "off":
            yield "duplicates from a stage before it are left out by id, where rows are those of single events"
    elif stage.dead_letters is not None:
        yield f"dead letters: at least once, in {stage.dead_letters}, written before the batch counts"
    if stage.options.has_owners:
        yield _LOAD_BALANCING.get(stage.options.load_balancing) or _fixed(stage.options.load_balancing)


def _delivery(stage: PlannedStage) -> str:
    match stage.sink:
        case TableDataset():
            return "exactly once: rows, dead letters and checkpoint are one transaction"
        case HubDataset() if stage.options.event_ids:
            return "at least once, with the same id each time: a table at the end drops duplicates"
        case HubDataset():
            return "at least once, without ids: duplicates stay"
        case FormatDataset(format=kind) if kind in FILE_FORMATS and stage.dead_letters is None:
            return "exactly once, as long as Spark's checkpoints are kept: its files remember batches by number"
        case _:
            return "at least once"


def _progress(stage: PlannedStage) -> str:
    match stage.options.checkpoint:
        case "every_batch":
            return "progress: a checkpoint after each batch"
        case "manual":
            return "progress: none is written; every start continues at the checkpoint that you set"
        case "never":
            return f"progress: none is kept; every start begins at {stage.options.starting_position}"


def _fixed(load_balancing: str) -> str:
    _, count, *lock = load_balancing.split(":")
    locked = ", locked by Blob Storage" if lock else ""
    return f"each instance keeps {counted(int(count), 'partition')}{locked}, and releases none while it runs"
