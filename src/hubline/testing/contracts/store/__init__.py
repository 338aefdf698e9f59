"""What every `CheckpointStore` must do, as pytest tests over a factory.

    class TestMyStore(CheckpointStoreContract):
        @pytest.fixture(autouse=True)
        def _database(self, tmp_path):
            self.path = tmp_path / "store"

        def open_store(self):
            return MyStore(self.path)

The suite needs pytest and nothing else. It assumes no clock: give ``pass_time`` a way to move yours.

For a store of four methods, made to serve by `hubline.checkpoint_stores.adapt`, one line is enough:

    TestMyStore = four_method_contract(MyStore)
"""

from hubline.testing.contracts.store.checkpoints import CheckpointContract
from hubline.testing.contracts.store.four_methods import FourMethodStoreContract, four_method_contract
from hubline.testing.contracts.store.handover import HandoverContract
from hubline.testing.contracts.store.membership import MembershipContract
from hubline.testing.contracts.store.ownership import OwnershipContract
from hubline.testing.contracts.store.races import RaceContract
from hubline.testing.contracts.store.support import (
    GROUP,
    KEY,
    StoreFactory,
    at_once,
    claim,
    listed_ownership,
    untimed,
)
from hubline.testing.contracts.store.whole import CheckpointStoreContract

__all__ = [
    "GROUP",
    "KEY",
    "CheckpointContract",
    "CheckpointStoreContract",
    "FourMethodStoreContract",
    "HandoverContract",
    "MembershipContract",
    "OwnershipContract",
    "RaceContract",
    "StoreFactory",
    "at_once",
    "claim",
    "four_method_contract",
    "listed_ownership",
    "untimed",
]
