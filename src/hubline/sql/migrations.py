"""Numbered migrations, safe to run from many processes at once.

``migrations/DIALECT/NNN_name.sql`` are applied in order, each in a transaction of its own that only one process can
be in. Dying anywhere leaves whole migrations only, and the next process continues from there.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources

from hubline.errors import StoreIncompatible
from hubline.sql.dialect import SchemaConnection, Statement

_READ_VERSION = Statement("SELECT max(version) FROM hubline_schema", {})
_RECORD_VERSION = "INSERT INTO hubline_schema (version, name) VALUES ({version}, '{name}');"


@dataclass(frozen=True, slots=True)
class Migration:
    version: int
    name: str
    script: str


@functools.cache
def load_migrations(dialect: str) -> tuple[Migration, ...]:
    """The migrations of a dialect in order: 1, 2, 3 and so on."""
    folder = resources.files("hubline.sql") / "migrations" / dialect
    found = []
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        version, _, name = file.name.removesuffix(".sql").partition("_")
        found.append(Migration(int(version), name, file.read_text(encoding="utf-8")))
    return tuple(found)


def migrate(connection: SchemaConnection, migrations: tuple[Migration, ...], *, table_exists: Statement) -> None:
    """Brings the schema up to date. Raises StoreIncompatible where it is newer than these migrations."""
    version = _version(connection, table_exists)
    for migration in migrations[version:]:
        with connection.exclusive():
            # Another process may have been faster.
            if _version(connection, table_exists) < migration.version:
                connection.run_script(migration.script)
                connection.run_script(_RECORD_VERSION.format(version=migration.version, name=migration.name))
    newest = _version(connection, table_exists) if version < len(migrations) else version
    if newest > len(migrations):
        raise StoreIncompatible(
            f"the store's schema has version {newest}, but this hubline knows only versions up to "
            f"{len(migrations)}: a newer hubline uses this store. Install that version here, too."
        )


def _version(connection: SchemaConnection, table_exists: Statement) -> int:
    if connection.read(table_exists) == [(0,)]:
        return 0
    ((version,),) = connection.read(_READ_VERSION)
    return version if isinstance(version, int) else 0
