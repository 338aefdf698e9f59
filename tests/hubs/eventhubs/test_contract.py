"""Event Hubs over hubline's own AMQP keeps the contract of every hub."""

from __future__ import annotations

from hubline.addresses.hub_address import EventHubsAddress
from hubline.hubs.eventhubs import EventHubsHub
from hubline.ports import Hub
from hubline.testing.contracts.hub import HubContract
from tests.hubs.eventhubs.support import EndpointHubFactory


class TestEventHubsHub(EndpointHubFactory, HubContract):
    def client(self, at: EventHubsAddress) -> Hub:
        return EventHubsHub(at)
