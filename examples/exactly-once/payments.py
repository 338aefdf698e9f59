"""Payments into a table, each exactly once: `python payments.py`."""

import json
import os
import time

import hubline

HUB = os.environ.get("HUB", "local:./data/payments")
DATABASE = os.environ.get("DATABASE", "sqlite:///payments.db")

processor = hubline.Processor(
    HUB,
    DATABASE,  # the store: which instance owns which partition
    consumer_group="payments",
    starting_position="earliest",
    owner_id=os.environ.get("INSTANCE", "payments-1"),  # takes its partitions back at once when it is restarted
    sink=hubline.SqlSink(DATABASE, table="payments", create_table=True),
    options=hubline.ProcessorOptions(max_batch_size=100),
)


@processor.on_event
def store(event: hubline.Event) -> dict[str, object]:
    """The row of a payment. hubline commits the rows of a batch together with the checkpoint."""
    payment = json.loads(event.body)
    time.sleep(0.002)  # as if it asked a service, so that there is time to kill it
    return {"account": payment["account"], "cents": payment["cents"]}


if __name__ == "__main__":
    processor.run()
