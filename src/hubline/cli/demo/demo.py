"""``hubline demo``: processors join, are killed and stop, while all events are processed."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from hubline.cli.arguments import option
from hubline.cli.exit_codes import ExitCode, say
from hubline.cli.output import stdout_console, table
from hubline.cli.session import using_hub, using_store
from hubline.monitoring.lag import GroupLag, measure
from hubline.text import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

    from hubline.ports import CheckpointStore, Hub

GROUP: Final = "demo"
PARTITIONS: Final = 8
EVENTS_PER_SECOND: Final = 2_000
SEND_INTERVAL_SECONDS: Final = 0.05
REFRESH_SECONDS: Final = 0.4

_WORKER: Final = "hubline.cli.demo.worker"

# After the last event, the rest is processed within a lease and a batch. If it takes longer, something is wrong.
CATCH_UP_SECONDS_MAX: Final = 30.0


def demo(
    speed: Annotated[float, option("--speed", "Run the demo this many times faster.", min=0.2, max=5.0)] = 1.0,
    keep: Annotated[bool, option("--keep", "Keep the hub and the store, and print their addresses.")] = False,
) -> None:
    """Watch processors share a hub: one joins, one is killed.

    Everything is real: the processes, the hub and the store on disk, and the kill. At the end, the demo prints how many
    events were sent, processed, duplicated and lost. The exit code is 1 if any event was lost.

    \b
    Examples:
      hubline demo
      hubline demo --keep
    """
    folder = Path(tempfile.mkdtemp(prefix="hubline-demo-"))
    try:
        tally = asyncio.run(_Demo(folder, speed=speed).run())
    finally:
        if keep:
            say(f"kept: hub local:{folder}/telemetry, store sqlite:///{folder}/state.db, group {GROUP}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    if tally.lost_count:
        raise typer.Exit(ExitCode.FAILED)


@dataclass(slots=True)
class Tally:
    """What happened to the events, according to the journal."""

    sent_count: int = 0
    handled_count: int = 0
    repeated_count: int = 0
    lost_count: int = 0

    @classmethod
    def of(cls, journal: str, sent: dict[str, int]) -> Tally:
        """From lines ``worker partition epoch first last``, and how many events each partition holds."""
        tally = cls(sent_count=sum(sent.values()))
        runs: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
        for line in journal.splitlines():
            _, partition, _, first, last = line.split()
            runs[partition].append((int(first), int(last)))
        for partition, count in sent.items():
            seen_to = -1
            for run_first, run_last in sorted(runs[partition]):
                tally.handled_count += run_last - run_first + 1
                tally.repeated_count += max(0, min(seen_to, run_last) - run_first + 1)
                tally.lost_count += max(0, run_first - seen_to - 1)
                seen_to = max(seen_to, run_last)
            tally.lost_count += count - 1 - seen_to
        return tally


class _Demo:
    """The story, and the table that shows it."""

    def __init__(self, folder: Path, *, speed: float) -> None:
        self._hub_url = f"local:{folder}/telemetry"
        self._store_url = f"sqlite:///{folder}/state.db"
        self._journal = folder / "journal"
        self._folder = folder
        self._speed = speed
        self._workers: dict[str, asyncio.subprocess.Process] = {}
        self._story: list[str] = []
        self._sent_count = 0
        self._started_at = time.monotonic()
        self._say: Callable[[str], None] = say

    async def run(self) -> Tally:
        from hubline.hubs.local import create_hub

        await create_hub(self._folder, "telemetry", partitions=PARTITIONS)
        async with using_hub(self._hub_url) as hub, using_store(self._store_url) as store:
            with self._live() as show:
                producing = asyncio.create_task(self._produce(hub))
                showing = asyncio.create_task(self._keep_showing(hub, store, show))
                try:
                    await self._tell(producing, hub, store)
                finally:
                    producing.cancel()
                    showing.cancel()
                    await asyncio.gather(producing, showing, return_exceptions=True)
                    await self._end_workers()
            held = [await hub.describe_partition(str(number)) for number in range(PARTITIONS)]
        journal = self._journal.read_text() if self._journal.exists() else ""
        tally = Tally.of(journal, {each.partition: each.last_sequence + 1 for each in held})
        _print_tally(tally)
        return tally

    async def _tell(self, producing: asyncio.Task[None], hub: Hub, store: CheckpointStore) -> None:
        await self._start("anna", "ben")
        await self._pass(6)
        await self._note_shares(hub, store)
        await self._start("carla")
        await self._pass(6)
        await self._note_shares(hub, store)
        self._note("kill -9 ben: its partitions are taken over when its lease of 3 s expires")
        self._workers["ben"].send_signal(signal.SIGKILL)
        await self._pass(8)
        await self._note_shares(hub, store)
        self._note("stop anna (SIGTERM): it finishes its batches, writes its checkpoints and releases")
        self._workers["anna"].send_signal(signal.SIGTERM)
        await self._pass(5)
        await self._note_shares(hub, store)
        producing.cancel()
        self._note(f"all {counted(self._sent_count, 'event')} are sent: carla catches up")
        await self._caught_up(hub, store)

    async def _start(self, *names: str) -> None:
        self._note(f"{' and '.join(names)} start{'s' if len(names) == 1 else ''}")
        for name in names:
            self._workers[name] = await asyncio.create_subprocess_exec(
                sys.executable, "-m", _WORKER, name, self._hub_url, self._store_url, GROUP, str(self._journal)
            )

    async def _pass(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._speed)
        for name, worker in self._workers.items():
            if worker.returncode not in (None, 0, -signal.SIGKILL):
                raise RuntimeError(f"{name} ended with {worker.returncode}")

    async def _note_shares(self, hub: Hub, store: CheckpointStore) -> None:
        lag = await self._measure(hub, store)
        self._note(f"partitions: {_shares(lag)}; lag {counted(lag.lag_events, 'event')}")

    def _note(self, what: str) -> None:
        line = f"{time.monotonic() - self._started_at:5.1f} s  {what}"
        self._story.append(line)
        self._say(line)

    async def _produce(self, hub: Hub) -> None:
        from hubline.model.events import new_events

        sender = await hub.open_sender()
        try:
            while True:
                due = int((time.monotonic() - self._started_at) * EVENTS_PER_SECOND)
                numbers = range(self._sent_count, max(due, self._sent_count + 1))
                await sender.send(
                    new_events({"body": f'{{"reading": {n}}}', "partitionKey": f"device-{n % 97}"} for n in numbers)
                )
                self._sent_count = numbers.stop
                await asyncio.sleep(SEND_INTERVAL_SECONDS)
        finally:
            await sender.close()

    async def _caught_up(self, hub: Hub, store: CheckpointStore) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(CATCH_UP_SECONDS_MAX):
                while (await self._measure(hub, store)).lag_events:  # noqa: ASYNC110 - another process makes it true
                    await asyncio.sleep(REFRESH_SECONDS)

    async def _end_workers(self) -> None:
        for worker in self._workers.values():
            if worker.returncode is None:
                with suppress(ProcessLookupError):
                    worker.send_signal(signal.SIGTERM)
        for worker in self._workers.values():
            await worker.wait()

    # What is shown

    @contextmanager
    def _live(self) -> Iterator[Callable[[GroupLag], None]]:
        """On a terminal, a live table; elsewhere, only the story, line by line."""
        console = stdout_console()
        if not console.is_terminal:
            self._say = print
            yield lambda _: None
            return
        from rich.live import Live

        self._say = lambda _: None
        with Live(console=console, auto_refresh=False) as live:
            yield lambda lag: live.update(self._view(lag), refresh=True)

    async def _keep_showing(self, hub: Hub, store: CheckpointStore, show: Callable[[GroupLag], None]) -> None:
        while True:
            show(await self._measure(hub, store))
            await asyncio.sleep(REFRESH_SECONDS)

    async def _measure(self, hub: Hub, store: CheckpointStore) -> GroupLag:
        from hubline.model.keys import GroupKey

        return await measure(hub, store, GroupKey(hub.namespace, hub.name, GROUP), now=datetime.now(UTC))

    def _view(self, lag: GroupLag) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        rows = [
            (
                each.held.partition,
                each.ownership.owner_id or None if each.ownership else None,
                each.ownership.epoch if each.ownership else None,
                each.checkpoint.sequence_number if each.checkpoint else None,
                each.held.last_sequence,
                each.lag_events,
            )
            for each in lag.partitions
        ]
        return Group(
            table(("partition", "owner", ">epoch", ">checkpoint", ">last", ">lag"), rows),
            Text(f"\n{counted(self._sent_count, 'event')} sent, lag {lag.lag_events:,}; partitions: {_shares(lag)}\n"),
            Text("\n".join(self._story)),
        )


def _shares(lag: GroupLag) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(lag.owned_count.items()) if name) or "no owners yet"


def _print_tally(tally: Tally) -> None:
    print(
        f"\n{counted(tally.sent_count, 'event')} sent, {tally.handled_count:,} processed, "
        f"{tally.repeated_count:,} duplicated, {tally.lost_count:,} lost"
    )
    if tally.repeated_count:
        print("the duplicates are events that ben had processed, but not yet checkpointed, when it was killed")
    print("next, create your own hub: hubline hub create local:./data/orders")
