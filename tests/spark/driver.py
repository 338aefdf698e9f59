"""A Spark application that copies a hub into SQLite, each event once: to be started, joined and killed by tests.

python -m tests.spark.driver HUB FOLDER NAME [OPTION=VALUE ...]

It writes to FOLDER/shared.db, with the options given. With ``alone=true`` a second query, without any of them, writes
to FOLDER/alone.db: a Spark application is slow to start, and one query dies as another does.

Its sink is the simplest that can do it: a transaction skips what it has, refuses to leave a gap, inserts and advances.
"""

from __future__ import annotations

import sqlite3
import sys
import threading
from itertools import groupby

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

import hubline.spark

START_ATTEMPTS = 3
SCHEMA = """
CREATE TABLE IF NOT EXISTS progress (partition TEXT PRIMARY KEY, next INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS events (partition TEXT, sequence INTEGER, body TEXT, PRIMARY KEY (partition, sequence));
CREATE TABLE IF NOT EXISTS batches (name TEXT, batch_id INTEGER, partition TEXT, first INTEGER, last INTEGER);
CREATE TABLE IF NOT EXISTS gaps (name TEXT, partition TEXT, next INTEGER, first INTEGER);
"""


class Sink:
    def __init__(self, path: str, name: str) -> None:
        self._path = path
        self._name = name
        with sqlite3.connect(path, timeout=60) as database:
            database.executescript(f"PRAGMA journal_mode = WAL; {SCHEMA}")

    def write(self, frame: DataFrame, batch_id: int) -> None:
        rows = frame.selectExpr("partition", "sequenceNumber", "cast(body as string)").collect()
        events = sorted((row[0], row[1], row[2]) for row in rows)
        database = sqlite3.connect(self._path, timeout=60, isolation_level=None)
        database.execute("BEGIN IMMEDIATE")
        for partition, found in groupby(events, key=lambda event: event[0]):
            self._advance(database, batch_id, partition, list(found))
        database.execute("COMMIT")
        database.close()

    def _advance(
        self, database: sqlite3.Connection, batch_id: int, partition: str, events: list[tuple[str, int, str]]
    ) -> None:
        first, last = events[0][1], events[-1][1]
        stored = database.execute("SELECT next FROM progress WHERE partition = ?", (partition,)).fetchone()
        following = stored[0] if stored else 0
        if first > following:
            database.execute("INSERT INTO gaps VALUES (?, ?, ?, ?)", (self._name, partition, following, first))
        database.execute("INSERT INTO batches VALUES (?, ?, ?, ?, ?)", (self._name, batch_id, partition, first, last))
        database.executemany(
            "INSERT INTO events VALUES (?, ?, ?)", [event for event in events if event[1] >= following]
        )
        database.execute("INSERT OR REPLACE INTO progress VALUES (?, ?)", (partition, max(following, last + 1)))


def main(hub: str, folder: str, name: str, *options: str) -> None:
    spark = hubline.spark.session(name, master="local[2]", **{"spark.ui.enabled": False, "spark.log.level": "ERROR"})
    given = dict(option.split("=", 1) for option in options)
    is_beside_one_alone = given.pop("alone", "") == "true"
    threading.Thread(target=stop_at_end_of_input, args=[spark], daemon=True).start()
    if is_beside_one_alone:
        alone = Sink(f"{folder}/alone.db", name), f"{folder}/{name}-alone", {"hub": hub}
        threading.Thread(target=run, args=[spark, *alone], daemon=True).start()
    run(spark, Sink(f"{folder}/shared.db", name), f"{folder}/{name}", {"hub": hub, **given})
    spark.stop()


def run(spark: SparkSession, sink: Sink, checkpoint: str, options: dict[str, str]) -> None:
    """Runs the query until it is stopped. Spark gives its planning process ten seconds to start, however busy the
    machine is: then it is started again."""
    frame = (
        spark.readStream.format("eventhubs")
        .options(startingPosition="earliest", maxEventsPerTrigger="1000", **options)
        .load()
    )
    writing = frame.writeStream.foreachBatch(sink.write).option("checkpointLocation", checkpoint)
    for attempts_left in reversed(range(START_ATTEMPTS)):
        try:
            writing.trigger(processingTime="200 milliseconds").start().awaitTermination()
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error) or not attempts_left:
                raise
        else:
            return


def stop_at_end_of_input(spark: SparkSession) -> None:
    """The process that started this one ends it by closing its standard input, or less gently."""
    sys.stdin.read()
    for query in spark.streams.active:
        query.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
