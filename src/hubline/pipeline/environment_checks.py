"""Hubs, stores and tables as they are now: whether they exist, and what a run would create. Looking changes nothing.

A store or a sink creates its own tables when it is first opened: so databases are looked at without opening either.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hubline.adapters import open_hub, open_store
from hubline.addresses.blob_address import BlobAddress
from hubline.addresses.store_address import MemoryAddress, PostgresAddress, SqliteAddress, StoreAddress, parse_store
from hubline.errors import ConfigError, HublineError, HubNotFound, Problem
from hubline.model.keys import GroupKey
from hubline.pipeline.datasets import Dataset, HubDataset, TableDataset
from hubline.pipeline.definition import Where
from hubline.pipeline.plan import Plan, PlannedStage, local_folder
from hubline.secrets import redact
from hubline.sinks.sql_sink.inspection import inspect_table
from hubline.sinks.sql_sink.table_schema import Column, TableName
from hubline.text import counted

MAX_LOOK_SECONDS: Final = 20.0
"""How long each is waited for: longer than a slow network takes, shorter than people wait."""

_NO_ANSWER: Final = "it did not answer. Check the address, and that the database is running."


@dataclass(slots=True)
class Environment:
    """What was found: problems, what a run would create, and the columns of each table that exists, by dataset."""

    problems: list[Problem] = field(default_factory=list)
    creations: list[str] = field(default_factory=list)
    tables: dict[str, Sequence[Column]] = field(default_factory=dict)

    def add_problem(self, where: Where, message: str, fix: str = "") -> None:
        self.problems.append(Problem(where.file, where.line, message, fix))


def check_environment(plan: Plan, report: Callable[[str], None] = lambda _: None) -> Environment:
    """Looks at everything that the stages use, all at once."""
    found = Environment()
    if (folder := local_folder(plan.run.spark_checkpoints)) is not None:
        _check_folder(plan, folder, found)
    asyncio.run(_check_all(plan, found, report))
    found.creations.sort()
    return found


def _check_folder(plan: Plan, folder: Path, found: Environment) -> None:
    if not folder.exists():
        found.creations.append(f"folder {folder}, for Spark's own checkpoints")
    there = next(each for each in (folder, *folder.parents) if each.exists())
    if not there.is_dir():
        message = f"the folder {folder} cannot be created"
        found.add_problem(
            plan.folder_where, message, f"{there} is a file. Name another folder: --set run.spark_checkpoints=PATH"
        )
    elif not os.access(there, os.W_OK | os.X_OK):
        fix = "give this user the right, or name another folder: --set run.spark_checkpoints=PATH"
        found.add_problem(plan.folder_where, f"the folder {folder} cannot be written to", fix)


async def _check_all(plan: Plan, found: Environment, report: Callable[[str], None]) -> None:
    datasets = {dataset.name: dataset for stage in plan.stages for dataset in _datasets(stage)}
    report(f"checking {len(datasets)} datasets")
    checks: list[Coroutine[Any, Any, None]] = []
    checks += [_check_hub(dataset, found) for dataset in datasets.values() if isinstance(dataset, HubDataset)]
    checks += [
        _check_table(dataset, found, is_written=any(stage.sink == dataset for stage in plan.stages))
        for dataset in datasets.values()
        if isinstance(dataset, TableDataset)
    ]
    stores = {stage.store: stage for stage in plan.stages if stage.store and not isinstance(stage.sink, TableDataset)}
    checks += [_check_store(plan, text, stage, found) for text, stage in stores.items()]
    await asyncio.gather(*checks)


def _datasets(stage: PlannedStage) -> Iterable[Dataset]:
    yield from stage.sources
    yield stage.sink
    yield from stage.tables.values()
    if stage.dead_letters is not None:
        yield stage.dead_letters


async def _check_hub(dataset: HubDataset, found: Environment) -> None:
    hub = open_hub(dataset.address)
    named = f"hub {dataset} (dataset {dataset.name})"
    try:
        async with asyncio.timeout(MAX_LOOK_SECONDS):
            await hub.describe()
    except HubNotFound:
        if dataset.create_if_missing:
            found.creations.append(f"hub {dataset}, with {counted(dataset.partitions, 'partition')}")
        else:
            fix = "create it (hubline hub create), or add create_if_missing = true for a local hub"
            found.add_problem(dataset.where, f"there is no {named}", fix)
    except TimeoutError:
        found.add_problem(dataset.where, f"{named} did not answer", "check the address and network")
    except HublineError as error:
        found.add_problem(dataset.where, f"{named}: {error}")
    finally:
        await hub.close()


async def _check_store(plan: Plan, text: str, stage: PlannedStage, found: Environment) -> None:
    address = parse_store(text)
    if isinstance(address, SqliteAddress) and address.path == plan.default_store:
        if not address.path.exists():
            found.creations.append(f"store {address}, for checkpoints and owners")
        return
    reason = ""
    try:
        async with asyncio.timeout(MAX_LOOK_SECONDS):
            await _require_usable(address, stage)
    except TimeoutError:
        reason = _NO_ANSWER
    except HublineError as error:
        reason = _text(error)
    if reason:
        found.add_problem(plan.store_where, f"the store {address} cannot be used: {reason}")
    elif isinstance(address, SqliteAddress) and not address.path.exists():
        found.creations.append(f"store {address}, for checkpoints and owners")


async def _check_table(dataset: TableDataset, found: Environment, *, is_written: bool) -> None:
    columns: list[Column] = []
    name = TableName.parse(dataset.table)
    reason = ""
    try:
        async with asyncio.timeout(MAX_LOOK_SECONDS):
            columns = await asyncio.to_thread(inspect_table, dataset.address, name)
    except TimeoutError:
        reason = _NO_ANSWER
    except HublineError as error:
        reason = _text(error)
    if reason:
        message = f"the database of dataset {dataset.name}, {dataset.address}, cannot be used: {reason}"
        found.add_problem(dataset.where, message)
    elif columns:
        found.tables[dataset.name] = columns
        _check_upsert_key(dataset, columns, found)
    elif is_written and dataset.create_if_missing:
        found.creations.append(f"{dataset}, with the columns of the first rows")
    else:
        fix = "create it, or add create_if_missing = true" if is_written else "create it"
        found.add_problem(dataset.table_where, f"there is no {dataset} (dataset {dataset.name})", fix)


def _check_upsert_key(dataset: TableDataset, columns: Sequence[Column], found: Environment) -> None:
    names = [column.name for column in columns]
    if missing := [key for key in dataset.upsert_key if key not in names]:
        message = f"{dataset} has no column {missing[0]}, which upsert_key names"
        found.add_problem(dataset.key_where, message, f"use one of its columns: {', '.join(names)}")


async def _require_usable(address: StoreAddress, stage: PlannedStage) -> None:
    match address:
        case SqliteAddress() | PostgresAddress():
            await asyncio.to_thread(inspect_table, address, TableName(None, "hubline_schema"))
        case BlobAddress():
            await _read_blobs(address, stage)
        case MemoryAddress():
            raise ConfigError("it is for one process, but Spark runs several. Use another store.")


def _text(error: HublineError) -> str:
    """Why a database cannot be used. Its address is shown beside it, with the dataset's name or the setting's."""
    return redact(str(error))


async def _read_blobs(address: BlobAddress, stage: PlannedStage) -> None:
    store = open_store(address)
    hub = open_hub(stage.sources[0].address)
    try:
        await store.list_checkpoints(GroupKey(hub.namespace, hub.name, stage.options.consumer_group))
    finally:
        await store.close()
        await hub.close()
