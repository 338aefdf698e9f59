"""What every `Hub` must do, as pytest tests over a factory.

    class TestMyHub(HubContract):
        @pytest.fixture(autouse=True)
        def _place(self, tmp_path):
            self.place = tmp_path

        async def create_hub(self, partition_count):
            return await MyHub.create(self.place, secrets.token_hex(4), partition_count)

The suite needs pytest and nothing else. It waits for conditions, up to a generous bound, and never for a time to pass.
"""

from hubline.testing.contracts.hub.epochs import EpochContract
from hubline.testing.contracts.hub.events import DescriptionContract, EventContract
from hubline.testing.contracts.hub.positions import PositionContract
from hubline.testing.contracts.hub.receivers import ReceiverContract
from hubline.testing.contracts.hub.senders import SenderContract
from hubline.testing.contracts.hub.support import ARRIVAL_SECONDS, HubFactory, bodies, opened, send

__all__ = [
    "ARRIVAL_SECONDS",
    "DescriptionContract",
    "EpochContract",
    "EventContract",
    "HubContract",
    "HubFactory",
    "PositionContract",
    "ReceiverContract",
    "SenderContract",
    "bodies",
    "opened",
    "send",
]


class HubContract(
    DescriptionContract, EventContract, ReceiverContract, PositionContract, SenderContract, EpochContract
):
    """The whole contract. Subclass it under a name that starts with ``Test``."""
