"""Places: what the names in a pipeline stand for, as the TOML file says it.

[places.raw]
hub = "env:RAW_HUB"

[places.readings]
url = "postgresql://store@db/telemetry"
table = "readings"

[places.archive]
format = "parquet"
path = "./archive"

[run]
state = "./state/telemetry"

[stages.store]
ownership = "fixed:2"
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from hubline.addresses.hub_address import HubAddress, LocalHubAddress, parse_hub
from hubline.addresses.references import parse_path, parse_secret
from hubline.addresses.store_address import PostgresAddress, SqliteAddress, parse_store
from hubline.errors import ConfigError, Problem
from hubline.hubs.local import PARTITIONS_MAX
from hubline.pipeline.config_file import TomlFile, leaves, read_toml
from hubline.pipeline.definition import Where
from hubline.pipeline.secrets import names_secret
from hubline.secrets import Secret, may_hold_secret
from hubline.sinks.sql_sink.table_schema import TableName, checked_name

DEFAULT_PARTITIONS: Final = 4
"""Of a hub that is made because it is missing: as ``hubline hub create`` has it."""

DEFAULT_RESTARTS: Final = 10
"""With pauses that grow from half a second to 30 seconds, an outage of some three minutes is waited for."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class HubPlace:
    """A hub. ``create`` makes a local one that is missing."""

    name: str
    where: Where
    address: HubAddress
    text: str
    create: bool = False
    partitions: int = DEFAULT_PARTITIONS

    @property
    def option(self) -> str:
        """What Spark is told: no secret, and no path that depends on where a process runs."""
        return str(self.address) if isinstance(self.address, LocalHubAddress) else self.text

    @property
    def identity(self) -> str:
        """The same for all addresses of one hub."""
        address = self.address
        return str(address) if isinstance(address, LocalHubAddress) else f"{address.key_namespace}/{address.name}"

    def __str__(self) -> str:
        return str(self.address)


@dataclass(frozen=True, slots=True)
class TablePlace:
    """A table of a database."""

    name: str
    where: Where
    address: SqliteAddress | PostgresAddress
    text: str
    """The address as processes that run elsewhere understand it; a secret stays where it is kept."""
    table: str
    key: tuple[str, ...] = ()
    create: bool = False

    @property
    def identity(self) -> str:
        return f"{self.address} {self.table}"

    def __str__(self) -> str:
        return f"table {self.table} in {self.address}"


@dataclass(frozen=True, slots=True)
class FormatPlace:
    """Anything that Spark can write to or read from by itself: a format, a path, options."""

    name: str
    where: Where
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


Place: TypeAlias = HubPlace | TablePlace | FormatPlace


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The table [run]. ``state`` is the folder for Spark's own checkpoints; ``store`` keeps everybody's progress."""

    state: str
    store: str | None = None
    master: str | None = None
    restarts: int = DEFAULT_RESTARTS
    spark: Mapping[str, str | Secret] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Places:
    """Everything that the file says. ``overrides`` has, by stage, what it changes of what the pipeline says."""

    file: TomlFile
    by_name: Mapping[str, Place]
    run: RunSettings
    overrides: Mapping[str, Mapping[str, Any]]
    broken: frozenset[str] = frozenset()
    """Places with problems of their own: stages that name them are not blamed as well."""


STAGE_KEYS: Final = (
    "group", "ownership", "start", "max_batch_size", "trigger_interval", "lookback", "on_data_loss", "dead_letters",
    "checkpoint", "drop_duplicates",
)  # fmt: skip
"""What the file may change of a stage."""

FLEETING_FORMATS: Final = ("console", "memory")
"""Formats whose rows are gone with the run."""

FILE_FORMATS: Final = ("parquet", "csv", "json", "orc", "text", "delta")
"""Formats of files, in a folder; their writers remember which batches they have."""

COUNTED_FORMATS: Final = frozenset({"avro", "csv", "json", "orc", "parquet", "text", "xml"})
"""Formats whose writers remember batches by number alone, whoever counted them."""

_MASTERS: Final = ("local[*]", "local[4]", "spark://HOST:7077", "yarn", "k8s://https://HOST:443")
_MASTER: Final = re.compile(
    r"local(\[(\*|[1-9]\d*)(,[1-9]\d*)?\])?|local-cluster\[\d+,\d+,\d+\]|yarn|k8s://\S+"
    r"|spark://[^\s,/]+:\d+(,[^\s,/]+:\d+)*"
)
_TABLES: Final = ("places", "run", "stages")
_RUN_KEYS: Final = ("state", "store", "master", "restarts", "spark")
_HUB_KEYS: Final = ("hub", "create", "partitions")
_TABLE_KEYS: Final = ("url", "table", "key", "create")
_FORMAT_KEYS: Final = ("format", "path", "options")


def read_places(path: Path, settings: Mapping[str, str], *, pipeline: str) -> tuple[Places, list[Problem]]:
    """The places of a file, and all that is wrong with it."""
    file, problems = read_toml(path, settings)
    reading = _Reading(file, problems)
    reading.known_keys((), file.data, _TABLES)
    places = reading.places()
    run = reading.run_settings(pipeline)
    overrides = reading.overrides()
    broken = frozenset(reading.table("places")) - places.keys()
    return Places(file, places, run, overrides, broken), reading.problems


def validate_master(text: str) -> str:
    """Where Spark runs. What it does not know would end its Java at the start, in a stack trace."""
    if _MASTER.fullmatch(text):
        return text
    raise ConfigError(f"Spark knows no master {text[:80]!a}: {nearest(text, _MASTERS)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for a name that is unknown: the nearest, or all there are."""
    known = sorted(known)
    if match := difflib.get_close_matches(name[:60], known, n=1):
        return f"did you mean {match[0]}?"
    return f"there are {', '.join(known)}" if known else "there are none yet"


