"""The checkpoint store in a SQLite file."""

from __future__ import annotations

from pathlib import Path

from hubline.checkpoint_stores.sql_store import SqlStore
from hubline.sql.pool import CALL_SECONDS_MAX
from hubline.sql.sqlite import SqliteDatabase


class SqliteStore(SqlStore):
    """A :class:`~hubline.ports.CheckpointStore` in the file at ``path``, made if need be; its folder must be there."""

    def __init__(self, path: Path | str, *, call_seconds_max: float = CALL_SECONDS_MAX) -> None:
        super().__init__(SqliteDatabase(Path(path).absolute()), call_seconds_max=call_seconds_max)
