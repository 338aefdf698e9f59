"""Event Hubs for Spark 4, in pure Python: a source and a sink, with no jar.

    spark = hubline.spark.session("billing")  # or a session of your own
    events = spark.readStream.format("eventhubs").options(hub="local:./data/telemetry", startingPosition="earliest")

The package has to be installed on the driver and on every node: Spark's planning process finds it there, and nowhere
else.
"""

import importlib
from typing import TYPE_CHECKING

from hubline.spark.requirements import require_pyspark

require_pyspark()  # what is imported below fails in less clear words without Spark

if TYPE_CHECKING:
    from hubline.spark.functions import event_id
    from hubline.spark.json_parsing import parse_json
    from hubline.spark.sessions.session import session
    from hubline.spark.source.data_source import EventHubs
    from hubline.spark.sql_sink.sink import SqlBatchWriter

__all__ = ["EventHubs", "SqlBatchWriter", "event_id", "parse_json", "session"]

_MODULES = {
    "EventHubs": "hubline.spark.source.data_source",
    "SqlBatchWriter": "hubline.spark.sql_sink.sink",
    "event_id": "hubline.spark.functions",
    "parse_json": "hubline.spark.json_parsing",
    "session": "hubline.spark.sessions.session",
}

if not TYPE_CHECKING:  # to a type checker, it would make every misspelled name an object

    def __getattr__(name: str) -> object:
        """Loads a name when it is first asked for: tasks need few of them, and start sooner."""
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(_MODULES[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
