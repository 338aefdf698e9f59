"""Azure Event Hubs, and all that speaks its protocol: the hub adapter over hubline's own AMQP."""

from hubline.hubs.eventhubs.hub import EventHubsHub

__all__ = ["EventHubsHub"]
