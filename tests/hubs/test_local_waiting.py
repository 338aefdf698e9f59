"""Waiting for events costs nothing while nobody waits, and misses nothing."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from hubline.errors import HubError, ReaderStolen
from hubline.hubs.local import LocalHub, create_hub
from hubline.hubs.local import receiver as receiver_module
from hubline.hubs.local.change_signal import Signal, create_file
from hubline.hubs.local.receiver import LocalReceiver
from hubline.hubs.local.stored_batch import encode
from hubline.model.events import EventBatch, new_events
from hubline.model.positions import Position

from .support import ARRIVAL_SECONDS, new_hub, opened, opened_hub, run, send, texts, until


@pytest.fixture(autouse=True)
def _only_signals_wake(monkeypatch: pytest.MonkeyPatch) -> None:
    """No look of a waiting receiver's own hides that a signal did not come."""
    monkeypatch.setattr(receiver_module, "LOOK_SECONDS", 10 * ARRIVAL_SECONDS)


def waiting(receiver: LocalReceiver) -> asyncio.Task[EventBatch]:
    """A wait that only ends in time if something wakes it."""
    receiving = receiver.receive(max_count=10, wait_seconds=10 * ARRIVAL_SECONDS)
    return asyncio.create_task(asyncio.wait_for(receiving, ARRIVAL_SECONDS))


async def asleep(receiver: LocalReceiver) -> None:
    """Until the receiver has looked, found nothing, and waits for a signal."""

    async def is_asleep() -> bool:
        return receiver._index in receiver._incarnation.signal._waiters

    await until(is_asleep)


def test_an_append_through_another_hub_object_wakes_a_waiting_reader(tmp_path: Path) -> None:
    async def test() -> None:
        async with new_hub(tmp_path, partitions=2) as hub, opened_hub(tmp_path) as other:
            receiver = await opened(hub, partition="1")
            receiving = waiting(receiver)
            await asleep(receiver)

            await send(other, "not for it", partition="0")
            await send(other, "for it", partition="1")

            assert (await receiving).bodies == [b"for it"]

    run(test())


def test_a_takeover_through_another_hub_object_wakes_a_waiting_reader(tmp_path: Path) -> None:
    async def test() -> None:
        async with new_hub(tmp_path) as hub, opened_hub(tmp_path) as other:
            receiver = await opened(hub, epoch=1)
            receiving = waiting(receiver)
            await asleep(receiver)

            await opened(other, epoch=1)

            with pytest.raises(ReaderStolen):
                await receiving

    run(test())


def test_what_a_writer_that_died_before_its_signal_committed_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver_module, "LOOK_SECONDS", 0.02)

    async def test() -> None:
        async with new_hub(tmp_path) as hub:
            receiver = await opened(hub)
            receiving = waiting(receiver)
            await asleep(receiver)
            partition = receiver._incarnation.partition(0)

            await asyncio.to_thread(partition.append, encode(new_events(["unannounced"])), now_us=1)

            assert (await receiving).bodies == [b"unannounced"]

    run(test())


def test_a_takeover_that_was_never_announced_is_noticed_at_the_next_look(tmp_path: Path) -> None:
    async def test() -> None:
        async with new_hub(tmp_path) as hub:
            await send(hub, "a", "b")
            receiver = await opened(hub, epoch=1)
            await asyncio.to_thread(
                receiver._partition.open_reader,
                "$Default",
                Position.earliest(),
                epoch=2,
                liveness_id="one that died",
                is_alive=lambda _: False,
            )

            with pytest.raises(ReaderStolen):
                await receiver.receive(max_count=1, wait_seconds=0)
            assert await texts(await opened(hub, epoch=1), 2) == ["a", "b"]

    run(test())


def is_watching(signal: Signal) -> bool:
    return signal._timer is not None


