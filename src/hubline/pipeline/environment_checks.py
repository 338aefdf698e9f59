"""Hubs, stores and tables as they are now: whether they are there, and what would be made. Looking changes nothing.

A SQL store makes its tables when it is first opened: so databases are looked at here without opening a store.
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
from hubline.pipeline.datasets import HubPlace, Place, TablePlace
from hubline.pipeline.definition import Where
from hubline.pipeline.planning import Plan, PlannedStage, local_folder
from hubline.sinks.sql_sink.table_schema import TableName, quoted

LOOK_SECONDS_MAX: Final = 20.0
"""How long each is waited for: longer than a slow network takes, shorter than people wait."""


@dataclass(slots=True)
class Found:
    """What there is: problems, and what a run would make."""

    problems: list[Problem] = field(default_factory=list)
    creations: list[str] = field(default_factory=list)

    def wrong(self, where: Where, what: str, fix: str = "") -> None:
        self.problems.append(Problem(where.file, where.line, what, fix))


def look(plan: Plan, stages: Sequence[PlannedStage], tell: Callable[[str], None] = lambda _: None) -> Found:
    """Looks at everything that the stages use, all at once."""
    found = Found()
    if (state := local_folder(plan.run.state)) is not None:
        _state(plan, state, found)
    asyncio.run(_look(plan, stages, found, tell))
    found.creations.sort()
    return found


def _state(plan: Plan, state: Path, found: Found) -> None:
    if not state.exists():
        found.creations.append(f"folder {state}, for Spark's own checkpoints")
    there = next(each for each in (state, *state.parents) if each.exists())
    if not there.is_dir():
        found.wrong(plan.state_where, f"the state folder {state} cannot be made", f"{there} is a file: name another")
    elif not os.access(there, os.W_OK | os.X_OK):
        fix = "give this user the right, or name another folder: --set run.state=PATH"
        found.wrong(plan.state_where, f"the state folder {state} cannot be written to", fix)


async def _look(plan: Plan, stages: Sequence[PlannedStage], found: Found, tell: Callable[[str], None]) -> None:
    looks: list[Coroutine[Any, Any, None]] = []
    places = {place.name: place for stage in stages for place in _places(stage)}
    tell(f"looking at {len(places)} places")
    looks += [_hub(place, found) for place in places.values() if isinstance(place, HubPlace)]
    looks += [
        _table(place, found, is_written=any(stage.target == place for stage in stages))
        for place in places.values()
        if isinstance(place, TablePlace)
    ]
    stores = {stage.store: stage for stage in stages if stage.store and not isinstance(stage.target, TablePlace)}
    looks += [_store(plan, text, stage, found) for text, stage in stores.items()]
    await asyncio.gather(*looks)


def _places(stage: PlannedStage) -> Iterable[Place]:
    yield from stage.sources
    yield stage.target
    yield from stage.tables.values()
    if stage.letters is not None:
        yield stage.letters


async def _hub(place: HubPlace, found: Found) -> None:
    hub = open_hub(place.address)
    try:
        async with asyncio.timeout(LOOK_SECONDS_MAX):
            await hub.describe()
    except HubNotFound:
        if place.create:
            found.creations.append(f"hub {place}, with {place.partitions} partitions")
        else:
            fix = "create it (hubline hub create), or add create = true for a local hub"
            found.wrong(place.where, f"there is no hub {place} (place {place.name})", fix)
    except TimeoutError:
        found.wrong(place.where, f"hub {place} (place {place.name}) did not answer", "check the address and network")
    except HublineError as error:
        found.wrong(place.where, f"hub {place} (place {place.name}): {error}")
    finally:
        await hub.close()


async def _store(plan: Plan, text: str, stage: PlannedStage, found: Found) -> None:
    address = parse_store(text)
    if isinstance(address, SqliteAddress) and address.path == plan.default_store:
        if not address.path.exists():
            found.creations.append(f"store {address}, for checkpoints and owners")
        return
    if reason := await _unreachable(address, stage):
        found.wrong(
            plan.store_where, f"the store {address} cannot be used: {reason}", "check the address, and that it runs"
        )
    elif isinstance(address, SqliteAddress) and not address.path.exists():
        found.creations.append(f"store {address}, for checkpoints and owners")


async def _table(place: TablePlace, found: Found, *, is_written: bool) -> None:
    columns: list[str] | None = None
    try:
        async with asyncio.timeout(LOOK_SECONDS_MAX):
            columns = await asyncio.to_thread(table_columns, place)
    except TimeoutError:
        return found.wrong(place.where, f"{place.address} did not answer", "check the address, and that it runs")
    except _Unreachable as error:
        return found.wrong(place.where, f"{place} cannot be used: {error}", "check the address, and that it runs")
    if columns is None and is_written and place.create:
        found.creations.append(f"{place}, of the first rows' columns")
    elif columns is None:
        fix = "create it, or add create = true" if is_written else "create it"
        found.wrong(place.where, f"there is no {place} (place {place.name})", fix)
    elif missing := [key for key in place.key if key not in columns]:
        found.wrong(place.where, f"{place} has no column {missing[0]}, which key names", f"it has {', '.join(columns)}")
    return None


class _Unreachable(Exception):
    """A database that cannot be looked at, and why. Shows no secret."""


def table_columns(place: TablePlace) -> list[str] | None:
    """The names of the table's columns; None if there is no such table."""
    name = TableName.parse(place.table)
    match place.address:
        case SqliteAddress(path):
            return _sqlite_columns(path, name)
        case PostgresAddress() as address:
            return _postgres_columns(address, name)


def _sqlite_columns(path: Path, name: TableName) -> list[str] | None:
    if not path.exists():
        return None
    try:
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=LOOK_SECONDS_MAX)
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

    reason = ""
    try:
        with psycopg.connect(address.conninfo.reveal(), connect_timeout=int(LOOK_SECONDS_MAX)) as connection:
            return connection.execute(query, params).fetchall()
    except psycopg.OperationalError:
        # Its text may quote the connection string: not repeated.
        reason = "PostgreSQL cannot be reached there, or does not let this user in"
    except psycopg.Error as error:
        reason = f"PostgreSQL says: {error.diag.message_primary or type(error).__name__}"
    raise _Unreachable(reason)


async def _unreachable(address: StoreAddress, stage: PlannedStage) -> str:
    """Why a store cannot be used; nothing if it can."""
    try:
        async with asyncio.timeout(LOOK_SECONDS_MAX):
            match address:
                case SqliteAddress(path):
                    await asyncio.to_thread(_sqlite_columns, path, TableName(None, "hubline_schema"))
                case PostgresAddress():
                    await asyncio.to_thread(_postgres_rows, address, "SELECT 1", ())
                case BlobAddress():
                    await _read_blobs(address, stage)
                case MemoryAddress():
                    return "it is one process's own"
    except TimeoutError:
        return "it did not answer"
    except (_Unreachable, HublineError) as error:
        return str(error)
    return ""


async def _read_blobs(address: BlobAddress, stage: PlannedStage) -> None:
    store = open_store(address)
    hub = open_hub(stage.sources[0].address)
    try:
        await store.list_checkpoints(GroupKey(hub.namespace, hub.name, stage.group))
    finally:
        await store.close()
        await hub.close()
