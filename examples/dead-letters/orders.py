"""Orders into a table. An order that cannot be read becomes a dead letter: `python orders.py`."""

import json
import os

from amounts import cents

import hubline

HUB = os.environ.get("HUB", "local:./data/orders")
DATABASE = os.environ.get("DATABASE", "sqlite:///orders.db")

processor = hubline.Processor(
    HUB,
    DATABASE,
    consumer_group="orders",
    starting_position="earliest",
    sink=hubline.SqlSink(DATABASE, table="orders", create_table=True),
    options=hubline.ProcessorOptions(handler_retry=hubline.RetryPolicy(max_attempts=1)),  # the same text fails again
)


@processor.on_event
def store(event: hubline.Event) -> dict[str, object]:
    order = json.loads(event.body)
    return {"id": order["id"], "cents": cents(order["amount"])}


if __name__ == "__main__":
    processor.run()
