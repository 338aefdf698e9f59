"""PostgreSQL databases, shared by many machines: connections, dialect and error texts."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from hubline.errors import ConfigError, StoreError, StoreUnavailable
from hubline.secrets import Secret
from hubline.sql.dialect import Dialect, Row, Statement
from hubline.sql.migrations import load_migrations, migrate
from hubline.sql.queries import GROUP, queries_for
from hubline.text import sentences

STATEMENT_SECONDS_MAX = 10
"""Shorter than what a call may take: the server then says itself what was slow, and lets its locks go."""

_CONNECTION_DEFAULTS = {
    "application_name": "hubline",
    "client_encoding": "UTF8",
    "connect_timeout": "5",
    # A server that vanished without a word is noticed after 10 + 3 * 5 seconds, or with data under way after 15.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
}

# Renewals and claims re-read a row they had to wait for, which only this isolation level does.
_SESSION = """
    SET default_transaction_isolation = 'read committed';
    SET statement_timeout = '{seconds}s';
    SET idle_in_transaction_session_timeout = '{seconds}s';
    SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = 3;
"""  # the last line: the server notices a machine that vanished as soon as this side would, and lets its locks go

_ROWS = """(
    SELECT entry ->> 0 AS new_partition, entry ->> 1 AS new_owner,
        CAST(entry ->> 2 AS bigint) AS new_epoch, entry ->> 3 AS known_version
    FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS entry
)"""

# Row locks are taken one by one in the order of :rows, which is the same for all: no deadlock can arise.
# An update alone takes them in the order of its plan, and two of them may wait for each other.
_LOCKED_ROWS = """(
    SELECT wanted.* FROM {rows} AS wanted CROSS JOIN LATERAL (
        SELECT 1 FROM hubline_ownership WHERE {group} AND partition_id = new_partition FOR NO KEY UPDATE
    ) AS locked
)"""

PAUSE_SECONDS_MAX = 600
"""How long handlers, or a hub, may work on a batch of dead letters. Only other redrives wait for it, and a processor
that fails the same event again."""

DIALECT = Dialect(
    parameter=r"%(\1)s",
    now="clock_timestamp()",  # now() is when the transaction began
    now_micros="CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)",
    epoch_seconds="CAST(extract(epoch FROM clock_timestamp()) AS float8)",
    age=lambda column: (
        f"CASE WHEN {column} IS NOT NULL "  # greatest() ignores a NULL
        f"THEN CAST(greatest(0, extract(epoch FROM clock_timestamp() - {column})) AS float8) END"
    ),
    micros=lambda column: f"CAST(extract(epoch FROM {column}) * 1000000 AS bigint)",
    failed_micros="CAST(extract(epoch FROM failed_at) * 1000000 AS bigint)",
    failed_time=lambda micros: f"to_timestamp(0) + CAST({micros} AS bigint) * interval '1 microsecond'",
    contains_text=lambda column, part: f"strpos(lower({column}), lower(CAST({part} AS text))) > 0",
    largest="greatest",
    texts="SELECT jsonb_array_elements_text(CAST(:texts AS jsonb)) AS value",
    rows=_ROWS,
    locked_rows=_LOCKED_ROWS.format(rows=_ROWS, group=GROUP),
    locked="FOR NO KEY UPDATE",
    locked_for_removal="FOR UPDATE",
    skip_locked="FOR UPDATE SKIP LOCKED",
    # By partition, and not by row: a second redrive that skipped the locked rows would run later events of a key first.
    try_lock="SELECT pg_try_advisory_xact_lock(hashtextextended(CAST(:partition_lock AS text), 0))",
    allow_long_pauses=f"SET LOCAL idle_in_transaction_session_timeout = '{PAUSE_SECONDS_MAX}s'",
)
QUERIES = queries_for(DIALECT)

# Read from the catalog: to_regclass() may answer from a cache that misses what was committed since.
_TABLE_EXISTS = Statement(
    "SELECT count(*) FROM pg_catalog.pg_class WHERE relname = 'hubline_schema' AND pg_table_is_visible(oid)", {}
)
_MIGRATION_LOCK = int.from_bytes(b"hubline")  # advisory locks are numbers; this one is per database


class PostgresDatabase:
    """Where connections to a PostgreSQL server come from; for the store, and for a sink in the same database."""

    dialect = DIALECT

    def __init__(self, conninfo: Secret, *, statement_seconds_max: int = STATEMENT_SECONDS_MAX) -> None:
        if (problem := _problem(conninfo)) is not None:
            raise ConfigError(problem)
        params = conninfo_to_dict(conninfo.reveal())
        self._conninfo = conninfo
        self._statement_seconds_max = statement_seconds_max
        self._password = Secret(str(params.get("password", "")))
        self._defaults = {name: value for name, value in _CONNECTION_DEFAULTS.items() if name not in params}
        place = ":".join(str(params[name]) for name in ("host", "port") if name in params)
        self.shown = self._without_secret(
            f"the PostgreSQL store {params.get('dbname', '')!r} at {place or 'localhost'}"
        )

    def connect(self) -> PostgresConnection:
        connection = self.look()
        try:
            migrate(connection, load_migrations("postgres"), table_exists=_TABLE_EXISTS)
        except BaseException:
            connection.close()
            raise
        return connection

    def look(self) -> PostgresConnection:
        """A connection for reading, whatever is there: it does not create the schema."""
        driver = psycopg.connect(
            make_conninfo(self._conninfo.reveal(), **self._defaults),
            autocommit=True,
            prepare_threshold=None,  # works behind any connection pooler, and plans with the values at hand
        )
        connection = PostgresConnection(driver)
        try:
            connection.run_script(_SESSION.format(seconds=self._statement_seconds_max))
        except BaseException:
            connection.close()
            raise
        return connection

    def explain(self, error: Exception) -> StoreError | None:
        if not isinstance(error, psycopg.Error):
            return None
        if error.sqlstate is None:
            return self._explain_lost(error)
        text = self._without_secret(error.diag.message_primary or str(error))
        if error.sqlstate.startswith(_TRY_AGAIN):
            return StoreUnavailable(sentences(f"{self.shown} cannot be used now: {text}", "try again later"))
        return StoreError(sentences(f"{self.shown} refused: {text}", _FIXES.get(error.sqlstate, _OTHERWISE)))

    def _explain_lost(self, error: psycopg.Error) -> StoreError:
        """Without a code: the connection could not be made, or broke."""
        text = self._without_secret(" ".join(str(error).split()))
        for words, fix in _REFUSALS.items():
            if words in text:
                return StoreError(sentences(f"{self.shown} refused the connection: {text}", fix))
        if isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)):
            fix = "check the address, and that the database is running"
            return StoreUnavailable(sentences(f"{self.shown} cannot be reached: {text.removesuffix(_QUESTION)}", fix))
        return StoreError(sentences(f"{self.shown} refused: {text}", _OTHERWISE))

    def _without_secret(self, text: str) -> str:
        return text.replace(self._password.reveal(), "***") if self._password else text


# A question of PostgreSQL's driver, to which the fix is the answer.
_QUESTION = " Is the server running on that host and accepting TCP/IP connections?"

# A refused connection comes without a code, only with the server's words.
_REFUSALS = {
    "password authentication failed": "check the user and the password",
    "no password supplied": "put the password into the address, or into a password file (~/.pgpass)",
    "no pg_hba.conf entry": "allow this user, database and machine in the server's pg_hba.conf",
    "does not exist": "create it, or correct the address",
    "permission denied for database": "grant the user CONNECT on it",
    "invalid sslmode": "correct sslmode in the address",
    "does not support SSL": "set sslmode=disable, or switch SSL on at the server",
}

# By SQLSTATE, whole or its beginning: connection lost; out of memory or connections; deadlock; lock not available;
# ended by an administrator, a crash or statement_timeout; a standby that has not taken over; idle in a transaction.
_TRY_AGAIN = ("08", "53000", "53200", "53300", "53400", "40", "55P03", "57", "25006", "25P03")

_FIXES = {
    "42501": "grant the user CREATE and USAGE on the schema, and all rights on the tables hubline_*",
    "42P01": "some of hubline's tables were dropped. Drop the rest (hubline_*), and hubline creates all of them again",
    "53100": "free some space on the server's disk",
}
_OTHERWISE = "correct what the database names"


def _problem(conninfo: Secret) -> str | None:
    """What is wrong with an address. Returned, not raised: what the driver says, and local variables, quote it."""
    try:
        host = str(conninfo_to_dict(conninfo.reveal()).get("host", ""))
    except psycopg.Error:
        return "the address of the PostgreSQL store cannot be read. Write postgresql://USER:PASSWORD@HOST/DATABASE."
    if "@" in host:
        return "the host of the PostgreSQL store contains '@'. If it belongs to the password, write it as %40."
    return None


class PostgresConnection:
    def __init__(self, driver: psycopg.Connection[Row]) -> None:
        self.driver = driver
        # A second handle on the same socket, for what other threads do, and for a look without reading.
        self._socket = socket.socket(fileno=os.dup(driver.fileno()))

    def read(self, statement: Statement) -> list[Row]:
        return _rows(self._execute(statement))

    def write(self, *statements: Statement) -> list[list[Row]]:
        if len(statements) == 1:
            return [self.read(statements[0])]  # a transaction by itself
        # One message, which the server begins with when all of it is there, as one transaction. Frozen between two
        # messages, this process would hold its locks: in a pipeline even without end, as no time limit applies there.
        cursor = psycopg.ClientCursor(self.driver)
        cursor.execute(";".join(cursor.mogrify(one.query.encode(), one.params) for one in statements).encode())
        results = [_rows(cursor)]
        while cursor.nextset():
            results.append(_rows(cursor))
        return results

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with self.driver.transaction():
            self.driver.execute("SELECT pg_advisory_xact_lock(%s)", [_MIGRATION_LOCK])
            yield

    def run_script(self, text: str) -> None:
        self.driver.execute(text.encode())

    def is_usable(self) -> bool:
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return not self.driver.closed
        except OSError:
            return False
        return False  # the server ended the connection, or is saying why it will

    def cut(self) -> None:
        with suppress(OSError):  # ended already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()
        self.driver.close()

    def _execute(self, statement: Statement) -> psycopg.Cursor[Row]:
        return self.driver.execute(statement.query.encode(), statement.params)


def _rows(cursor: psycopg.Cursor[Row]) -> list[Row]:
    return cursor.fetchall() if cursor.description else []
