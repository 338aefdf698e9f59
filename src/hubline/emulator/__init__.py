"""Hubs served over AMQP 1.0, so that the official Event Hubs clients work with them unchanged."""

from hubline.emulator.authorization import SharedKey
from hubline.emulator.hubs import Hubs
from hubline.emulator.server import Endpoint, is_loopback

__all__ = ["Endpoint", "Hubs", "SharedKey", "is_loopback"]
