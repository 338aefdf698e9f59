"""The checkpoint store in a PostgreSQL database."""

from __future__ import annotations

from hubline.checkpoint_stores.sql_store import SqlStore
from hubline.secrets import Secret
from hubline.sql.pool import CALL_SECONDS_MAX
from hubline.sql.postgres import PostgresDatabase


class PostgresStore(SqlStore):
    """A :class:`~hubline.ports.CheckpointStore` in the database that ``conninfo``, a URL for libpq, names."""

    def __init__(self, conninfo: Secret, *, call_seconds_max: float = CALL_SECONDS_MAX) -> None:
        super().__init__(PostgresDatabase(conninfo), call_seconds_max=call_seconds_max)
