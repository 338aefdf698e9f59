"""Takes readings of devices from a hub into a table. Events that are not readings become dead letters."""

import json

import hubline

DATABASE = "sqlite:///data/readings.db"

processor = hubline.Processor(
    "local:./data/events",
    DATABASE,
    consumer_group="project_name",
    starting_position="earliest",
    sink=hubline.SqlSink(DATABASE, table="readings", create_table=True),
)


@processor.on_event
def store(event: hubline.Event) -> dict[str, object]:
    """Return the row of one event."""
    reading = json.loads(event.body)
    celsius = float(reading["celsius"])
    row = {"device": str(reading["device"]), "celsius": celsius, "fahrenheit": round(celsius * 1.8 + 32, 1)}
    print(row)
    return row


if __name__ == "__main__":
    processor.run()  # until Ctrl-C
