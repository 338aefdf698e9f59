"""The local hub, ``local:PATH/NAME``: a folder, safe for many processes, that keeps what it acknowledged."""

from hubline.hubs.local.admin import create_hub, delete_hub, grow_hub, list_hubs
from hubline.hubs.local.hub import LocalHub
from hubline.hubs.local.hub_folder import PARTITIONS_MAX, Retention

__all__ = ["PARTITIONS_MAX", "LocalHub", "Retention", "create_hub", "delete_hub", "grow_hub", "list_hubs"]
