"""The last 24 hours, read at each start: fixed partitions without checkpoints, as a processor and as a Spark stage.

A local hub holds 26 hours of readings of 100 bytes in eight partitions, eight million of them in the last 24. What is
measured runs in processes of its own: how fast it has read the day, and the peak of their memory together, without
the hub's files, which are mapped. The limit is what bare receivers of the same partitions do.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from benchmarks.amqp_client import FOLDER
from benchmarks.harness import Result, benchmark
from hubline import EventBatch, Fixed, LeaseOptions, Position, Processor, ProcessorOptions, new_events
from hubline.checkpoint_stores.sqlite import SqliteStore
from hubline.hubs.local import LocalHub, create_hub
from hubline.processor import PartitionContext

NAME: Final = "readings"
GROUP: Final = "recent"
ROUNDS: Final = 3
HOURS: Final = 24
# Events older than a day, and the time after them in which there are none: the day moves on while it is measured.
EARLIER_HOURS: Final = 2.0
MARGIN_HOURS: Final = 0.5
SENT_AT_ONCE: Final = 1_000
BATCH_COUNT_MAX: Final = 20_000
POLL_SECONDS: Final = 0.05
MIB: Final = 2**20

AGAINST_BARE: Final = "bare receivers of the same partitions, from the same time on"
AGAINST_DAY: Final = "the bodies of the day, {:,.0f} MiB"

CODE: Final = """
import hubline

pipeline = hubline.Pipeline("last-day")


@pipeline.stage(
    source="readings", sink="nothing", consumer_group="recent-stage", checkpoint="never",
    starting_position="time:-24h", load_balancing=hubline.Fixed({partitions}),
)
def recent(events):
    return events
"""

CONFIG: Final = """
[datasets]
readings = {{ hub = "{hub}" }}
nothing = {{ format = "noop" }}

