"""Hubs, stores and tables as they are now: whether they exist, and what a run would create. Looking changes nothing.

A SQL store creates its tables when it is first opened: so databases are looked at here without opening a store.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from hubline.adapters import open_hub, open_store
from hubline.addresses.blob_address import BlobAddress
from hubline.addresses.store_address import MemoryAddress, PostgresAddress, SqliteAddress, StoreAddress, parse_store
from hubline.errors import HublineError, HubNotFound, Problem
from hubline.model.keys import GroupKey
from hubline.pipeline.datasets import Dataset, HubDataset, TableDataset
from hubline.pipeline.definition import Where
from hubline.pipeline.planning import Plan, PlannedStage, local_folder
from hubline.secrets import redact
from hubline.sinks.sql_sink.table_schema import TableName, quoted

MAX_LOOK_SECONDS: Final = 20.0
"""How long each is waited for: longer than a slow network takes, shorter than people wait."""

_CHECK_DATABASE: Final = "check the address, and that the database is running"


@dataclass(slots=True)
class Environment:
    """What was found: problems, what a run would create, and the columns of each table that exists, by dataset."""

    problems: list[Problem] = field(default_factory=list)
    creations: list[str] = field(default_factory=list)
    table_columns: dict[str, list[str]] = field(default_factory=dict)

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
        found.add_problem(plan.folder_where, message, f"{there} is a file: name another")
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
            found.creations.append(f"hub {dataset}, with {dataset.partitions} partitions")
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
    if reason := await _unreachable(address, stage):
        found.add_problem(plan.store_where, f"the store {address} cannot be used: {reason}", _CHECK_DATABASE)
    elif isinstance(address, SqliteAddress) and not address.path.exists():
        found.creations.append(f"store {address}, for checkpoints and owners")


async def _check_table(dataset: TableDataset, found: Environment, *, is_written: bool) -> None:
    columns: list[str] | None = None
    reason = ""
    try:
        async with asyncio.timeout(MAX_LOOK_SECONDS):
            columns = await asyncio.to_thread(_table_columns, dataset)
    except TimeoutError:
        reason = "it did not answer"
    except _Unreachable as error:
        reason = str(error)
    if reason:
        message = f"the database of dataset {dataset.name}, {dataset.address}, cannot be used: {reason}"
        found.add_problem(dataset.where, message, _CHECK_DATABASE)
    elif columns is None and is_written and dataset.create_if_missing:
        found.creations.append(f"{dataset}, with the columns of the first rows")
    elif columns is None:
        fix = "create it, or add create_if_missing = true" if is_written else "create it"
        found.add_problem(dataset.table_where, f"there is no {dataset} (dataset {dataset.name})", fix)
    else:
        found.table_columns[dataset.name] = columns
        if missing := [key for key in dataset.upsert_key if key not in columns]:
            message = f"{dataset} has no column {missing[0]}, which upsert_key names"
            found.add_problem(dataset.key_where, message, f"it has {', '.join(columns)}")


class _Unreachable(Exception):
    """A database that cannot be looked at, and why. Shows no secret."""


def _table_columns(dataset: TableDataset) -> list[str] | None:
    """The names of the table's columns; None if there is no such table."""
    name = TableName.parse(dataset.table)
    match dataset.address:
        case SqliteAddress(path):
            return _sqlite_columns(path, name)
        case PostgresAddress() as address:
            return _postgres_columns(address, name)


def _sqlite_columns(path: Path, name: TableName) -> list[str] | None:
    if not path.exists():
        return None
    try:
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=MAX_LOOK_SECONDS)
        try:
            schema = "" if name.schema is None else f"{quoted(name.schema)}."
            return [row[1] for row in connection.execute(f"PRAGMA {schema}table_info({quoted(name.table)})")] or None
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise _Unreachable(f"SQLite says: {error}") from None


_COLUMNS: Final = (
    "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped "
    "ORDER BY attnum"
)


def _postgres_columns(address: PostgresAddress, name: TableName) -> list[str] | None:
    rows = _postgres_rows(address, _COLUMNS, (name.quoted,))
    return [str(row[0]) for row in rows] or None


def _postgres_rows(address: PostgresAddress, query: str, params: Sequence[str]) -> list[tuple[Any, ...]]:
    import psycopg

    from hubline.sql.postgres import PostgresDatabase

    try:
        database = PostgresDatabase(address.conninfo)
        with psycopg.connect(address.conninfo.reveal(), connect_timeout=int(MAX_LOOK_SECONDS)) as connection:
            return connection.execute(query, params).fetchall()
    except psycopg.Error as error:
        text = str(database.explain(error)).removeprefix(database.shown)
        reason = f"it{text}".removesuffix(" Is the server running on that host and accepting TCP/IP connections?")
    except HublineError as error:
        reason = str(error)
    raise _Unreachable(redact(reason))


async def _unreachable(address: StoreAddress, stage: PlannedStage) -> str:
    """Why a store cannot be used; nothing if it can."""
    try:
        async with asyncio.timeout(MAX_LOOK_SECONDS):
            match address:
                case SqliteAddress(path):
                    await asyncio.to_thread(_sqlite_columns, path, TableName(None, "hubline_schema"))
                case PostgresAddress():
                    await asyncio.to_thread(_postgres_rows, address, "SELECT 1", ())
                case BlobAddress():
                    await _read_blobs(address, stage)
                case MemoryAddress():
                    return "it is for one process"
    except TimeoutError:
        return "it did not answer"
    except (_Unreachable, HublineError) as error:
        return str(error)
    return ""


async def _read_blobs(address: BlobAddress, stage: PlannedStage) -> None:
    store = open_store(address)
    hub = open_hub(stage.sources[0].address)
    try:
        await store.list_checkpoints(GroupKey(hub.namespace, hub.name, stage.options.consumer_group))
    finally:
        await store.close()
        await hub.close()
