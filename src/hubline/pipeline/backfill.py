"""Runs a stage's code over old events of its hub, into another table, while the stage keeps running.

A backfill is a run that ends by itself, in a consumer group of its own: checkpoints, owners, dead letters and known ids
are apart from those of the stage. Where its range ends is written down before anything is read, as checkpoints of the
group `GROUP.end` in the same store: a run that was killed, or another instance, ends at the same events.

    1. first start   refuses a group with checkpoints, and a table with rows; writes the ends
    2. every start   continues from the group's checkpoints, up to the ends
    3. afterwards    the stage itself runs in that group, and continues from there

Dying within 1 leaves the ends of some partitions: the next start writes the others.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
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
from hubline.pipeline.config import PipelineConfig
from hubline.pipeline.datasets import HubDataset, TableDataset
from hubline.pipeline.plan import PlannedStage, local_folder
from hubline.ports import CheckpointStore, Hub
from hubline.sinks.sql_sink.inspection import has_rows
from hubline.sinks.sql_sink.table_schema import TableName
from hubline.spark.connector_options import parse_ending_position
from hubline.spark.options import DEFAULT_RECEIVER_TIMEOUT_SECONDS
from hubline.spark.source.position_lookup import LOOKUPS_AT_ONCE, Places

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
        parse_position(self.starting_position)
        parse_ending_position(self.ending_position)
        validate_group_name(_end_group(self.consumer_group))

    @property
    def consumer_group(self) -> str:
        return self.group or f"{self.stage}-backfill"


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


def pinned_ends(stage: PlannedStage, source: HubDataset) -> dict[str, int]:
    """By partition, the first sequence number that is after the range, as the first start found it."""
    store, hub = open_store(parse_store(stage.store or "")), open_hub(source.address)

    async def pinned() -> dict[str, int]:
        try:
            return await _pinned_ends(stage, hub, store)
        finally:
            await store.close()
            await hub.close()

    return asyncio.run(pinned())


async def _pinned_ends(stage: PlannedStage, hub: Hub, store: CheckpointStore) -> dict[str, int]:
    name = stage.options.consumer_group
    group, ends = (GroupKey(hub.namespace, hub.name, each) for each in (name, _end_group(name)))
    known = await _listed(store, ends)
    if not known:
        await _require_unused(stage, store, group)
    position = parse_ending_position(stage.ending_position or DEFAULT_END)
    places = Places(hub, group=name, seconds_max=DEFAULT_RECEIVER_TIMEOUT_SECONDS)

    async def pin(partition: str) -> None:
        last = await places.end(partition, position) - 1
        key = ends.partition(partition)
        await move_forward(store, Checkpoint.before_first(key) if last < 0 else Checkpoint(key, "", last))

    unknown = [partition for partition in (await hub.describe()).partition_ids if partition not in known]
    await map_bounded(pin, unknown, max_concurrent=LOOKUPS_AT_ONCE)
    # Two instances that start at once may both have written: the further one counts, for both.
    return {partition: each.sequence_number + 1 for partition, each in (await _listed(store, ends)).items()}


async def _require_unused(stage: PlannedStage, store: CheckpointStore, group: GroupKey) -> None:
    """Refuses what a backfill would mix with the rows or the progress of something else."""
    if await _listed(store, group):
        raise ConfigError(
            f"the consumer group {group.group} has checkpoints already, but a backfill needs a group of its "
            "own. Choose another one with --group."
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
