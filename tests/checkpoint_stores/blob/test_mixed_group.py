"""One consumer group of two official EventHubConsumerClients and two hubline processors, over ``hubline serve``."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

import pytest

from hubline.hubs.local import LocalHub
from hubline.model.events import new_events
from hubline.model.keys import GroupKey
from hubline.model.ownership import GroupState
from tests.checkpoint_stores.blob.member import GROUP, SDK_EXPIRY_SECONDS, Kind, MemberProcess, Task
from tests.checkpoint_stores.blob.support import blob_store
from tests.emulator.serving import Server, serving
from tests.support.azurite import Azurite

pytestmark = [pytest.mark.xdist_group("azurite"), pytest.mark.kills, pytest.mark.timeout(600)]

needs_node = pytest.mark.skipif(shutil.which("npm") is None, reason="node and npm are not on this machine")

PARTITIONS_COUNT = 8
EVENTS_COUNT = 25
# Far longer than it takes on a quiet machine: a bound on waiting, not a measure.
PATIENCE_SECONDS = 170.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "hubs", "--create", f"orders:{PARTITIONS_COUNT}") as running:
        yield running


class Mixed:
    """The members of a group, the hub, and the store that they share."""

    def __init__(self, server: Server, azurite_server: Azurite, container: str, folder: Path) -> None:
        self._server = server
        self._azurite = azurite_server
        self._container = container
        self._folder = folder
        self._group = GroupKey(f"localhost:{server.port}", "orders", GROUP)
        self.members: list[MemberProcess] = []
        self.sent: set[tuple[str, int]] = set()

    def start(self, kind: Kind) -> MemberProcess:
        member = MemberProcess(
            Task(
                kind=kind,
                hub=self._server.connection_string("orders"),
                storage=self._azurite.connection_string,
                container=self._container.rpartition("/")[2],
                journal=str(self._folder / f"{len(self.members)}.journal"),
            )
        )
        self.members.append(member)
        return member

    def send(self) -> None:
        """Some events to every partition."""
        asyncio.run(self._send())

    async def _send(self) -> None:
        hub = LocalHub(self._server.data, "orders")
        sender = await hub.open_sender()
        for number in range(PARTITIONS_COUNT):
            partition = str(number)
            await sender.send(new_events([b"x"] * EVENTS_COUNT), partition=partition)
            last = (await hub.describe_partition(partition)).last_sequence
            self.sent |= {(partition, sequence) for sequence in range(last + 1)}
        await sender.close()
        await hub.close()

    def await_balance(self, living: int) -> None:
        """Returns once all partitions are owned by as many, evenly."""
        share = PARTITIONS_COUNT // living

        def is_balanced(state: GroupState) -> bool:
            owners = Counter(one.owner_id for one in state.ownerships if one.age_seconds < SDK_EXPIRY_SECONDS)
            counts = sorted(owners.values())
            return "" not in owners and sum(counts) == PARTITIONS_COUNT and counts == [share] * living

        self._await(lambda: is_balanced(asyncio.run(self._state())))

    def await_all_take_part(self) -> None:
        """Sends until each member has handled something: who lost a partition may read on until it finds out."""

        def is_so() -> bool:
            self.send()
            return all(member.handled() for member in self.members)

        self._await(is_so)

    def await_all_handled(self) -> None:
        self._await(lambda: self.sent <= set(chain.from_iterable(member.handled() for member in self.members)))

    def await_all_checkpointed(self) -> None:
        last = dict(sorted(self.sent, key=lambda event: event[1]))
        self._await(lambda: asyncio.run(self._checkpoints()) == last)

    async def _state(self) -> GroupState:
        store = blob_store(self._container)
        try:
            return await store.list_ownership(self._group)
        finally:
            await store.close()

    async def _checkpoints(self) -> dict[str, int]:
        store = blob_store(self._container)
        try:
            return {one.key.partition: one.sequence_number for one in await store.list_checkpoints(self._group)}
        finally:
            await store.close()

    def _await(self, is_true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_true():
            if time.monotonic() > deadline:
                state = asyncio.run(self._state())
                missing = self.sent - set(chain.from_iterable(member.handled() for member in self.members))
                raise AssertionError(f"waited too long: {state}\nnot handled: {sorted(missing)}")
            time.sleep(0.2)


@pytest.fixture
def mixed(server: Server, azurite_server: Azurite, container: str, tmp_path: Path) -> Iterator[Mixed]:
    group = Mixed(server, azurite_server, container, tmp_path)
    yield group
    for member in group.members:
        member.kill()


def test_it_ends_balanced_survives_kills_and_reads_every_event(mixed: Mixed) -> None:
    kinds = (Kind.PYTHON, Kind.OURS, Kind.PYTHON, Kind.OURS)
    mixed.send()
    first_sdk, first_ours, _, _ = [mixed.start(kind) for kind in kinds]
    mixed.await_balance(4)
    mixed.await_all_take_part()
    mixed.await_all_handled()

    first_sdk.kill()
    first_ours.kill()
    mixed.send()
    mixed.await_balance(2)

    mixed.send()
    mixed.await_all_handled()


@needs_node
def test_a_member_with_the_javascript_sdk_shares_the_group(mixed: Mixed) -> None:
    mixed.send()
    for kind in (Kind.JAVASCRIPT, Kind.OURS):
        mixed.start(kind)
    mixed.await_balance(2)
    mixed.await_all_take_part()
    mixed.await_all_handled()


@needs_node
def test_each_kind_resumes_where_the_other_was(mixed: Mixed) -> None:
    for kind in (Kind.PYTHON, Kind.OURS, Kind.JAVASCRIPT, Kind.OURS):
        before = set(mixed.sent)
        mixed.send()
        member = mixed.start(kind)
        mixed.await_all_checkpointed()
        member.kill()

        assert set(member.handled()) == mixed.sent - before