class _Reading:
    """Reads one file, and collects what is wrong instead of stopping at it."""

    def __init__(self, file: TomlFile, problems: list[Problem]) -> None:
        self.file = file
        self.problems = problems

    def places(self) -> dict[str, Place]:
        found = {}
        for name, table in self.table("places").items():
            if not isinstance(table, dict):
                self.wrong(("places", name), "a place is a table", f"write [places.{name}] and its keys below")
            elif place := self._place(name, table):
                found[name] = place
        return found

    def run_settings(self, pipeline: str) -> RunSettings:
        table = self.table("run")
        self.known_keys(("run",), table, _RUN_KEYS)
        restarts = self.value(("run", "restarts"), table.get("restarts", DEFAULT_RESTARTS), int)
        if restarts is not None and restarts < 0:
            self.wrong(("run", "restarts"), "restarts is 0 or more", "0 lets a stage fail once only")
        store = self.text(("run", "store"), table)
        if store is not None:
            self.parsed(("run", "store"), lambda: parse_store(store))
        master = self.text(("run", "master"), table)
        if master is not None:
            self.parsed(("run", "master"), lambda: validate_master(master))
        state = self.text(("run", "state"), table)
        if state and "://" not in state and self.path(("run", "state"), state) is None:
            state = None
        return RunSettings(
            state=state or f"./state/{pipeline}",
            store=store,
            master=master,
            restarts=restarts or 0,
            spark=self._texts(("run", "spark"), table.get("spark", {})),
        )

    def overrides(self) -> dict[str, Mapping[str, Any]]:
        stages = self.table("stages")
        for name, table in stages.items():
            if not isinstance(table, dict):
                self.wrong(("stages", name), "a stage is a table", f"write [stages.{name}] and its keys below")
            else:
                self.known_keys(("stages", name), table, STAGE_KEYS)
        return {name: table for name, table in stages.items() if isinstance(table, dict)}

    def _place(self, name: str, table: Mapping[str, Any]) -> Place | None:
        kinds = [kind for kind in ("hub", "url", "format") if kind in table]
        path = ("places", name)
        if len(kinds) != 1:
            fix = 'give it one of hub = "ADDRESS", url = "DATABASE" with table = "NAME", or format = "FORMAT"'
            self.wrong(path, f"the place {name} is not one thing", fix)
            return None
        match kinds[0]:
            case "hub":
                return self._hub(name, table)
            case "url":
                return self._table(name, table)
            case _:
                return self._format(name, table)

    def _hub(self, name: str, table: Mapping[str, Any]) -> Place | None:
        path = ("places", name)
        self.known_keys(path, table, _HUB_KEYS)
        text = self.text((*path, "hub"), table)
        address = self.parsed((*path, "hub"), lambda: parse_hub(text)) if text is not None else None
        create = self.value((*path, "create"), table.get("create", False), bool)
        partitions = self.value((*path, "partitions"), table.get("partitions", DEFAULT_PARTITIONS), int)
        if create and address is not None and not isinstance(address, LocalHubAddress):
            self.wrong(
                (*path, "create"), "only local hubs are made here", "create it where it lives, and remove create"
            )
        if partitions is not None and not 1 <= partitions <= PARTITIONS_MAX:
            self.wrong((*path, "partitions"), f"partitions is 1 to {PARTITIONS_MAX}", f"and not {partitions}")
        if address is None or text is None or partitions is None:
            return None
        return HubPlace(name, self.file.where(*path, "hub"), address, text, bool(create), partitions)

    def _table(self, name: str, table: Mapping[str, Any]) -> Place | None:
        path = ("places", name)
        self.known_keys(path, table, _TABLE_KEYS)
        url = self.text((*path, "url"), table)
        address = self.parsed((*path, "url"), lambda: parse_store(url)) if url is not None else None
        if address is not None and not isinstance(address, SqliteAddress | PostgresAddress):
            self.wrong((*path, "url"), "a table is in a SQL database", "write sqlite:///PATH or postgresql://...")
            return None
        named = self.text((*path, "table"), table)
        if named is None and "table" not in table:
            self.wrong(path, f"the place {name} names no table", 'add table = "NAME"')
        key = table.get("key", [])
        keys = [key] if isinstance(key, str) else key
        if not isinstance(keys, list) or not all(isinstance(each, str) for each in keys):
            self.wrong((*path, "key"), "key is a column, or a list of columns", 'write key = ["id"]')
            keys = []
        self.parsed((*path, "key"), lambda: [checked_name("column", column) for column in keys])
        create = self.value((*path, "create"), table.get("create", False), bool)
        if address is None or url is None or named is None:
            return None
        if self.parsed((*path, "table"), lambda: TableName.parse(named)) is None:
            return None
        return TablePlace(
            name,
            self.file.where(*path, "table"),
            address,
            anywhere(url),
            named,
            tuple(keys),
            bool(create),
        )

    def _format(self, name: str, table: Mapping[str, Any]) -> Place | None:
        path = ("places", name)
        self.known_keys(path, table, _FORMAT_KEYS)
        kind = self.text((*path, "format"), table)
        options = self._texts((*path, "options"), table.get("options", {}))
        if kind is None:
            return None
        if kind in ("eventhubs", "hubline-stage"):
            self.wrong((*path, "format"), "a hub is no format here", 'write hub = "ADDRESS"')
            return None
        if kind in FILE_FORMATS and "path" not in table and "path" not in options:
            self.wrong(path, f"the place {name} has no path", 'add path = "FOLDER"')
            return None
        folder = self.text((*path, "path"), table)
        if folder is not None and _is_local(folder):
            # As it is seen from here: Java may have been started in another folder.
            folder = self.path((*path, "path"), folder)
        return FormatPlace(name, self.file.where(*path), kind, folder, options)

    # Single values

    def table(self, name: str) -> Mapping[str, Any]:
        value = self.file.data.get(name, {})
        if isinstance(value, dict):
            return value
        self.wrong((name,), f"{name} is a table", f"write [{name}] and its keys below")
        return {}

    def known_keys(self, path: tuple[str, ...], table: Mapping[str, Any], known: Iterable[str]) -> None:
        for key in table.keys() - set(known):
            shown = "(not shown, it may hold a secret)" if may_hold_secret(key) else key
            self.wrong((*path, key), f"the key {shown} is unknown", nearest(key, known))

    def text(self, path: tuple[str, ...], table: Mapping[str, Any]) -> str | None:
        value = table.get(path[-1])
        return None if value is None else self.value(path, value, str)

    def value(self, path: tuple[str, ...], value: object, kind: type[Value]) -> Value | None:
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
        words = {str: "text in quotes", int: "a whole number", bool: "true or false"}
        self.wrong(path, f"{path[-1]} is {words[kind]}", f"and not {type(value).__name__}")
        return None

    def parsed(self, path: tuple[str, ...], parse: Callable[[], Value]) -> Value | None:
        try:
            return parse()
        except ConfigError as error:
            self.wrong(path, str(error))
            return None

    def path(self, path: tuple[str, ...], text: str) -> str | None:
        """The absolute path, if it leads somewhere."""
        is_known = self.parsed(path, lambda: parse_path(path[-1], text)) is not None
        return str(Path(text).expanduser().absolute()) if is_known else None

    def _texts(self, path: tuple[str, ...], table: object) -> dict[str, str | Secret]:
        if not isinstance(table, dict):
            self.wrong(path, f"{path[-1]} is a table", f"write [{'.'.join(path)}] and its keys below")
            return {}
        found: dict[str, str | Secret] = {}
        for parts, value in leaves(table):
            name = ".".join(parts)  # keys with dots in them are tables within tables to TOML, and one name to Spark
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if isinstance(value, list):
                self.wrong((*path, name), f"{name} is a list", "write one text, for instance with commas in it")
            elif not _is_kept_elsewhere(name, text):
                found[name] = text
            elif (secret := self.parsed((*path, name), partial(parse_secret, name, text))) is not None:
                found[name] = secret
        return found

    def wrong(self, path: tuple[str, ...], what: str, fix: str = "") -> None:
        where = self.file.where(*path)
        self.problems.append(Problem(where.file, where.line, what, fix))


def anywhere(store: str) -> str:
    """A store's address that does not depend on where a process runs: Java may have been started in another folder."""
    address = parse_store(store)
    return str(address) if isinstance(address, SqliteAddress) else store


def _is_local(path: str) -> bool:
    """Whether it is a path of this machine that depends on who reads it."""
    return "://" not in path and not path.startswith(("/", "file:", "dbfs:"))


def _is_kept_elsewhere(name: str, text: str) -> bool:
    """Whether what Spark gets is in a variable or a file. Where no secret is expected, file: is a path of Spark's."""
    if text.startswith("file:"):
        return names_secret(name) or name.lower() == "url"
    return text.startswith("env:") and name.lower() != "path"
