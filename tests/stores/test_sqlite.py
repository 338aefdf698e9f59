from pathlib import Path

import pytest

from hubline.stores.sql.sqlite import SqliteStore
from hubline.testing.contracts.store import CheckpointStoreContract


class TestSqliteStore(CheckpointStoreContract):
    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        self.path = tmp_path / "store.db"

    def open_store(self) -> SqliteStore:
        return SqliteStore(self.path)
