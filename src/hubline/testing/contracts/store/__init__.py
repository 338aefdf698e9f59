"""What every :class:`~hubline.ports.CheckpointStore` must do, as pytest tests over a factory.

    class TestMyStore(CheckpointStoreContract):
        @pytest.fixture(autouse=True)
        def _database(self, tmp_path):
            self.path = tmp_path / "store"

        def open_store(self):
            return MyStore(self.path)

The suite needs pytest and nothing else. It assumes no clock: give ``pass_time`` a way to move yours.
"""

from hubline.testing.contracts.store.checkpoints import CheckpointContract
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

__all__ = [
    "GROUP",
    "KEY",
    "CheckpointContract",
    "CheckpointStoreContract",
    "HandoverContract",
    "MembershipContract",
    "OwnershipContract",
    "RaceContract",
    "StoreFactory",
    "at_once",
    "claim",
    "listed_ownership",
    "untimed",
]


class CheckpointStoreContract(
    OwnershipContract, MembershipContract, HandoverContract, CheckpointContract, RaceContract
):
    """The whole contract. Subclass it under a name that starts with ``Test``."""
