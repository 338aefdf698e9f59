"""Runs a stage's code over old events of its hub, into another table, while the stage keeps running.

A backfill is a run that ends by itself, in a consumer group of its own: checkpoints, owners, dead letters and known ids
are apart from those of the stage. Where its range ends is written down before anything is read, as checkpoints of the
group `GROUP.end` in the same store: a run that was killed, or another instance, ends at the same events. In place of
an offset they have what was asked for: the two positions and the sink.

    1. first start   refuses a group with checkpoints, and a table with rows; writes the ends
    2. every start   refuses other positions and another sink: old events would get into the table that is in use
                     if a `--set` was forgotten. Continues from the group's checkpoints, up to the ends
    3. afterwards    the stage itself runs in that group, and continues from there

Dying within 1 leaves the ends of some partitions: the next start writes the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from hubline.adapters import open_hub, open_store
from hubline.addresses.names import validate_group_name
from hubline.addresses.store_address import parse_store
from hubline.addresses.values import parse_position
from hubline.checkpoints.copy import move_forward
from hubline.concurrency import map_bounded
from hubline.errors import ConfigError
from hubline.model.keys import GroupKey
from hubline.model.ownership import Checkpoint
from hubline.model.positions import Position, PositionKind
from hubline.pipeline.config import PipelineConfig
from hubline.pipeline.datasets import HubDataset, TableDataset
from hubline.pipeline.plan import PlannedStage, local_folder
from hubline.ports import CheckpointStore, Hub
from hubline.secrets import redact, shown
from hubline.sinks.sql_sink.inspection import has_rows
from hubline.sinks.sql_sink.table_schema import TableName
from hubline.spark.connector_options import parse_ending_position
from hubline.spark.options import DEFAULT_RECEIVER_TIMEOUT_SECONDS
from hubline.spark.source.position_lookup import LOOKUPS_AT_ONCE, Places, first_wanted

END_SUFFIX: Final = ".end"
DEFAULT_START: Final = "earliest"
DEFAULT_END: Final = "latest"


@dataclass(frozen=True, slots=True)
class Backfill:
    """What is to be processed again: a stage, from a position on and before another. `group` is for it alone."""

    stage: str
    group: str = ""
    starting_position: str = DEFAULT_START
    ending_position: str = DEFAULT_END

    def __post_init__(self) -> None:
        if _is_empty(parse_position(self.starting_position), parse_ending_position(self.ending_position)):
            raise ConfigError(
                f"the range from {shown(self.starting_position)} to before {shown(self.ending_position)} has no "
                "events. Choose an ending position after the starting position."
            )
        validate_group_name(_end_group(self.consumer_group))

    @property
    def consumer_group(self) -> str:
        return self.group or f"{self.stage}-backfill"


def require_other_group(backfill: Backfill, group: str) -> None:
    """Refuses the group of the stage itself, whose progress and known ids are not those of a new table."""
    if backfill.consumer_group == group:
        raise ConfigError(
            f"the consumer group {group} is that of stage {backfill.stage} itself, but a backfill needs a group of its "
            "own. Choose another one with --group."
        )


def for_backfill(config: PipelineConfig, backfill: Backfill) -> PipelineConfig:
    """The configuration with the stage in a group and a folder of its own. All owners and checkpoints stay in the store
    that the stage uses: it continues from them."""
    options = {
        **config.stages.get(backfill.stage, {}),
        "consumer_group": backfill.consumer_group,
        "starting_position": backfill.starting_position,
        "checkpoint": "every_batch",
    }
    given = config.run.spark_checkpoints
    folder = local_folder(given)
    store = config.run.store or (f"sqlite:///{folder / 'checkpoints.db'}" if folder else None)
    run = replace(config.run, spark_checkpoints=f"{given.rstrip('/')}-backfill", store=store)
    return replace(config, run=run, stages={**config.stages, backfill.stage: options})


def with_end(stage: PlannedStage, backfill: Backfill) -> PlannedStage:
    """The stage as it will run: up to the end of the range, all of it where its instances take N partitions each."""
    options = stage.options
    if options.load_balancing.startswith("fixed:"):
        options = replace(options, load_balancing="all")
    return replace(stage, options=options, ending_position=backfill.ending_position)


def pinned_ends(stage: PlannedStage, source: HubDataset, *, note: Callable[[str], None]) -> dict[str, int]:
    """By partition, the first sequence number that is after the range, as the first start found it.

    `note` gets a line if nothing of the range is left.
    """
    store, hub = open_store(parse_store(stage.store or "")), open_hub(source.address)

    async def pinned() -> dict[str, int]:
        try:
            return await _pinned_ends(stage, hub, store, note)
        finally:
            await store.close()
            await hub.close()

    return asyncio.run(pinned())


async def _pinned_ends(
    stage: PlannedStage, hub: Hub, store: CheckpointStore, note: Callable[[str], None]
) -> dict[str, int]:
    name, asked = stage.options.consumer_group, _asked_for(stage)
    group, ends = (GroupKey(hub.namespace, hub.name, each) for each in (name, _end_group(name)))
    progress, known = await _listed(store, group), await _listed(store, ends)
    if started := {each.offset for each in known.values() if not each.is_before_oldest}:
        _require_same(name, asked, started)
    else:
        await _require_unused(stage, progress)
    position = parse_ending_position(stage.ending_position or DEFAULT_END)
    places = Places(hub, group=name, seconds_max=DEFAULT_RECEIVER_TIMEOUT_SECONDS)

    async def pin(partition: str) -> None:
        last = await places.end(partition, position) - 1
        key = ends.partition(partition)
        await move_forward(store, Checkpoint.before_first(key) if last < 0 else Checkpoint(key, asked, last))

    unknown = [partition for partition in (await hub.describe()).partition_ids if partition not in known]
    await map_bounded(pin, unknown, max_concurrent=LOOKUPS_AT_ONCE)
    # Two instances that start at once may both have written: the further one counts, for both.
    last = {partition: each.sequence_number for partition, each in (await _listed(store, ends)).items()}
    if progress and all(each < 0 or _is_at(progress.get(partition), each) for partition, each in last.items()):
        note(f"all events of the range of group {name} are processed. For another range, choose another --group")
    return {partition: each + 1 for partition, each in last.items()}


def _is_at(checkpoint: Checkpoint | None, sequence: int) -> bool:
    return checkpoint is not None and checkpoint.sequence_number >= sequence


def _asked_for(stage: PlannedStage) -> str:
    """In ASCII, as all stores take an offset."""
    text = f"from {stage.options.starting_position} to before {stage.ending_position} into {stage.sink}"
    return redact(text).encode("ascii", "backslashreplace").decode()


def _require_same(group: str, asked: str, started: Set[str]) -> None:
    if others := sorted(started - {asked}):
        raise ConfigError(
            f"the backfill of group {group} was started {others[0]}, and not {asked}. Run it with the same positions "
            "and table, or choose another group with --group, and a new table."
        )


async def _require_unused(stage: PlannedStage, progress: Mapping[str, Checkpoint]) -> None:
    """Refuses what a backfill would mix with the rows or the progress of something else."""
    if progress:
        raise ConfigError(
            f"the consumer group {stage.options.consumer_group} has checkpoints already, but a backfill needs a group "
            "of its own. Choose another one with --group."
        )
    sink = stage.sink
    if isinstance(sink, TableDataset) and await asyncio.to_thread(has_rows, sink.address, TableName.parse(sink.table)):
        raise ConfigError(
            f"the {sink} has rows already, but a backfill writes into a new table. Name one: "
            f"--set datasets.{sink.name}.table=NAME."
        )


async def _listed(store: CheckpointStore, group: GroupKey) -> dict[str, Checkpoint]:
    return {each.key.partition: each for each in await store.list_checkpoints(group)}


def _end_group(group: str) -> str:
    return f"{group}{END_SUFFIX}"


def _is_empty(start: Position, end: Position) -> bool:
    """Whether nothing can be between them, whatever the hub has."""
    match start.value, end.value:
        case int(), int() as last:
            return first_wanted(start) >= last + end.inclusive
        case datetime() as first, datetime() as last:
            return first > last or (first == last and not (start.inclusive and end.inclusive))
    return end.kind is PositionKind.EARLIEST or (start.kind is PositionKind.LATEST and not start.inclusive)
