"""Hubs served over AMQP 1.0, so that the official Event Hubs clients work with them unchanged."""

from hubline.amqp.endpoint.hubs import Hubs
from hubline.amqp.endpoint.server import Endpoint, is_loopback
from hubline.amqp.endpoint.tokens import SharedKey

__all__ = ["Endpoint", "Hubs", "SharedKey", "is_loopback"]
