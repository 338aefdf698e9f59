"""Whether columns of a query's rows are still those of the events that the rows were made of.

By these a sink knows which events a row is of, how far a partition has come, and what came before. One of the same name
that the query made itself says something else: rows would be taken for another event's, and lost with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame

from hubline.spark._jvm.lineage import is_batch_itself, overwritten_in_batch


class BatchLineage:
    """Which of some columns of a query's batches are not those of its events: looked up once for a run of the query.

    A frame that is the batch as Spark hands it over comes of the query's own plan, which stays the same for all
    batches of a run. A frame that a ``foreachBatch`` function made of the batch can have another plan each time, and
    is looked at each time.
    """

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._known: tuple[tuple[str, ...], set[str]] | None = None

    def overwritten_in(self, frame: DataFrame, run_id: str) -> set[str]:
        if not is_batch_itself(frame):
            return overwritten_in_batch(frame, self._names)
        key = run_id, *frame.columns
        if self._known is None or self._known[0] != key:
            self._known = key, overwritten_in_batch(frame, self._names)
        return self._known[1]