def hub_threads() -> set[threading.Thread]:
    """Of all local hubs of this process: some may be left of other tests."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("hubline-local")}


def test_nothing_runs_while_nobody_waits(tmp_path: Path) -> None:
    before = hub_threads()

    async def test() -> None:
        async with new_hub(tmp_path) as hub:
            receiver = await opened(hub)
            signal = receiver._incarnation.signal
            assert not is_watching(signal)

            receiving = waiting(receiver)
            await asleep(receiver)
            assert is_watching(signal)
            assert len(hub_threads() - before) <= 2

            receiving.cancel()
            await asyncio.wait([receiving])
            assert not is_watching(signal)

    run(test())


def test_a_hub_object_can_be_used_by_one_event_loop_after_another(tmp_path: Path) -> None:
    hub = LocalHub(tmp_path, "orders")

    async def use(number: int) -> None:
        receiver = await opened(hub, Position.latest())
        receiving = waiting(receiver)
        await asleep(receiver)
        await asyncio.gather(*(send(hub, f"{number}") for _ in range(5)))
        assert (await receiving).bodies[0] == b"%d" % number
        for _ in range(3):
            tasks.append(waiting(await opened(hub, Position.latest())))  # cancelled as the loop ends
            await asyncio.sleep(0)

    tasks: list[asyncio.Task[EventBatch]] = []
    run(create_hub(tmp_path, "orders", partitions=1))
    for number in range(3):
        run(use(number))
    run(hub.close())
    assert all(task.cancelled() for task in tasks)


def test_closing_a_receiver_ends_its_wait(tmp_path: Path) -> None:
    async def test() -> None:
        async with new_hub(tmp_path) as hub:
            receiver = await opened(hub, epoch=1)
            receiving = waiting(receiver)
            await asleep(receiver)

            await receiver.close()

            with pytest.raises(HubError, match="receiver is closed"):
                await receiving

    run(test())


def test_closing_the_hub_ends_waits_and_lets_go_of_partitions(tmp_path: Path) -> None:
    async def test() -> None:
        async with opened_hub(tmp_path) as other:
            async with new_hub(tmp_path) as hub:
                receiver = await opened(hub, epoch=9)
                receiving = waiting(receiver)
                await asleep(receiver)
            await hub.close()  # twice is fine

            with pytest.raises(HubError, match="is closed"):
                await receiving
            with pytest.raises(HubError, match="is closed"):
                await send(hub, "late")
            await opened(other, epoch=1)
            await receiver.close()
            await send(other, "a")

    run(test())


def test_closing_the_hub_waits_for_what_cancelled_tasks_started(tmp_path: Path) -> None:
    async def test() -> None:
        async with new_hub(tmp_path, partitions=4) as hub:
            sends = [asyncio.create_task(send(hub, "x" * 1000, partition=str(n % 4))) for n in range(40)]
            for _ in range(5):
                await asyncio.sleep(0)
            for task in sends:
                task.cancel()
            await asyncio.wait(sends)
        async with opened_hub(tmp_path) as hub:
            for partition in "0123":
                await hub.describe_partition(partition)

    run(test())


def test_receives_that_are_cancelled_at_any_step_lose_and_repeat_nothing(tmp_path: Path) -> None:
    async def test() -> None:
        async with new_hub(tmp_path) as hub:
            for start in range(0, 300, 3):
                await send(hub, *map(str, range(start, start + 3)))
            receiver = await opened(hub, epoch=1)
            received: list[str] = []
            step_count = 0
            while len(received) < 300:
                receiving = asyncio.create_task(receiver.receive(max_count=7, wait_seconds=ARRIVAL_SECONDS))
                for _ in range(step_count % 6):
                    await asyncio.sleep(0)
                if step_count % 3:
                    receiving.cancel()
                await asyncio.wait([receiving])
                if not receiving.cancelled():
                    received += [body.decode() for body in receiving.result().bodies]
                step_count += 1
            assert received == list(map(str, range(300)))

    run(test())


def test_a_stamp_written_before_the_wait_is_not_waited_for(tmp_path: Path) -> None:
    async def test() -> None:
        create_file(tmp_path / "signal", 4)
        signal, elsewhere = Signal(tmp_path / "signal", 4), Signal(tmp_path / "signal", 4)
        try:
            seen = signal.changed(2)
            elsewhere.notify_changed(2)
            async with asyncio.timeout(ARRIVAL_SECONDS):
                await signal.wait(2, since=seen, timeout=10 * ARRIVAL_SECONDS)
        finally:
            signal.close()
            elsewhere.close()

    run(test())
