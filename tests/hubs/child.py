"""What the child processes of test_local_processes do: ``python -m tests.hubs.child VERB ROOT ...``.

Each prints a line for everything it has done, so that the test knows what was acknowledged when it kills the child.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable

from hubline.errors import ReaderRefused, ReaderStolen
from hubline.hubs.local import LocalHub
from hubline.model.events import new_events
from hubline.model.positions import Position

GROUP = "$Default"
PARTITION_COUNT = 2


def say(*words: object) -> None:
    print(*words, flush=True)


async def append(hub: LocalHub, name: str, send_count: str) -> None:
    """Sends batches of growing size, in turn to each partition, and says which was acknowledged."""
    sender = await hub.open_sender()
    for number in range(int(send_count)):
        event_count = 1 + number % 7
        # Now and then a send that is stored as several batches, in one transaction.
        padding = "." * (900_000 if number % 10 == 9 else 100)
        bodies = [f"{name} {number} {place} {event_count} {padding}" for place in range(event_count)]
        await sender.send(new_events(bodies), partition=str(number % PARTITION_COUNT))
        say(number)


async def read(hub: LocalHub, partition: str, count: str) -> None:
    """Reads as many events, and says how many it has, and whether the sequence numbers have gaps."""
    receiver = await hub.open_receiver(partition, group=GROUP, position=Position.earliest())
    next_sequence = 0
    while next_sequence < int(count):
        batch = await receiver.receive(max_count=50, wait_seconds=1)
        assert [event.sequence_number for event in batch] == list(range(next_sequence, next_sequence + len(batch)))
        next_sequence += len(batch)
    say("read", next_sequence)


async def hold(hub: LocalHub, epoch: str) -> None:
    """Reads partition 0 with an epoch until it is taken."""
    try:
        receiver = await hub.open_receiver("0", group=GROUP, position=Position.earliest(), epoch=int(epoch))
    except ReaderRefused as refused:
        say("refused", refused.held_epoch)
        return
    say("holding")
    try:
        while True:
            batch = await receiver.receive(max_count=10, wait_seconds=60)
            for body in batch.bodies:
                say("received", body.decode())
    except ReaderStolen as stolen:
        say("stolen", stolen.taken_by_epoch)


async def hold_and_fork(hub: LocalHub, epoch: str) -> None:
    """Holds a partition while a forked child lives on."""
    await hub.open_receiver("0", group=GROUP, position=Position.earliest(), epoch=int(epoch))
    forked_id = os.fork()
    if forked_id == 0:
        os.closerange(0, 3)  # the test waits for the parent's pipes to end
        signal.alarm(60)  # should the test not end it
        signal.pause()
    say("holding", forked_id)
    await asyncio.sleep(60)


VERBS: dict[str, Callable[..., Awaitable[None]]] = {
    "append": append,
    "read": read,
    "hold": hold,
    "hold_and_fork": hold_and_fork,
}


async def main(verb: str, root: str, *arguments: str) -> None:
    hub = LocalHub(root, "orders")
    try:
        await VERBS[verb](hub, *arguments)
    finally:
        await hub.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
