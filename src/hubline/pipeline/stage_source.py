"""The source of a stage: that of `format("eventhubs")`, with a gate by which a run ends between two batches."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from hubline.coordination.snapshot import Wait
from hubline.pipeline.stop_gate import Gate
from hubline.spark.compatibility import ReadLimit, for_this_spark
from hubline.spark.options import Options
from hubline.spark.source.data_source import EventHubs
from hubline.spark.source.offsets import StreamOffset
from hubline.spark.source.query_share import QueryShare
from hubline.spark.source.stream_planner import StreamPlanner
from hubline.spark.source.stream_reader import StreamReader

GATE_OPTION: Final = "gate"
SHARE_OPTION: Final = "share"
ENDS_OPTION: Final = "ends"
ONCE_OPTION: Final = "once"
AVAILABLE_NOW_OPTION: Final = "availableNow"
"""Whether that is the query's trigger, of which Spark 4.0 and 4.1 do not notify the source."""


class StageSource(EventHubs):
    """``format("hubline-stage")``: for pipelines alone."""

    def __init__(self, options: Mapping[str, str]) -> None:
        given = {name.lower(): value for name, value in options.items()}
        self.gate = Gate(Path(given.pop(GATE_OPTION)))
        share = QueryShare.parse(given.pop(SHARE_OPTION))
        ends = json.loads(given.pop(ENDS_OPTION, "null"))
        self.is_once = given.pop(ONCE_OPTION) == str(True)
        self.is_available_now = given.pop(AVAILABLE_NOW_OPTION.lower(), str(False)) == str(True)
        super().__init__(given)
        self.parsed = replace(self.parsed, share=share, ends=ends)

    @classmethod
    def name(cls) -> str:
        return "hubline-stage"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        reader = StageReader(self.parsed, schema, self.gate, is_once=self.is_once)
        return for_this_spark(
            reader, limits_first_batch=not self.is_available_now, is_ended_by_batches=self.is_available_now
        )


class StageReader(StreamReader):
    """Plans batches while the gate is open; with ``is_once``, of what the hub held at the start."""

    def __init__(self, options: Options, schema: StructType, gate: Gate, *, is_once: bool) -> None:
        super().__init__(options, schema)
        self._gate = gate
        self._is_once = is_once
        self._offered: dict[str, Any] | None = None
        self._planned: dict[str, Any] | None = None

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        # Asked in any case: that is how what is done gets checkpointed.
        end = super().latestOffset(start, limit)
        self._planned = None
        if self._gate.is_closed:
            self._gate.mark_idle()
            return start
        if self._is_once:
            (self._gate.mark_idle if end is start else self._gate.mark_busy)()
        self._offered = end
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        # One that an earlier run began may begin again behind a closed gate, and nobody waits for its end.
        is_waited_for = end == self._offered or not self._gate.is_closed
        self._planned = end if is_waited_for else None
        return super().partitions(start, end)

    def _waits(self, wait: Wait) -> None:
        self._gate.leave_note(str(wait))

    def _end(self, planner: StreamPlanner) -> None:
        try:
            if self._planned is not None and self._gate.is_done:
                self._run(planner.done(StreamOffset.from_json(self._planned)))
        finally:
            super()._end(planner)
            self._gate.leave()

    def _started(self) -> StreamPlanner:
        is_first = self._planner is None
        planner = super()._started()
        if is_first:
            if self._is_once:
                self._run(planner.pin())
            self._gate.enter()
        return planner
