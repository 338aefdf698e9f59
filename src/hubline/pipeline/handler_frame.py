"""The frame of a stage whose function is called in tasks: its columns, and the step that calls the function."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from hubline.errors import ConfigError
from hubline.pipeline.datasets import TableDataset
from hubline.pipeline.definition import StageKind
from hubline.pipeline.event_columns import UNUSED
from hubline.pipeline.handlers import TRACED, BatchHandler, EventHandler
from hubline.pipeline.loading import MODULE_PREFIX
from hubline.pipeline.plan import PlannedStage
from hubline.spark.compatibility import arrow_schema
from hubline.spark.json_parsing import ERROR_COLUMN


def handled(planned: PlannedStage, events: DataFrame) -> DataFrame:
    """The rows that the function of a batch stage or an event stage makes of the events."""
    stage = planned.stage
    own = _columns(stage.schema or "")
    _require_binary_body(own)
    _require_spelt(own, events.columns)
    _require_own(planned, own.names)
    output = _output(own, events.schema, has_error=stage.kind is StageKind.EVENTS)
    own_arrow, output_arrow = arrow_schema(own), arrow_schema(output)
    kind = EventHandler if stage.kind is StageKind.EVENTS else BatchHandler
    _pickle_by_value(stage.function)
    return events.mapInArrow(kind(stage.name, stage.function, own_arrow, output_arrow), output)


def _columns(schema: str) -> StructType:
    try:
        own = StructType.fromDDL(schema)
    except PySparkException:
        own = None
    if isinstance(own, StructType):
        return own
    raise ConfigError(f"schema={schema!r} does not name columns. Write schema='id long, celsius double', for example.")


def _require_binary_body(own: StructType) -> None:
    if any(field.name == "body" and not isinstance(field.dataType, BinaryType) for field in own):
        raise ConfigError("the body of an event is bytes. Write 'body binary' in schema, and give text.encode().")


def _require_own(planned: PlannedStage, names: Sequence[str]) -> None:
    """By these columns of its event a row is known, and how far its partition is: what a person makes is neither."""
    taken = {"partition", "sequenceNumber", "offset"}
    if planned.stage.kind is StageKind.BATCHES and set(TRACED) <= set(names):
        taken = {"offset"}  # rows that are not one for each event have to say of which they are
    if isinstance(planned.sink, TableDataset) and planned.drop_duplicates != "off":
        taken.add("properties")
    if wrong := [name for name in names if name in taken]:
        raise ConfigError(f"schema names {wrong[0]!r}, by which a row's event is known. Give the column another name.")


def _require_spelt(own: StructType, names: Sequence[str]) -> None:
    """Columns that differ in case alone are one to Spark, and it would not know which is meant."""
    spelt = {name.lower(): name for name in [*names, ERROR_COLUMN]}
    for name in own.names:
        if spelt.setdefault(name.lower(), name) != name:
            other = spelt[name.lower()]
            raise ConfigError(
                f"schema names {name!r}, but events have {other!r}. Spell it in the same way, or give it another name."
            )


def _output(own: StructType, events: StructType, *, has_error: bool) -> StructType:
    """The function's columns, those of the events that it does not give itself, and why an event failed.

    A function over events can raise of each; one over tables gives an error itself, or there is none.
    """
    names = set(own.names)
    kept = [field for field in events if field.name not in names and field.name not in UNUSED]
    error = [StructField(ERROR_COLUMN, StringType())] if has_error and ERROR_COLUMN not in names else []
    return StructType([*own, *kept, *error])


def _pickle_by_value(function: Callable[..., Any]) -> None:
    """Tasks cannot import the pipeline's file: what they need of it goes with them."""
    from pyspark import cloudpickle

    module = sys.modules.get(getattr(function, "__module__", ""))
    if module is not None and module.__name__.startswith(MODULE_PREFIX):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def pickle_by_value(folder: Path) -> None:
    """Has the modules of a folder that are imported by now go with the functions that use them."""
    from pyspark import cloudpickle

    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file is not None and Path(file).parent == folder:
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
