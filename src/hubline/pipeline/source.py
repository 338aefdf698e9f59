"""The source of a stage: that of ``format("eventhubs")``, with a gate by which a run ends between two batches.

Spark cannot let a query finish its batch and stop: ``query.stop()`` cuts it short. So the runner closes the gate, and
the planning process, which Spark asks for the next batch whenever one is done, plans no more, and says that it is idle:

    1. runner            closes the gate
    2. batch             goes on to its end, and is committed by Spark
    3. planning process  is asked for the next one; checkpoints what is done; sees the gate; says "idle"
    4. runner            stops the query: there is nothing to cut short, and the partitions are released

Dying anywhere in between is dying at that moment without a gate. The gate is a folder of the driver's machine, which
both processes can see.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from hubline.spark.datasource import EventHubs
from hubline.spark.options import Options
from hubline.spark.planner import Planner
from hubline.spark.stream import StreamReader

GATE_OPTION: Final = "gate"

_READY: Final = "ready"
_CLOSED: Final = "closed"
_IDLE: Final = "idle"


class Gate:
    """The gate of one stage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def new(cls) -> Gate:
        return cls(Path(tempfile.mkdtemp(prefix="hubline-gate-")))

    def open(self) -> None:
        """For a query that is about to start."""
        for name in (_READY, _CLOSED, _IDLE):
            (self.folder / name).unlink(missing_ok=True)

    def say_ready(self) -> None:
        (self.folder / _READY).touch()

    @property
    def is_ready(self) -> bool:
        """Whether the planning process works."""
        return (self.folder / _READY).exists()

    def close(self) -> None:
        """Lets no further batch begin."""
        (self.folder / _CLOSED).touch()

    @property
    def is_closed(self) -> bool:
        return (self.folder / _CLOSED).exists()

    def say_idle(self) -> None:
        (self.folder / _IDLE).touch()

    @property
    def is_idle(self) -> bool:
        """Whether no batch runs, and none will."""
        return (self.folder / _IDLE).exists()

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class StageSource(EventHubs):
    """``format("hubline-stage")``: for pipelines alone."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = {name.lower(): value for name, value in options.items()}
        self.gate = Gate(Path(given.pop(GATE_OPTION)))
        super().__init__(given)

    @classmethod
    def name(cls) -> str:
        return "hubline-stage"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        return StageReader(self.parsed, schema, self.gate)


class StageReader(StreamReader):
    """Plans batches while the gate is open."""

    def __init__(self, options: Options, schema: StructType, gate: Gate) -> None:
        super().__init__(options, schema)
        self._gate = gate

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        # Asked in any case: that is how what is done gets checkpointed.
        end = super().latestOffset(start, limit)
        if not self._gate.is_closed:
            return end
        self._gate.say_idle()
        return start

    def _started(self) -> Planner:
        is_first = self._planner is None
        planner = super()._started()
        if is_first:
            self._gate.say_ready()
        return planner
