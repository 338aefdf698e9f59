"""Datasets: what the names in a pipeline stand for, as tables [datasets.NAME] of the TOML file say it.

[datasets.raw]
hub = "env:RAW_HUB"

[datasets.readings]
url = "postgresql://store@db/telemetry"
table = "readings"

[datasets.archive]
format = "parquet"
path = "./archive"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from hubline.addresses.hub_address import HubAddress, LocalHubAddress, parse_hub
from hubline.addresses.store_address import PostgresAddress, SqliteAddress, parse_store
from hubline.hubs.local import PARTITIONS_MAX
from hubline.pipeline.config_file import ConfigReader
from hubline.pipeline.definition import Where
from hubline.secrets import Secret
from hubline.sinks.sql_sink.table_schema import TableName, checked_name

DEFAULT_PARTITIONS: Final = 4
"""Of a hub that is created because it is missing: as `hubline hub create` has it."""


@dataclass(frozen=True, slots=True)
class HubDataset:
    """A hub. `create_if_missing` is for local ones."""

    name: str
    where: Where
    address: HubAddress
    text: str
    create_if_missing: bool = False
    partitions: int = DEFAULT_PARTITIONS

    @property
    def option(self) -> str:
        """What Spark gets: no secret, and no path that depends on where a process runs."""
        return str(self.address) if isinstance(self.address, LocalHubAddress) else self.text

    @property
    def identity(self) -> str:
        """The same for all addresses of one hub."""
        address = self.address
        return str(address) if isinstance(address, LocalHubAddress) else f"{address.key_namespace}/{address.name}"

    def __str__(self) -> str:
        return str(self.address)


@dataclass(frozen=True, slots=True)
class TableDataset:
    """A table of a database. `where` is the line of its address."""

    name: str
    where: Where
    table_where: Where
    key_where: Where
    address: SqliteAddress | PostgresAddress
    text: str
    """The address as processes that run elsewhere understand it; a secret stays where it is kept."""
    table: str
    upsert_key: tuple[str, ...] = ()
    create_if_missing: bool = False

    @property
    def identity(self) -> str:
        return f"{self.address} {self.table}"

    def __str__(self) -> str:
        return f"table {self.table} in {self.address}"


@dataclass(frozen=True, slots=True)
class FormatDataset:
    """Anything that Spark can write or read by itself: a format, a path, options."""

    name: str
    where: Where
    path_where: Where
    format: str
    path: str | None = None
    options: Mapping[str, str | Secret] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        return f"{self.format} {self.path or self.name}"

    @property
    def counted_folder(self) -> str | None:
        """The folder of a format whose files remember batches by number; None of all others."""
        folder = self.path or self.options.get("path")
        return folder if isinstance(folder, str) and self.format.lower() in COUNTED_FORMATS else None

    def __str__(self) -> str:
        return f"{self.format} {self.path}" if self.path else self.format


Dataset: TypeAlias = HubDataset | TableDataset | FormatDataset

FLEETING_FORMATS: Final = ("console", "memory")
"""Formats whose rows are gone with the run."""

FILE_FORMATS: Final = ("parquet", "csv", "json", "orc", "text", "delta")
"""Formats of files, in a folder; their writers remember which batches they have."""

COUNTED_FORMATS: Final = frozenset({"avro", "csv", "json", "orc", "parquet", "text", "xml"})
"""Formats whose writers remember batches by number alone, no matter which query counted them."""

_KEYS: Final = {
    "hub": ("hub", "create_if_missing", "partitions"),
    "url": ("url", "table", "upsert_key", "create_if_missing"),
    "format": ("format", "path", "options"),
}


def read_datasets(reader: ConfigReader) -> dict[str, Dataset]:
    """By name. Those with problems are left out."""
    found = {}
    for name, table in reader.table("datasets").items():
        if not isinstance(table, dict):
            fix = f"write [datasets.{name}] and its keys below"
            reader.add_problem(("datasets", name), "a dataset must be a table", fix)
        elif dataset := _dataset(reader, name, table):
            found[name] = dataset
    return found


def _dataset(reader: ConfigReader, name: str, table: Mapping[str, Any]) -> Dataset | None:
    path = ("datasets", name)
    kinds = [kind for kind in _KEYS if kind in table]
    before = len(reader.problems)
    if len(kinds) == 1:
        reader.check_keys(path, table, _KEYS[kinds[0]])
    elif not kinds:
        reader.check_keys(path, table, dict.fromkeys(key for keys in _KEYS.values() for key in keys))
        if len(reader.problems) > before:
            return None  # probably the key that is missing, misspelled
    if len(kinds) != 1:
        message = f"[datasets.{name}] must have one of hub, url and format, and has {' and '.join(kinds) or 'none'}"
        fix = 'write hub = "ADDRESS", or url = "DATABASE" with table = "NAME", or format = "FORMAT"'
        reader.add_problem(path, message, fix)
        return None
    match kinds[0]:
        case "hub":
            return _hub(reader, name, table)
        case "url":
            return _table(reader, name, table)
        case _:
            return _format(reader, name, table)


def _hub(reader: ConfigReader, name: str, table: Mapping[str, Any]) -> HubDataset | None:
    path = ("datasets", name)
    text = reader.text((*path, "hub"), table)
    address = reader.parsed((*path, "hub"), lambda: parse_hub(text)) if text is not None else None
    create = _create_if_missing(reader, path, table)
    partitions = reader.value((*path, "partitions"), table.get("partitions", DEFAULT_PARTITIONS), int)
    if create and address is not None and not isinstance(address, LocalHubAddress):
        fix = "create it where it is, and remove create_if_missing"
        reader.add_problem((*path, "create_if_missing"), "hubline creates local hubs alone", fix)
    if partitions is not None and not 1 <= partitions <= PARTITIONS_MAX:
        message = f"partitions must be 1 to {PARTITIONS_MAX}, not {partitions}"
        reader.add_problem((*path, "partitions"), message)
    if address is None or text is None or create is None or partitions is None:
        return None
    return HubDataset(name, reader.file.where(*path, "hub"), address, text, create, partitions)


def _table(reader: ConfigReader, name: str, table: Mapping[str, Any]) -> TableDataset | None:
    path = ("datasets", name)
    url = reader.text((*path, "url"), table)
    address = reader.parsed((*path, "url"), lambda: parse_store(url)) if url is not None else None
    if address is not None and not isinstance(address, SqliteAddress | PostgresAddress):
        fix = "write sqlite:///PATH or postgresql://..."
        reader.add_problem((*path, "url"), "a table must be in a SQL database", fix)
        return None
    named = reader.text((*path, "table"), table)
    if named is None and "table" not in table:
        reader.add_problem(path, f"the dataset {name} names no table", 'add table = "NAME"')
    key = table.get("upsert_key", [])
    keys = [key] if isinstance(key, str) else key
    if not isinstance(keys, list) or not all(isinstance(each, str) for each in keys):
        message = "upsert_key must be a column, or a list of columns"
        reader.add_problem((*path, "upsert_key"), message, 'write upsert_key = ["id"]')
        keys = []
    reader.parsed((*path, "upsert_key"), lambda: [checked_name("column", column) for column in keys])
    create = _create_if_missing(reader, path, table)
    if address is None or url is None or named is None or create is None:
        return None
    if reader.parsed((*path, "table"), lambda: TableName.parse(named)) is None:
        return None
    url_where, table_where, key_where = (reader.file.where(*path, key) for key in ("url", "table", "upsert_key"))
    return TableDataset(name, url_where, table_where, key_where, address, anywhere(url), named, tuple(keys), create)


def _format(reader: ConfigReader, name: str, table: Mapping[str, Any]) -> FormatDataset | None:
    path = ("datasets", name)
    kind = reader.text((*path, "format"), table)
    options = reader.settings((*path, "options"))
    if kind is None:
        return None
    if kind in ("eventhubs", "hubline-stage"):
        reader.add_problem((*path, "format"), "a hub is not a format here", 'write hub = "ADDRESS"')
        return None
    if kind in FILE_FORMATS and "path" not in table and "path" not in options:
        reader.add_problem(path, f"the dataset {name} has no path", 'add path = "FOLDER"')
        return None
    folder = reader.text((*path, "path"), table)
    if folder is not None and _is_local(folder):
        # As it is seen from here: Java may have been started in another folder.
        folder = reader.path((*path, "path"), folder)
    where, path_where = (reader.file.where(*path, key) for key in ("format", "path"))
    return FormatDataset(name, where, path_where, kind, folder, options)


def _create_if_missing(reader: ConfigReader, path: tuple[str, ...], table: Mapping[str, Any]) -> bool | None:
    return reader.value((*path, "create_if_missing"), table.get("create_if_missing", False), bool)


def anywhere(store: str) -> str:
    """A store's address that does not depend on where a process runs: Java may have been started in another folder."""
    address = parse_store(store)
    return str(address) if isinstance(address, SqliteAddress) else store


def _is_local(path: str) -> bool:
    """Whether it is a path of this machine that depends on who reads it."""
    return "://" not in path and not path.startswith(("/", "file:", "dbfs:"))
