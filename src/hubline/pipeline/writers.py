"""Where a stage's rows go: the writer of its query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users have it
from pyspark.sql.streaming.readwriter import DataStreamWriter

from hubline.adapters import open_hub
from hubline.addresses.hub_address import parse_hub
from hubline.model.dead_letters import DeadLetter, Stage
from hubline.model.keys import GroupKey
from hubline.pipeline.datasets import FormatDataset, HubDataset, TableDataset
from hubline.pipeline.event_columns import ADDED, published
from hubline.pipeline.plan import PlannedStage
from hubline.secrets import Secret
from hubline.sinks.dead_letter_hub import DeadLetterHub
from hubline.spark.arrow_columns import plain
from hubline.spark.dead_letter_rows import DEAD_LETTER_COLUMNS, dead_letter_of, dead_letter_rows
from hubline.spark.json_parsing import ERROR_COLUMN
from hubline.spark.sessions.redaction import hide_options
from hubline.spark.sql_sink.batch_target import Written
from hubline.spark.sql_sink.sink import CommitBy, SqlBatchWriter
from hubline.spark.tasks.event_loop import run, shared_hub

TRACED: Final = ("partition", "sequenceNumber", "properties")
"""The columns that report of which event a row was made, and whether that came before."""

Report = Callable[[Written], None]

_COUNT_DDL: Final = "dead_letters long"
_COUNT: Final = pa.schema([pa.field("dead_letters", pa.int64())])


def writer(stage: PlannedStage, frame: DataFrame, folder: str, report: Report) -> DataStreamWriter:
    """Writes the frame to the stage's dataset, with this checkpoint location; not yet started, and without a trigger.

    `report` is called with what each batch wrote, where that is known: in the driver, and over Spark Connect in a
    process of the server's.
    """
    if isinstance(stage.sink, TableDataset):
        is_traced = {"partition", "sequenceNumber"} <= set(frame.columns)
        sink = table_sink(stage, stage.sink, frame.columns, "partition" if is_traced else "batch", report)
        # Added columns that the table has when the batch comes: computing the others for no use would take time.
        writing = sink.write_stream(frame, checkpoint_location=folder, optional=ADDED)
        return writing.outputMode(stage.options.output_mode)
    writing = frame.writeStream.outputMode(stage.options.output_mode).option("checkpointLocation", folder)
    match stage.sink:
        case _ if stage.dead_letters is not None:
            return writing.foreachBatch(_SplitWriter.of(stage, stage.dead_letters, report))
        case HubDataset() as dataset if stage.options.output_mode == "append":
            return writing.format("eventhubs").option("hub", dataset.option)
        case HubDataset() as dataset:
            return writing.foreachBatch(_HubWriter(dataset.option))
        case FormatDataset() as dataset:
            path = {} if dataset.path is None else {"path": dataset.path}
            return writing.format(dataset.format).options(**options_of(dataset, frame.sparkSession), **path)


def options_of(dataset: FormatDataset, spark: SparkSession) -> dict[str, str]:
    """The dataset's options as Spark takes them. Has Spark hide those that are secrets first."""
    hide_options(spark, [name for name, value in dataset.options.items() if isinstance(value, Secret)])
    return {name: value.reveal() if isinstance(value, Secret) else value for name, value in dataset.options.items()}


def table_sink(
    stage: PlannedStage,
    dataset: TableDataset,
    columns: Sequence[str],
    commit_by: CommitBy,
    report: Report = lambda _: None,
) -> SqlBatchWriter:
    """The sink of a table, for rows of these columns.

    Duplicates are left out where a row is known to come from its event; a row that is made of many is not.
    """
    is_known = set(TRACED) <= set(columns) and stage.drop_duplicates != "off"
    return SqlBatchWriter(
        dataset.text,
        table=dataset.table,
        upsert_key=dataset.upsert_key,
        create_table=dataset.create_if_missing,
        drop_duplicates=stage.drop_duplicates if is_known and stage.drop_duplicates != "auto" else "off",
        commit_by=commit_by,
        on_commit=lambda _, written: report(written),
    )


@dataclass(frozen=True, slots=True)
class _HubWriter:
    """Appends each batch to the hub: Spark lets sinks that are written in Python do nothing but append."""

    hub: str

    def __call__(self, frame: DataFrame, _batch_id: int) -> None:
        frame.write.format("eventhubs").option("hub", self.hub).mode("append").save()


@dataclass(frozen=True, slots=True)
class _SplitWriter:
    """Rows to the dataset, and those with an ``_error`` to the hub of dead letters.

    Dead letters go first. Dying in between, or after both, the batch is replayed: its dead letters are there twice,
    with the same origin, and its rows with the same ids.
    """

    sink: str | FormatDataset
    """A hub's address, or where it stands: `env:NAME`; or a format."""
    has_ids: bool
    dead_letters: _DeadLetterWriter
    report: Report

    @classmethod
    def of(cls, stage: PlannedStage, dead_letters: HubDataset, report: Report) -> _SplitWriter:
        assert not isinstance(stage.sink, TableDataset)  # noqa: S101 - a table has its dead letters beside it
        sink = stage.sink.option if isinstance(stage.sink, HubDataset) else stage.sink
        source = open_hub(stage.sources[0].address)
        group = GroupKey(source.namespace, source.name, stage.options.consumer_group)
        return cls(sink, stage.options.event_ids, _DeadLetterWriter(dead_letters.option, group), report)

    def __call__(self, frame: DataFrame, _batch_id: int) -> None:
        if ERROR_COLUMN in frame.columns:
            self._split(frame)
        else:
            self._write(frame)

    def _split(self, frame: DataFrame) -> None:
        frame.persist()
        try:
            failed = frame.where(F.col(ERROR_COLUMN).isNotNull())
            failed = failed.select(*(name for name in frame.columns if name in DEAD_LETTER_COLUMNS))
            counts = failed.mapInArrow(self.dead_letters, _COUNT_DDL).collect()
            self._write(frame.where(F.col(ERROR_COLUMN).isNull()))
            self.report(Written(dead_letters=sum(count for (count,) in counts)))
        finally:
            frame.unpersist()

    def _write(self, rows: DataFrame) -> None:
        match self.sink:
            case str() as hub:
                writing = published(rows, has_ids=self.has_ids).write.format("eventhubs").option("hub", hub)
                writing.mode("append").save()
            case FormatDataset() as dataset:
                options = options_of(dataset, rows.sparkSession)
                rows.drop(ERROR_COLUMN).write.format(dataset.format).options(**options).mode("append").save(
                    dataset.path
                )


@dataclass(frozen=True, slots=True)
class _DeadLetterWriter:
    """What a task does with rows that failed: each becomes a dead letter in the hub."""

    hub: str
    """The hub's address, or where it stands: `env:NAME`."""
    group: GroupKey

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in map(plain, batches):
            dead_letters = [
                dead_letter_of(self.group, row, kind="rejected", reason=str(row[ERROR_COLUMN]), stage=Stage.QUERY)
                for row in dead_letter_rows(batch)
            ]
            if dead_letters:
                run(self._add(dead_letters))
            yield pa.RecordBatch.from_arrays([pa.array([len(dead_letters)], pa.int64())], schema=_COUNT)

    async def _add(self, dead_letters: list[DeadLetter]) -> None:
        async with shared_hub(parse_hub(self.hub)) as opened:
            kept = DeadLetterHub(opened.hub)
            try:
                await kept.add(dead_letters)
            finally:
                await kept.close()
