"""The names that Event Hubs gives to things on the wire, for its clients and for the emulator."""

from __future__ import annotations

from typing import Final

# Addresses of links on which requests are answered.
CBS: Final = "$cbs"
MANAGEMENT: Final = "$management"

# Types of tokens that are put to $cbs.
SAS_TYPE: Final = "servicebus.windows.net:sastoken"
JWT_TYPE: Final = "jwt"

# Types of what $management describes.
HUB_TYPE: Final = "com.microsoft:eventhub"
PARTITION_TYPE: Final = "com.microsoft:partition"

# A receiver's link: the filter that says where it starts, its properties, and what it asks for.
SELECTOR: Final = "apache.org:selector-filter:string"
EPOCH: Final = "com.microsoft:epoch"
RECEIVER_NAME: Final = "com.microsoft:receiver-name"
GEOREPLICATION: Final = "com.microsoft:georeplication"
RUNTIME_METRICS: Final = "com.microsoft:enable-receiver-runtime-metric"

# Annotations of events.
SEQUENCE_NUMBER: Final = "x-opt-sequence-number"
OFFSET: Final = "x-opt-offset"
ENQUEUED_TIME: Final = "x-opt-enqueued-time"
PARTITION_KEY: Final = "x-opt-partition-key"

# Annotations of a delivery, where the receiver asked for RUNTIME_METRICS.
LAST_SEQUENCE: Final = "last_enqueued_sequence_number"
LAST_OFFSET: Final = "last_enqueued_offset"
LAST_ENQUEUED: Final = "last_enqueued_time_utc"
RETRIEVED: Final = "runtime_info_retrieval_time_utc"
