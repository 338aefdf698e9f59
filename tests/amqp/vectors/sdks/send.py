"""Sends 42 shapes of events by azure-eventhub. Its companions do the same by the SDKs of other languages.

`sdk_messages.json` has what came of it: `SentDecoder.decode` of an endpoint wrote down the messages that it was given,
each up to its body. The program in Rust prints its messages itself, since that SDK connects by TLS alone.
"""

from __future__ import annotations

import sys
import uuid

from azure.eventhub import EventData, EventHubProducerClient

WORDS = ["type", "source", "unit", "line", "site", "count", "celsius", "ok", "trace", "at"]


def shape(number: int) -> EventData:
    event = EventData(b"x" * 200)
    if number % 3 == 0:
        event.content_type = "application/json"
    if number % 4 == 0:
        event.message_id = f"m-{number}"
    if number % 6 == 1:
        event.correlation_id = f"c-{number}"
    properties: dict[str | bytes, object] = {}
    for index in range(1 + number % 8):
        name = WORDS[(number + 3 * index) % 10] + (str(number) if number > 20 else "")
        values: list[object] = [f"text {number * index}", number * 1000, 21.5 + number / 8, index % 2 == 0]
        values += [10**9, 1763600000.123, uuid.UUID(int=number), b"raw bytes", "plain"]
        properties[name] = values[(number + 2 * index) % 9]
    event.properties = properties
    return event


def main(connection_string: str) -> None:
    producer = EventHubProducerClient.from_connection_string(connection_string)
    for number in range(42):
        key = f"key-{number}" if number % 5 == 0 else None
        batch = producer.create_batch(partition_key=key, partition_id=None if key else "0")
        batch.add(shape(number))
        producer.send_batch(batch)
    producer.close()


if __name__ == "__main__":
    main(sys.argv[1])