[run]
spark_checkpoints = "{folder}/spark"
"""


@dataclass(frozen=True, slots=True)
class Day:
    """A hub with events of the last 24 hours, and of the two hours before them."""

    folder: Path
    count: int = 8_000_000
    partitions: int = 8
    body_bytes: int = 100

    @property
    def hub(self) -> str:
        return f"local:{self.folder}/{NAME}"

    @property
    def bodies_mib(self) -> float:
        return self.count * self.body_bytes / MIB

    @property
    def partition_ids(self) -> list[str]:
        return [str(index) for index in range(self.partitions)]


@benchmark("last-day")
def last_day() -> Iterator[Result]:
    """Speed and memory, in turns: into a handler that keeps nothing, into one that keeps the bodies, into Spark."""
    with filled() as day:
        works = {"bare": bare, "processor": processed, "processor-kept": kept, "stage": staged}
        rounds = [{name: measured(work, day) for name, work in works.items()} for _ in range(ROUNDS)]
    rate = {name: statistics.median(each[name][0] for each in rounds) for name in works}
    peak = {name: max(each[name][1] for each in rounds) for name in works}
    for name in list(works)[1:]:
        yield Result(f"last-day-{name}", rate[name], "events/s", rate[name] / rate["bare"], AGAINST_BARE)
        against = AGAINST_DAY.format(day.bodies_mib)
        yield Result(f"last-day-{name}-memory", peak[name], "MiB at the peak", day.bodies_mib / peak[name], against)


# The hub


@contextmanager
def filled() -> Iterator[Day]:
    with tempfile.TemporaryDirectory(prefix="hubline-bench-", dir=FOLDER) as name:
        day = Day(Path(name))
        asyncio.run(fill(day))
        yield day


async def fill(day: Day) -> None:
    """Appends the events in turns, as if the hours between them had passed."""
    await create_hub(day.folder, NAME, partitions=day.partitions)
    now = time.time()
    times = _times(day.count // day.partitions // SENT_AT_ONCE)
    clock = 0.0
    hub = LocalHub(day.folder, NAME, clock=lambda: clock)
    senders = {partition: await hub.open_sender() for partition in day.partition_ids}
    events = new_events([b"%0*d" % (day.body_bytes, number) for number in range(SENT_AT_ONCE)])
    for hours_ago in times:
        clock = now - hours_ago * 3600
        await asyncio.gather(*(sender.send(events, partition=partition) for partition, sender in senders.items()))
    await hub.close()


def _times(count: int) -> list[float]:
    """How many hours ago: so often within the day, and as densely before it."""
    recent = HOURS - MARGIN_HOURS
    step = recent / count
    earlier = [HOURS + step * number for number in range(int(EARLIER_HOURS / step), 0, -1)]
    return [*earlier, *(recent - step * number for number in range(count))]


# What is measured: seconds to read all of the day


def bare(day: Day) -> float:
    return asyncio.run(_bare(day))


async def _bare(day: Day) -> float:
    hub = LocalHub(day.folder, NAME)
    start = Position.enqueued(datetime.now(UTC) - timedelta(hours=HOURS))

    async def drain(partition: str) -> None:
        receiver = await hub.open_receiver(partition, group=GROUP, position=start, epoch=None)
        left_count = day.count // day.partitions
        while left_count:
            left_count -= len(await receiver.receive(max_count=BATCH_COUNT_MAX, wait_seconds=10))
        await receiver.close()

    started_at = time.perf_counter()
    await asyncio.gather(*map(drain, day.partition_ids))
    seconds = time.perf_counter() - started_at
    await hub.close()
    return seconds


def processed(day: Day) -> float:
    """The handler looks at the columns, and keeps nothing of them."""
    return asyncio.run(_processed(day, lambda batch: batch.arrow.column("body").nbytes))


def kept(day: Day) -> float:
    """The handler keeps all bodies: the state of a program that has the day in memory."""
    bodies: list[pa.Array[Any]] = []
    seconds = asyncio.run(_processed(day, lambda batch: bodies.append(batch.arrow.column("body"))))
    assert sum(map(len, bodies)) == day.count
    return seconds


async def _processed(day: Day, take: Callable[[EventBatch], object]) -> float:
    store = SqliteStore(day.folder / "owners.db")
    processor = Processor(
        day.hub,
        store,
        consumer_group=GROUP,
        starting_position=f"time:-{HOURS}h",
        load_balancing=Fixed(day.partitions),
        options=ProcessorOptions(
            max_batch_size=BATCH_COUNT_MAX,
            checkpoint_policy="never",
            lease=LeaseOptions(startup_delay_seconds=0.0),
        ),
    )
    all_owned, done = asyncio.Event(), asyncio.Event()
    owned = handled = 0
    begun_at = oldest = datetime.now(UTC)

    @processor.on_assigned
    async def wait_for_all(_: PartitionContext) -> None:
        # Claiming, one partition a second, is not what is measured: reading begins when all are there.
        nonlocal owned
        owned += 1
        if owned == day.partitions:
            all_owned.set()
        await all_owned.wait()

    @processor.on_batch
    async def handle(batch: EventBatch) -> None:
        nonlocal handled, oldest
        take(batch)
        oldest = min(oldest, batch[0].enqueued_time)
        handled += len(batch)
        if handled >= day.count:
            done.set()

    async with processor:
        await all_owned.wait()
        started_at = time.perf_counter()
        await done.wait()
        seconds = time.perf_counter() - started_at
    assert handled == day.count, f"{handled:,} of {day.count:,} events"
    assert oldest > begun_at - timedelta(hours=HOURS), oldest
    await store.close()
    return seconds


def staged(day: Day) -> float:
    """All batches of a stage, from the first on, in which Spark's workers start."""
    import hubline.spark
    from benchmarks.pipeline import Batches
    from hubline.pipeline.checks import check_file
    from hubline.pipeline.runner import Request, run

    class All(Batches):
        """The events and the milliseconds of each batch."""

        def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
            progress = json.loads(event.progress().json())
            found.append((progress["numInputRows"], progress["durationMs"]["triggerExecution"]))

    found: list[tuple[int, int]] = []
    settings = {
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
        "spark.log.level": "ERROR",
        "spark.local.dir": str(day.folder / "scratch"),
    }
    spark = hubline.spark.session("benchmarks", master="local[2]", **settings)
    heard = All()
    spark.streams.addListener(heard)
    file = day.folder / "recent.py"
    file.write_text(CODE.format(partitions=day.partitions))
    file.with_suffix(".toml").write_text(CONFIG.format(hub=day.hub, folder=day.folder))
    run(check_file(file), Request(once=True), spark=spark)
    heard.ended.wait()
    spark.stop()
    assert sum(count for count, _ in found) == day.count, found
    return sum(milliseconds for count, milliseconds in found if count) / 1000


# In a process of its own


def measured(work: Callable[[Day], float], day: Day) -> tuple[float, float]:
    """Events a second, and the peak of the memory of all processes in MiB, without mapped files."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_report, args=(theirs, work, day))
    process.start()
    theirs.close()
    peak = 0
    while not ours.poll(POLL_SECONDS):
        peak = max(peak, sum(map(_own_bytes, _with_descendants(process.pid or 0))))
    seconds = ours.recv()
    process.join()
    return day.count / seconds, peak / MIB


def _report(results: Connection, work: Callable[[Day], float], day: Day) -> None:
    results.send(work(day))


def _with_descendants(pid: int) -> Sequence[int]:
    """A process, and all that it and they have started."""
    found = [pid]
    for each in found:
        for children in Path(f"/proc/{each}/task").glob("*/children"):
            with suppress(OSError):  # it has ended meanwhile
                found += map(int, children.read_text().split())
    return found


def _own_bytes(pid: int) -> int:
    """Without the pages of mapped files: a local hub's are there as long as nobody else needs the memory."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    lines = [line for line in status.splitlines() if line.startswith("RssAnon:")]
    return int(lines[0].split()[1]) * 1024 if lines else 0
