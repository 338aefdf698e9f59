"""``run`` in real processes: signals drain, checkpoint and release; a second one ends at once."""

from __future__ import annotations

import asyncio
import logging
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hubline.checkpoint_stores.memory import MemoryStore
from hubline.errors import ProcessorError
from hubline.hubs.local import LocalHub, create_hub
from hubline.model.events import Event, EventBatch, new_events
from hubline.model.positions import Position
from hubline.processor import Processor
from hubline.testing.memory_hub import MemoryHub
from tests.support.worker import Task, Worker

EVENTS_COUNT = 10


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Starts a worker on a hub with one partition and a few events."""
    workers: list[Worker] = []

    async def prepare() -> None:
        await create_hub(tmp_path, "hub", partitions=1)
        hub = LocalHub(tmp_path, "hub")
        sender = await hub.open_sender()
        await sender.send(new_events([str(number) for number in range(EVENTS_COUNT)]), partition="0")
        await hub.close()

    def started(**options: Any) -> Worker:
        task = Task(
            hub=f"local:{tmp_path}/hub",
            store=f"sqlite:///{tmp_path}/state.db",
            owner_id="worker",
            journal=str(tmp_path / "worker.journal"),
            **options,
        )
        workers.append(Worker(task))
        return workers[-1]

    asyncio.run(prepare())
    yield started
    for worker in workers:
        worker.kill()


def stored(worker: Worker) -> tuple[str, int | None]:
    """The owner of the partition, and its checkpoint."""
    connection = sqlite3.connect(worker.task.store.removeprefix("sqlite://"))
    try:
        (owner,) = connection.execute("SELECT owner_id FROM hubline_ownership").fetchone()
        (sequence,) = connection.execute("SELECT sequence_number FROM hubline_checkpoint").fetchone()
    finally:
        connection.close()
    return owner, sequence


class TestFirstSignal:
    @pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
    @pytest.mark.parametrize("handler", ["plain", "async"])
    def test_it_drains_checkpoints_and_releases(
        self, start: Callable[..., Worker], signum: signal.Signals, handler: str
    ) -> None:
        worker = start(handler=handler, handler_seconds=0.5)
        worker.await_fact("begun")

        worker.signal(signum)

        assert worker.wait() == 0
        # In order: the batch in progress ends, its partition is released, and only then the process ends.
        assert [fact.what for fact in worker.facts()] == ["assigned", "begun", "handled", "released stopped", "ended"]
        assert stored(worker) == ("", EVENTS_COUNT - 1)

    @pytest.mark.parametrize("handler", ["hung plain", "hung async"])
    def test_a_handler_that_hangs_is_left_behind_after_a_while(
        self, start: Callable[..., Worker], handler: str
    ) -> None:
        worker = start(handler=handler, stop_timeout_seconds=0.5)
        worker.await_fact("begun")

        worker.signal(signal.SIGTERM)

        assert worker.wait() == 0
        assert stored(worker) == ("worker", None)  # left to the end of its lease: the events come again
        assert "stop_timeout" in worker.kill()


class TestSecondSignal:
    @pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
    @pytest.mark.parametrize("handler", ["hung plain", "hung async"])
    def test_it_ends_the_process_at_once(
        self, start: Callable[..., Worker], signum: signal.Signals, handler: str
    ) -> None:
        worker = start(handler=handler, stop_timeout_seconds=1_000.0)
        worker.await_fact("begun")
        worker.signal(signum)
        worker.await_drain()

        worker.signal(signum)

        assert worker.wait() == -signum
        assert "ended" not in [fact.what for fact in worker.facts()]


class TestEmbedded:
    """``run_async`` in a program of one's own."""

    def processor(self) -> Processor:
        processor = Processor(
            MemoryHub(1), MemoryStore(), consumer_group="tests", starting_position=Position.earliest()
        )

        @processor.on_batch
        async def handle(batch: EventBatch) -> None: ...

        return processor

    def test_it_puts_back_the_signal_handlers_it_found(self) -> None:
        def mine(signum: int, frame: object) -> None: ...

        before = {signum: signal.signal(signum, mine) for signum in (signal.SIGINT, signal.SIGTERM)}
        try:

            async def main() -> None:
                asyncio.get_running_loop().call_later(0.2, signal.raise_signal, signal.SIGTERM)
                await self.processor().run_async()
                assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == (mine, mine)

            asyncio.run(main())
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)

    @pytest.mark.parametrize("has_logging", [False, True])
    def test_it_shows_its_log_unless_the_program_has_set_up_logging(
        self, has_logging: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        logger = logging.getLogger("hubline")
        monkeypatch.setattr(logger, "propagate", has_logging)  # pytest has set it up
        hub = MemoryHub(1)
        hub.append("0", [b"x", b"y"])
        processor = Processor(hub, MemoryStore(), consumer_group="tests", starting_position="earliest")

        @processor.on_event
        async def handle(event: Event) -> None:
            if event.body == b"y":
                asyncio.get_running_loop().call_later(0.2, signal.raise_signal, signal.SIGTERM)

        processor.run()

        shown = capsys.readouterr().err
        for line in ("INFO started group=", "INFO progress events=2 partitions=1\n", "INFO stopped owner_id="):
            assert (line in shown) is not has_logging
        assert (logger.handlers, logger.level) == ([], logging.NOTSET)

    def test_outside_the_main_thread_it_says_what_to_do(self) -> None:
        errors: list[BaseException] = []

        def run() -> None:
            try:
                self.processor().run()
            except BaseException as error:  # noqa: BLE001
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

        (error,) = errors
        assert isinstance(error, ProcessorError)
        assert "main thread" in str(error)
        assert "start()" in str(error)

    def test_it_leaves_the_callers_event_loop_alone(self) -> None:
        """As programs with a loop of their own expect, which ask for it between two calls."""
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        processor = self.processor()
        try:
            loop.run_until_complete(processor.start())
            assert asyncio.get_event_loop_policy().get_event_loop() is loop
            loop.run_until_complete(processor.stop())
            loop.run_until_complete(loop.shutdown_default_executor())
        finally:
            asyncio.set_event_loop(None)
            loop.close()

    def test_a_program_that_forgets_to_stop_still_ends(self, tmp_path: Path) -> None:
        program = tmp_path / "forgetful.py"
        program.write_text(
            "import asyncio, hubline, time\n"
            "from hubline.testing.memory_hub import MemoryHub\n"
            "async def main():\n"
            "    hub = MemoryHub(2)\n"
            "    hub.append('0', [b'x'])\n"
            "    seen = asyncio.Event()\n"
            "    processor = hubline.Processor(hub, 'memory:', consumer_group='g', starting_position='earliest',\n"
            "        options=hubline.ProcessorOptions(lease=hubline.LeaseOptions(startup_delay_seconds=0)))\n"
            "    @processor.on_batch\n"
            "    async def handle(batch):\n"
            "        seen.set()\n"
            "        await asyncio.sleep(1000)\n"
            "    await processor.start()\n"
            "    await seen.wait()\n"
            "asyncio.run(main())\n"
        )

        ended = subprocess.run([sys.executable, program], capture_output=True, timeout=60, check=False)

        assert (ended.returncode, ended.stdout) == (0, b"")
