"""All parts of the contract together."""

from __future__ import annotations

from hubline.testing.contracts.store.checkpoints import CheckpointContract
from hubline.testing.contracts.store.handover import HandoverContract
from hubline.testing.contracts.store.membership import MembershipContract
from hubline.testing.contracts.store.ownership import OwnershipContract
from hubline.testing.contracts.store.races import RaceContract


class CheckpointStoreContract(
    OwnershipContract, MembershipContract, HandoverContract, CheckpointContract, RaceContract
):
    """The whole contract. Subclass it under a name that starts with ``Test``."""
