"""``make demo``: the three stages of telemetry.py on this machine, one of which is killed on the way.

    python examples/telemetry/demo.py [--events 100000] [--burst 1000000] [--keep]

Two instances share the work: one runs the stages ingest and recent, the other runs store. The readings come slowly
enough to watch, and the second instance is killed (kill -9, with its Java) while it writes, and started again. Then a
burst of readings shows how fast the stages are. At the end every reading is counted.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import burst
from readings import BATCH_COUNT, Reading, readings
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

import hubline
from hubline.adapters import open_store
from hubline.hubs.local import create_hub
from hubline.model.keys import GroupKey
from hubline.ports import CheckpointStore, Hub

HERE = Path(__file__).parent
SENDING_SECONDS = 15.0
"""Each half of the readings comes over so long, so that there is something to see and something to interrupt."""
KILLED_AT_SHARE = 0.3
LOOK_SECONDS = 0.5
WAIT_SECONDS_MAX = 240.0
"""Long past what a slow machine takes: then something is wrong."""

PARTITIONS = 4

JAVA_OPTIONS = "-XX:+UseSerialGC"
"""Two Javas share the machine: a collector without threads of its own leaves more of it to the stages."""

NEXT = """
What to try next:
  make demo again with --keep, and look: python examples/telemetry/demo.py --keep
  hubline plan examples/telemetry/telemetry.py       what each stage guarantees
  docs/tutorials/three-stages.md                      the same, from nothing, step by step"""

console = Console()


@dataclass
class Counts:
    """What became of the readings, as hubs and tables tell it."""

    sent: int = 0
    ingested: int = 0
    averaged: int = 0
    rows: int = 0
    distinct: int = 0
    dead_letters: int = 0

    @property
    def stored(self) -> int:
        return self.rows + self.dead_letters


@dataclass
class Sent:
    """What was sent."""

    ids: set[str] = field(default_factory=set)
    malformed: set[int] = field(default_factory=set)
    count: int = 0

    def note(self, batch: list[Reading]) -> None:
        self.count += len(batch)
        self.ids |= {reading.id for reading in batch if reading.id is not None}
        self.malformed |= {reading.number for reading in batch if reading.id is None}

    burst: int = 0
    """How many of the readings came in the burst: all valid, none sent twice."""

    def note_burst(self, count: int) -> None:
        self.count += count
        self.burst += count

    @property
    def distinct(self) -> int:
        """Rows that there should be: a reading that was sent twice counts once."""
        return len(self.ids) + self.burst

    @property
    def expected(self) -> int:
        """Rows and dead letters that there should be."""
        return self.distinct + len(self.malformed)


class Run:
    """A ``hubline run`` of some stages, with its Java, in a process group of its own."""

    def __init__(self, folder: Path, name: str, *stages: str) -> None:
        self._log, self._reports = folder / f"{name}.log", folder / f"{name}.jsonl"
        command = [sys.executable, "-m", "hubline", "run", str(HERE / "telemetry.py"), "--json"]
        command += ["--set", f"run.spark_checkpoints={folder}/data/state-{name}"]
        command += [argument for stage in stages for argument in ("--stage", stage)]
        with self._log.open("ab") as log, self._reports.open("ab") as reports:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env={**os.environ, "SPARK_SUBMIT_OPTS": JAVA_OPTIONS},
                stdout=reports,
                stderr=log,
                start_new_session=True,
            )

    def kill(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """Ask it to stop, and wait until it has."""
        if self._process.poll() is None:
            self._process.terminate()
        self._process.wait()

    def rates(self) -> dict[str, float]:
        """The best rate of each stage over ten seconds, in events a second."""
        best: dict[str, float] = {}
        for line in self._reports.read_text().splitlines():
            with suppress(ValueError):  # a line that was cut short by a kill
                report = json.loads(line)
                best[report["stage"]] = max(best.get(report["stage"], 0.0), report["eventsPerSecond"])
        return best

    def require_running(self) -> None:
        if self._process.poll() is not None:
            raise SystemExit(f"a run ended with {self._process.returncode}:\n{self._log.read_text()[-3000:]}")


class Demo:
    """The story, and what is shown of it."""

    def __init__(self, folder: Path, events_count: int, burst_count: int) -> None:
        self._folder = folder
        self._events_count = events_count
        self._burst_count = burst_count
        self._expected_count = events_count
        self._hubs = {name: hubline.open_hub(f"local:{folder}/data/{name}") for name in ("raw", "clean")}
        self._store = open_store(f"sqlite:///{folder}/data/progress.db")
        self._sent = Sent()
        self._counts = Counts()
        self._started_at = time.monotonic()
        self._story: list[str] = []
        self._live: Live | None = None

    async def run(self) -> bool:
        """Whether all came out right."""
        await create_hub(self._folder / "data", "raw", partitions=PARTITIONS)
        with self._shown():
            self._note("two instances start: one runs the stages ingest and recent, the other runs store")
            first, second = Run(self._folder, "first", "ingest", "recent"), Run(self._folder, "second", "store")
            try:
                coming = readings(self._events_count)
                sending = asyncio.create_task(self._send(itertools.islice(coming, self._events_count // 2)))
                await self._until(lambda counts: counts.stored > KILLED_AT_SHARE * self._events_count, first, second)
                await sending
                sending = asyncio.create_task(self._send(coming))
                self._note(f"the instance of store is killed (kill -9), with {self._counts.rows:,} rows written")
                second.kill()
                second = Run(self._folder, "second", "store")
                self._note("it is started again, while readings keep coming")
                await self._until(lambda _: sending.done(), first, second)
                await sending
                await self._until(self._is_done, first, second)
                self._note("every reading is in the tables")
                if self._burst_count:
                    await self._run_burst(first, second)
                self._note("both instances are asked to stop (SIGTERM)")
            finally:
                await asyncio.gather(asyncio.to_thread(first.stop), asyncio.to_thread(second.stop))
            await self._look()
        for hub in self._hubs.values():
            await hub.close()
        await self._store.close()
        return self._conclude({**first.rates(), **second.rates()})

    # What happens

    async def _send(self, coming: Iterator[Reading]) -> None:
        sender = await self._hubs["raw"].open_sender()
        pause = 2 * SENDING_SECONDS * BATCH_COUNT / self._events_count
        while batch := list(itertools.islice(coming, BATCH_COUNT)):
            await sender.send(hubline.new_events(reading.event for reading in batch))
            self._sent.note(batch)
            await asyncio.sleep(pause)
        await sender.close()

    async def _run_burst(self, *runs: Run) -> None:
        """As many readings as the machine can take at once."""
        self._expected_count += self._burst_count
        self._note(f"a burst: {self._burst_count:,} readings, sent as fast as the hub takes them")
        started_at = time.monotonic()
        sending = asyncio.create_task(self._send_burst())
        await self._until(lambda counts: sending.done() and self._is_done(counts), *runs)
        await sending
        seconds = time.monotonic() - started_at
        rate = self._burst_count / seconds
        self._note(f"all of them are through the three stages after {seconds:.0f} s: {rate:,.0f} events/s")

    async def _send_burst(self) -> None:
        async with hubline.Producer(self._hubs["raw"]) as producer:
            for batch in burst.batches(self._burst_count, first_number=self._events_count):
                await producer.send(batch)
                self._sent.note_burst(len(batch))

    def _is_done(self, counts: Counts) -> bool:
        return counts.stored >= self._sent.expected and counts.averaged >= self._sent.count

    async def _until(self, condition: Callable[[Counts], bool], *runs: Run) -> None:
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while not condition(self._counts):
            if time.monotonic() > deadline:
                raise SystemExit(f"it takes too long; see the logs in {self._folder}")
            for run in runs:
                run.require_running()
            await self._look()
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> None:
        self._counts = Counts(
            sent=self._sent.count,
            ingested=await _done(self._store, self._hubs["raw"], "ingest"),
            averaged=await _done(self._store, self._hubs["clean"], "recent"),
            **await asyncio.to_thread(_in_tables, self._folder / "data" / "readings.db"),
        )
        if self._live is not None:
            self._live.update(self._view(), refresh=True)

    # What is shown

    @contextmanager
    def _shown(self) -> Iterator[None]:
        """On a terminal a table that lives; elsewhere the story alone, line by line."""
        if not console.is_terminal:
            yield
            return
        with Live(console=console, auto_refresh=False) as self._live:
            yield
        self._live = None

    def _note(self, what: str) -> None:
        self._story.append(f"{time.monotonic() - self._started_at:5.1f} s  {what}")
        if self._live is None:
            console.print(self._story[-1], highlight=False, soft_wrap=True)
        else:
            self._live.update(self._view(), refresh=True)

    def _view(self) -> RenderableType:
        table = Table("", "events", "", box=None)
        for title, count in (
            ("sent", self._counts.sent),
            ("ingest  raw -> clean", self._counts.ingested),
            ("recent  clean -> averages", self._counts.averaged),
            ("store   clean -> readings", self._counts.stored),
        ):
            table.add_row(title, f"{count:,}", ProgressBar(total=self._expected_count, completed=count, width=40))
        return Group(*map(Text, self._story), Text(), table)

    def _conclude(self, rates: dict[str, float]) -> bool:
        counts, sent = self._counts, self._sent
        lost = sent.distinct - counts.distinct + max(0, len(sent.malformed) - counts.dead_letters)
        duplicated = counts.rows - counts.distinct + max(0, counts.dead_letters - len(sent.malformed))
        table = Table("", "", box=None, show_header=False)
        table.columns[1].justify = "right"
        for title, value in (
            ("events in", f"{sent.count:,}"),
            ("rows", f"{counts.rows:,}"),
            ("dead letters", f"{counts.dead_letters:,}"),
            ("duplicates dropped", f"{sent.count - counts.stored:,}"),
            ("lost", f"{lost:,}"),
            ("duplicated", f"{duplicated:,}"),
            *((f"events/s, {stage}", f"{rate:,.0f}") for stage, rate in rates.items()),
        ):
            table.add_row(title, value)
        console.print()
        console.print(table)
        return not lost and not duplicated


async def _done(store: CheckpointStore, hub: Hub, group: str) -> int:
    """How many events of a hub a stage is done with, by its checkpoints."""
    checkpoints = await store.list_checkpoints(GroupKey(hub.namespace, hub.name, group))
    return sum(checkpoint.sequence_number + 1 for checkpoint in checkpoints)


def _in_tables(path: Path) -> dict[str, int]:
    """What is in the database; nothing before a run has made it."""
    queries = {
        "rows": "SELECT count(*) FROM readings",
        "distinct": "SELECT count(DISTINCT id) FROM readings",
        "dead_letters": "SELECT count(*) FROM hubline_dead_letter",
    }
    if not path.exists():
        return {}
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as database:
        try:
            return {name: database.execute(query).fetchone()[0] for name, query in queries.items()}
        except sqlite3.OperationalError:
            return {}


def main() -> int:
    parser = argparse.ArgumentParser(description="Three stages on Spark, one of which is killed on the way.")
    parser.add_argument("--events", type=int, default=100_000, help="how many readings are sent")
    parser.add_argument("--burst", type=int, default=1_000_000, help="how many more are sent at once, at the end")
    parser.add_argument("--keep", action="store_true", help="keep the hubs, the tables and the logs")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="hubline-demo-"))
    shutil.copy(HERE / "telemetry.toml", folder)
    is_right = False
    try:
        is_right = asyncio.run(Demo(folder, options.events, options.burst).run())
    finally:
        if options.keep or not is_right:
            console.print(f"\nkept in {folder}")
        else:
            shutil.rmtree(folder)
    console.print(NEXT, highlight=False, soft_wrap=True)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
