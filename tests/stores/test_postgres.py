import pytest

from hubline.config import Secret
from hubline.stores.sql.postgres import PostgresStore
from hubline.testing.contracts.store import CheckpointStoreContract


class TestPostgresStore(CheckpointStoreContract):
    @pytest.fixture(autouse=True)
    def _database(self, postgres_database: Secret) -> None:
        self.conninfo = postgres_database

    def open_store(self) -> PostgresStore:
        return PostgresStore(self.conninfo)
