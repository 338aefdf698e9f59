"""A hub as a folder: what is in it, and how it is created, grown, listed and deleted.

    PATH/NAME/hub.db             what the hub is: one row
    PATH/NAME/0.48213.db         partition 0, and so on; 48213 is the tag of this incarnation of the hub
    PATH/NAME/signal             stamps that tell of changes, mapped by every process that waits (see change_signal.py)
    PATH/NAME/readers/ID.lock    held while the hub object of an epoch reader lives (see reader_lock.py)
    PATH/.creating-...           a hub that is being created: it is renamed once it is complete
    PATH/.deleted-...            a hub that was deleted: its files go afterwards

A hub that is deleted and re-created gets another tag. The tag is part of every offset, so that a position in the
former hub is recognised; and of the partitions' file names, so that a process that still has the former files open
never comes across the new ones: SQLite finds a database's write-ahead log by its name.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final, TypeAlias

from hubline.addresses.names import validate_hub_name
from hubline.addresses.option_checks import checked_options
from hubline.addresses.option_kinds import Count, PositiveSeconds, Range
from hubline.errors import ConfigError, HubError, HubExists, HubNotFound
from hubline.hubs.local import change_signal as signal
from hubline.hubs.local import partition_file as partition
from hubline.hubs.local.sqlite_files import Where, connect, damaged, hub_errors, transaction
from hubline.hubs.local.stored_batch import TAG_MAX, TAG_MIN
from hubline.text import counted

# As many as the service's largest offer has. The signal file has room for this many from the start.
PARTITIONS_MAX: Final = 1024
PartitionCount: TypeAlias = Annotated[int, Range(least=1, most=PARTITIONS_MAX)]

FORMAT_VERSION: Final = 1

# A change of hub.db shows in its modification time, which on some systems ticks only every few milliseconds: what was
# read is believed for at most this long even if the time is the same.
META_AGE_SECONDS_MAX: Final = 1.0

# Creating the largest hub takes seconds: what has not changed for so long was left by a process that died.
CREATION_SECONDS_MAX: Final = 3600

_HUB_FILE: Final = "hub.db"
_SIGNAL_FILE: Final = "signal"
_READERS_FOLDER: Final = "readers"
_CREATING: Final = ".creating-"
_DELETED: Final = ".deleted-"

_HUB_SCHEMA: Final = """
CREATE TABLE hub (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    format_version INTEGER NOT NULL,
    tag INTEGER NOT NULL,
    partition_count INTEGER NOT NULL,
    created_us INTEGER NOT NULL,
    retention_seconds REAL,
    retention_bytes INTEGER
)
"""


@checked_options
@dataclass(frozen=True, slots=True)
class Retention:
    """How long a local hub keeps events. Whole batches expire, the oldest first.

    Attributes:
        seconds: How long an event is kept. Default: None, without limit.
        bytes: How many bytes a partition keeps. Its newest batch is always kept. Default: None, without limit.

    Raises:
        ConfigError: A limit is not a positive number.
    """

    seconds: PositiveSeconds | None = None
    bytes: Count | None = None


@dataclass(frozen=True, slots=True)
class Meta:
    """What a hub is, as its ``hub.db`` says."""

    tag: int
    partition_ids: tuple[str, ...]
    created_at: datetime
    retention: Retention

    @property
    def partition_count(self) -> int:
        return len(self.partition_ids)


class HubFolder:
    """The place of a hub, whether it exists or not. Methods block; any thread may call them."""

    def __init__(self, root: Path | str, name: str) -> None:
        self.root = Path(root).resolve()
        self.name = validate_hub_name(name)
        self.path = self.root / self.name
        self._cached: tuple[tuple[int, int, int], float, Meta] | None = None
        self._lock = threading.Lock()

    @property
    def namespace(self) -> str:
        return f"local:{self.root}"

    @property
    def address(self) -> str:
        """What a person types to name the hub."""
        return f"{self.namespace}/{self.name}"

    @property
    def signal_path(self) -> Path:
        return self.path / _SIGNAL_FILE

    @property
    def readers_path(self) -> Path:
        return self.path / _READERS_FOLDER

    def partition_path(self, tag: int, index: int) -> Path:
        return self.path / _partition_file(tag, index)

    def meta(self) -> Meta:
        """What the hub is now. Raises HubNotFound. Costs one look at the file's date unless something changed."""
        path = self.path / _HUB_FILE
        with hub_errors(Where(self.address, path)):
            try:
                status = path.stat()
            except (FileNotFoundError, NotADirectoryError):
                raise self.not_found() from None
        signature = (status.st_ino, status.st_mtime_ns, status.st_size)
        now = time.monotonic()
        with self._lock:
            if self._cached and self._cached[0] == signature and now - self._cached[1] < META_AGE_SECONDS_MAX:
                return self._cached[2]
        meta = self._read_meta()
        with self._lock:
            self._cached = (signature, now, meta)
        return meta

    def not_found(self) -> HubNotFound:
        others = ", ".join(list_names(self.root)) or "none"
        return HubNotFound(
            f"there is no hub {self.name} in {self.root} (hubs there: {others}). "
            f"Create it with `hubline hub create {self.address}`, or correct the name.",
            hub=self.address,
        )

    def _read_meta(self) -> Meta:
        with self._opened() as connection:
            return self._row(connection)

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        path = self.path / _HUB_FILE
        with hub_errors(Where(self.address, path)):
            try:
                connection = connect(path)
            except sqlite3.OperationalError:
                if path.exists():
                    raise
                raise self.not_found() from None
            with closing(connection):
                yield connection

    def _row(self, connection: sqlite3.Connection) -> Meta:
        row = connection.execute(
            "SELECT format_version, tag, partition_count, created_us, retention_seconds, retention_bytes FROM hub"
        ).fetchone()
        if row is None or not all(isinstance(value, int) for value in row[:4]):
            raise damaged(Where(self.address, self.path / _HUB_FILE), "it does not say what the hub is")
        version, tag, partition_count, created_us, seconds, size = row
        if version > FORMAT_VERSION:
            raise HubError(
                f"hub {self.address} was created by a newer hubline (format {version}, this one knows "
                f"{FORMAT_VERSION}). Upgrade hubline to use it.",
                hub=self.address,
            )
        partition_ids = tuple(str(index) for index in range(partition_count))
        return Meta(tag, partition_ids, datetime.fromtimestamp(created_us / 1e6, UTC), Retention(seconds, size))

    def create(self, partition_count: int, retention: Retention) -> None:
        building = self.root / f"{_CREATING}{secrets.token_hex(8)}"
        with hub_errors(Where(self.address, self.path)):
            self._require_absent()
            self.root.mkdir(parents=True, exist_ok=True)
            _sweep(self.root)
            try:
                self._build(building, partition_count, retention)
                # Dying before this line leaves a hidden folder that nothing reads; after it, a whole hub.
                building.rename(self.path)
            except BaseException:
                shutil.rmtree(building, ignore_errors=True)
                self._require_absent()  # another process may have been faster
                raise
            _sync_folder(self.root)

    def grow(self, partition_count: int) -> None:
        with self._opened() as connection, transaction(connection, writes=True):
            meta = self._row(connection)
            if partition_count < meta.partition_count:
                raise ConfigError(
                    f"hub {self.address} has {counted(meta.partition_count, 'partition')}: partitions can be added, "
                    f"but not removed. Give more than {meta.partition_count}, not {partition_count}."
                )
            # Dying before the commit leaves files that nobody counts; the next growth writes them again.
            _write_partitions(self.path, meta.tag, range(meta.partition_count, partition_count))
            connection.execute("UPDATE hub SET partition_count = ?", (partition_count,))

    def delete(self) -> None:
        """Also deletes a damaged hub; but nothing that is none."""
        tombstone = self.root / f"{_DELETED}{secrets.token_hex(8)}"
        with hub_errors(Where(self.address, self.path)):
            if not is_hub(self.path):
                raise self.not_found()
            try:
                self.path.rename(tombstone)
            except FileNotFoundError:  # another process was faster
                raise self.not_found() from None
            # The hub is gone. Dying from here on leaves files that the next creation or deletion sweeps up.
            _sync_folder(self.root)
            signal.notify_all(tombstone / _SIGNAL_FILE, PARTITIONS_MAX)
            _sweep(self.root)

    def _build(self, folder: Path, partition_count: int, retention: Retention) -> None:
        tag = TAG_MIN + secrets.randbelow(TAG_MAX - TAG_MIN + 1)
        folder.mkdir()
        (folder / _READERS_FOLDER).mkdir()
        signal.create_file(folder / _SIGNAL_FILE, PARTITIONS_MAX)
        _write_partitions(folder, tag, range(partition_count))
        with closing(connect(folder / _HUB_FILE, create=True)) as connection:
            connection.execute(_HUB_SCHEMA)
            connection.execute(
                "INSERT INTO hub VALUES (1, ?, ?, ?, ?, ?, ?)",
                (FORMAT_VERSION, tag, partition_count, time.time_ns() // 1000, retention.seconds, retention.bytes),
            )
        _sync_folder(folder)

    def _require_absent(self) -> None:
        if self.path.exists():
            what = "a hub" if is_hub(self.path) else "not a hub"
            raise HubExists(f"{self.path} already exists, and is {what}. Choose another name.", hub=self.address)


def is_hub(path: Path) -> bool:
    return (path / _HUB_FILE).is_file()


def list_names(root: Path) -> list[str]:
    """The names of the hubs in a folder, sorted; what is being created or deleted is not among them."""
    try:
        return sorted(path.name for path in root.iterdir() if not path.name.startswith(".") and is_hub(path))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _partition_file(tag: int, index: int) -> str:
    return f"{index}.{tag}.db"


def _write_partitions(folder: Path, tag: int, indexes: range) -> None:
    """New partition files. All are the same, so one is made and copied."""
    if not indexes:
        return
    model = folder / f".partition-{secrets.token_hex(8)}"
    try:
        partition.create_file(model, tag)
        for index in indexes:
            copy = folder / _partition_file(tag, index)
            shutil.copyfile(model, copy)
            _sync_file(copy)
    finally:
        model.unlink(missing_ok=True)
    _sync_folder(folder)


def _sweep(root: Path) -> None:
    """Removes what deleted hubs and abandoned creations left. Another process may be doing the same."""
    abandoned_before = time.time() - CREATION_SECONDS_MAX
    for leftover in [*root.glob(f"{_DELETED}*"), *root.glob(f"{_CREATING}*")]:
        with suppress(FileNotFoundError):
            if leftover.name.startswith(_DELETED) or leftover.stat().st_mtime < abandoned_before:
                shutil.rmtree(leftover, ignore_errors=True)


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
