"""SQLite files, shared by the processes of one machine: connections, dialect and error texts."""

from __future__ import annotations

import functools
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from hubline.errors import StoreError, StoreUnavailable
from hubline.sql.dialect import Dialect, Row, Statement
from hubline.sql.migrations import load_migrations, migrate
from hubline.sql.queries import queries_for
from hubline.text import sentences

LOCK_SECONDS_MAX = 5.0
"""Writers take turns of a few milliseconds each: a writer that holds the file for longer hangs."""

SQLITE_VERSION_MIN = (3, 35, 0)  # the first with RETURNING

_ROWS = """(
    SELECT json_extract(value, '$[0]') AS new_partition, json_extract(value, '$[1]') AS new_owner,
        json_extract(value, '$[2]') AS new_epoch, json_extract(value, '$[3]') AS known_version
    FROM json_each(:rows)
)"""
NOW = "CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)"  # milliseconds since 1970

DIALECT = Dialect(
    parameter=r":\1",
    now=NOW,
    now_micros=f"{NOW} * 1000",
    epoch_seconds=f"{NOW} / 1000.0",
    age=lambda column: f"CASE typeof({column}) WHEN 'integer' THEN max(0, {NOW} - {column}) / 1000.0 END",
    micros=lambda column: column,
    failed_micros="failed_at * 1000",
    failed_time=lambda micros: f"{micros} / 1000.0",
    contains_text=lambda column, part: f"instr(lower({column}), lower({part})) > 0",
    largest="max",
    texts="SELECT value FROM json_each(:texts)",
    rows=_ROWS,
    # A transaction here locks the whole database, and may pause for as long as it likes.
    locked_rows=_ROWS,
    locked="",
    locked_for_removal="",
    skip_locked="",
    try_lock="SELECT :partition_lock IS NOT NULL",
    allow_long_pauses="",
)
QUERIES = queries_for(DIALECT)

_TABLE_EXISTS = Statement("SELECT count(*) FROM sqlite_schema WHERE name = 'hubline_schema'", {})


class SqliteDatabase:
    """Where connections to an SQLite file come from; for the store, and for a sink in the same file."""

    dialect = DIALECT

    def __init__(self, path: Path) -> None:
        self._path = path
        self.shown = f"the SQLite store {path}"

    def connect(self) -> SqliteConnection:
        if sqlite3.sqlite_version_info < SQLITE_VERSION_MIN:
            raise StoreError(
                f"{self.shown} needs SQLite {'.'.join(map(str, SQLITE_VERSION_MIN))} or later, and this Python has "
                f"{sqlite3.sqlite_version}. Use another build of Python, or a PostgreSQL store."
            )
        connection = SqliteConnection(self._path)
        try:
            connection.prepare()
            migrate(connection, load_migrations("sqlite"), table_exists=_TABLE_EXISTS)
        except BaseException:
            connection.close()
            raise
        return connection

    def look(self) -> SqliteConnection:
        """A connection that reads alone, whatever is there: it creates neither the file nor its schema."""
        return SqliteConnection(self._path, is_read_only=True)

    def explain(self, error: Exception) -> StoreError | None:
        if not isinstance(error, sqlite3.Error):
            return None
        code = _kind(error)
        if code in _TRY_AGAIN:
            return StoreUnavailable(sentences(f"{self.shown} {_TRY_AGAIN[code]} ({error})", "try again"))
        if code == sqlite3.SQLITE_CANTOPEN:
            return StoreError(f"{self.shown} cannot be opened: {self._why_not_opened()}")
        problem, fix = _HOPELESS.get(code, ("refused", "correct what it names"))
        return StoreError(sentences(f"{self.shown} {problem} ({error})", fix))

    def _why_not_opened(self) -> str:
        if not self._path.parent.is_dir():
            return f"there is no folder {self._path.parent}. Create it, or correct the path."
        if self._path.is_dir():
            return "it is a folder. Give the path of a file."
        return "it may not be read or written. Check the rights of the file and of its folder."


_TRY_AGAIN = {
    sqlite3.SQLITE_BUSY: f"was locked by another process for {LOCK_SECONDS_MAX:g} s",
    sqlite3.SQLITE_LOCKED: "was locked by another call",
    sqlite3.SQLITE_INTERRUPT: "took too long and was interrupted",
    sqlite3.SQLITE_NOMEM: "found no memory",
}
_HOPELESS = {
    sqlite3.SQLITE_FULL: ("cannot grow", "free some space on its disk"),
    sqlite3.SQLITE_IOERR: ("cannot be read or written", "check its disk, the space left there, and limits and quotas"),
    sqlite3.SQLITE_READONLY: ("may not be written", "allow writing the file and its folder"),
    sqlite3.SQLITE_PERM: ("may not be used", "allow reading and writing the file and its folder"),
    sqlite3.SQLITE_NOTADB: ("is another kind of file", "correct the path"),
    sqlite3.SQLITE_CORRUPT: ("is damaged", "restore it, or move it away to start with an empty store"),
}


class SqliteConnection:
    def __init__(self, path: Path, *, is_read_only: bool = False) -> None:
        self._path = path
        name = f"file:{quote(str(path))}?mode=ro" if is_read_only else path
        # Transactions are begun and ended here by hand. Threads take turns with it.
        self.driver = sqlite3.connect(
            name, uri=is_read_only, timeout=LOCK_SECONDS_MAX, isolation_level=None, check_same_thread=False
        )
        # Bytes that are not text must fail one record, not the whole list.
        self.driver.text_factory = functools.partial(str, encoding="utf-8", errors="surrogateescape")
        self._file = _identity(path)

    def prepare(self) -> None:
        self._set_write_ahead()  # readers and the writer do not wait for each other
        self.driver.execute("PRAGMA synchronous = FULL")  # what was answered survives a power cut

    def _set_write_ahead(self) -> None:
        deadline = time.monotonic() + LOCK_SECONDS_MAX
        while True:
            try:
                self.driver.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                # Of several that change a new file at once, SQLite refuses all but one without waiting.
                if _kind(error) != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                    raise
                time.sleep(0.005)
            else:
                return

    def read(self, statement: Statement) -> list[Row]:
        return self.driver.execute(statement.query, statement.params).fetchall()

    def write(self, *statements: Statement) -> list[list[Row]]:
        with self.exclusive():
            return [self.read(statement) for statement in statements]

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        # IMMEDIATE: a transaction that starts by reading fails at its first write if another one wrote meanwhile.
        self.driver.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.driver.execute("COMMIT")
        except BaseException:
            if self.driver.in_transaction:  # SQLite itself rolls back on some errors
                self.driver.execute("ROLLBACK")
            raise

    def run_script(self, text: str) -> None:
        # executescript() would end the transaction first.
        statement = ""
        for piece in text.split(";"):
            statement += f"{piece};"
            if sqlite3.complete_statement(statement):  # not so in a comment, a string or a trigger
                self.driver.execute(statement)
                statement = ""

    def is_usable(self) -> bool:
        # Where somebody deleted or replaced the file, this connection writes to one that nobody else sees.
        return _identity(self._path) == self._file

    def cut(self) -> None:
        self.driver.interrupt()

    def close(self) -> None:
        self.driver.close()


def _kind(error: sqlite3.Error) -> int:
    """The lowest byte of SQLite's code is the kind of error, the others tell it in more detail."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
