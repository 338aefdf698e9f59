"""Event Hubs over hubline's own AMQP keeps the contract of every hub."""

from __future__ import annotations

import pytest

from hubline.addresses.hub_address import EventHubsAddress
from hubline.emulator import client_session as peers
from hubline.hubs.eventhubs import EventHubsHub
from hubline.ports import Hub
from hubline.testing.contracts.hub import HubContract
from tests.hubs.eventhubs.support import EndpointHubFactory


class TestEventHubsHubByColumns(EndpointHubFactory, HubContract):
    """As hubline's own endpoint sends events to it."""

    def client(self, at: EventHubsAddress) -> Hub:
        return EventHubsHub(at)


class TestEventHubsHub(TestEventHubsHubByColumns):
    """Message by message, as the service sends them."""

    @pytest.fixture(autouse=True)
    def _without_columns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(peers, "OFFERS_COLUMNS", False)
