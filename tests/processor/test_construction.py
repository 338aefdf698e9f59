"""What cannot work is refused with a typed error that says why, and leaves nothing running."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
from pathlib import Path
from typing import Any

import pytest

import hubline
from hubline.checkpoint_stores.memory import MemoryStore
from hubline.coordination.strategies import Balanced, Fixed, Greedy
from hubline.errors import ConfigError, HubNotFound, ProcessorError, StoreError, StoreUnavailable
from hubline.hubs.local import create_hub
from hubline.model.events import EventBatch
from hubline.model.positions import Position
from hubline.processor import (
    CheckpointPolicy,
    LeaseOptions,
    Processor,
    ProcessorOptions,
    RetryPolicy,
)
from hubline.testing.memory_hub import MemoryHub
from tests.support.scene import LEASE, FaultyStore, Scene, until, virtual


def processor_of(hub: Any = None, store: Any = None, **arguments: Any) -> Processor:
    arguments = {"consumer_group": "tests", "starting_position": Position.earliest(), **arguments}
    processor = Processor(hub or MemoryHub(1), store or MemoryStore(), **arguments)

    @processor.on_batch
    async def handle(batch: EventBatch) -> None: ...

    return processor


@pytest.fixture(scope="module", autouse=True)
def _what_is_there_is_not_collected() -> Any:
    """Looking through all that a test run has loaded takes a third of a second, each time."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _nothing_is_left_running() -> Any:
    before = set(threading.enumerate())
    yield
    gc.collect()  # what is left open warns when it is collected, and warnings are errors
    left = set(threading.enumerate()) - before
    assert not left, f"threads are left running: {left}"


class TestArguments:
    @pytest.mark.parametrize(
        ("hub", "store"),
        [
            ("", "memory:"),
            ("nonsense", "memory:"),
            ("local:", "memory:"),
            ("local:/tmp", "nonsense"),
            ("local:/tmp/hub", ""),
            ("local:/tmp/hub", "sqlite://"),
        ],
    )
    def test_a_mistyped_address_is_refused(self, hub: str, store: str) -> None:
        with pytest.raises(ConfigError):
            Processor(hub, store, consumer_group="tests", starting_position=Position.earliest())

    @pytest.mark.parametrize("group", ["", "a b", "x" * 300, "a/b", "tab\t"])
    def test_a_bad_group_is_refused(self, group: str) -> None:
        with pytest.raises(ConfigError, match="consumer group"):
            processor_of(consumer_group=group)

    def test_the_default_group_is_one_however_it_is_spelled(self) -> None:
        assert (
            processor_of(consumer_group="$default")._group_name == processor_of(consumer_group="$Default")._group_name
        )

    @pytest.mark.parametrize("owner_id", ["with space", "x" * 1000, "new\nline", "größe"])
    def test_a_bad_owner_id_is_refused(self, owner_id: str) -> None:
        with pytest.raises(ConfigError, match="owner id"):
            processor_of(owner_id=owner_id)

    def test_owner_ids_are_unique_unless_given(self) -> None:
        assert processor_of().owner_id != processor_of().owner_id
        assert processor_of(owner_id="mine").owner_id == "mine"

    def test_an_empty_owner_id_is_refused_rather_than_replaced(self) -> None:
        with pytest.raises(ConfigError, match="owner id"):
            processor_of(owner_id="")

    def test_positions_by_partition_need_a_general_one(self) -> None:
        with pytest.raises(ConfigError, match=r"\*"):
            processor_of(starting_position={"0": Position.latest()})

    @pytest.mark.parametrize("start", ["erliest", None, 5])
    def test_a_start_that_is_not_a_position_is_refused(self, start: Any) -> None:
        with pytest.raises(ConfigError, match="position"):
            processor_of(starting_position=start)

    @pytest.mark.parametrize("strategy", [Greedy, "gready", 3])
    def test_a_strategy_that_is_none_is_refused(self, strategy: Any) -> None:
        with pytest.raises(ConfigError, match=r"load balancing strategy|load_balancing must be a Strategy"):
            processor_of(load_balancing=strategy)

    @pytest.mark.parametrize("make", [lambda: Balanced(0), lambda: Greedy(-1), lambda: Fixed(0)])
    def test_a_strategy_of_no_partitions_is_refused(self, make: Any) -> None:
        with pytest.raises(ConfigError):
            make()


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"max_batch_size": 0}, "max_batch_size"),
            ({"prefetch_bytes": 0}, "prefetch_bytes"),
            ({"max_consecutive_failures": 0}, "max_consecutive_failures"),
            ({"max_wait_seconds": -1}, "max_wait_seconds"),
            ({"max_wait_seconds": math.nan}, "max_wait_seconds"),
            ({"heartbeat": True}, "max_wait_seconds"),
            ({"slow_handler_seconds": 0}, "slow_handler_seconds"),
            ({"hub_timeout_seconds": 0}, "hub_timeout_seconds"),
            ({"stop_timeout_seconds": 0}, "stop_timeout_seconds"),
            ({"stop_timeout_seconds": math.nan}, "stop_timeout_seconds"),
            ({"handler_timeout_seconds": 0}, "handler_timeout_seconds"),
            ({"on_failure": "skip"}, "on_failure.*stop.*dead_letter"),
            ({"on_data_loss": "guess"}, "on_data_loss.*fail.*earliest.*latest"),
        ],
    )
    def test_an_option_that_cannot_work_is_refused(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            ProcessorOptions(**options)

    @pytest.mark.parametrize(
        "options",
        [
            {"lease_seconds": 0},
            {"lease_seconds": math.nan},
            {"load_balancing_interval_seconds": 0},
            {"renew_interval_seconds": -1},
            {"handover_timeout_seconds": -1},
            {"startup_delay_seconds": -1},
            {"lease_seconds": 29.0, "renew_interval_seconds": 10.0},
        ],
    )
    def test_a_lease_that_cannot_work_is_refused(self, options: dict[str, Any]) -> None:
        with pytest.raises(ConfigError):
            LeaseOptions(**options)

    def test_a_lease_shorter_than_three_renewals_says_what_to_do(self) -> None:
        with pytest.raises(ConfigError, match="at least 30 s, or renew more often"):
            LeaseOptions(lease_seconds=20, renew_interval_seconds=10)

    def test_a_lease_of_exactly_three_renewals_is_fine(self) -> None:
        for lease_seconds in (0.3, 1.0, 30.0, 100.0):
            lease = LeaseOptions(lease_seconds=lease_seconds)
            assert (
                LeaseOptions(lease_seconds=lease_seconds, renew_interval_seconds=lease.renew_interval_seconds) == lease
            )

    @pytest.mark.parametrize(
        "make",
        [
            CheckpointPolicy.every,
            lambda: CheckpointPolicy.every(events=0),
            lambda: CheckpointPolicy.every(seconds=0),
            lambda: CheckpointPolicy.every(seconds=math.nan),
            lambda: RetryPolicy(max_attempts=0),
            lambda: RetryPolicy(initial_backoff_seconds=-1),
            lambda: RetryPolicy(initial_backoff_seconds=5, max_backoff_seconds=1),
            lambda: RetryPolicy(initial_backoff_seconds=math.nan),
        ],
    )
    def test_a_policy_that_cannot_work_is_refused(self, make: Any) -> None:
        with pytest.raises(ConfigError):
            make()

    def test_choices_are_words(self) -> None:
        options = ProcessorOptions(on_failure="dead_letter", on_data_loss="latest")

        assert options.on_failure == "dead_letter"
        assert options.on_data_loss == "latest"

    def test_an_unknown_choice_is_refused_with_the_nearest_right_one(self) -> None:
        wrong: Any = {"on_failure": "dead_leter"}
        with pytest.raises(ConfigError, match=r"stop, dead_letter or None, not .* \(did you mean dead_letter\?"):
            ProcessorOptions(**wrong)

        wrong = {"on_data_loss": False}
        with pytest.raises(ConfigError, match=r"on_data_loss must be fail, earliest or latest, not False\.$"):
            ProcessorOptions(**wrong)


class TestStarting:
    @virtual
    async def test_a_processor_without_a_batch_handler_does_not_start(self) -> None:
        processor = Processor(
            MemoryHub(1), MemoryStore(), consumer_group="tests", starting_position=Position.earliest()
        )

        with pytest.raises(ConfigError, match="on_batch"):
            await processor.start()

    @virtual
    async def test_dead_letters_need_a_handler(self) -> None:
        processor = processor_of(options=ProcessorOptions(on_failure="dead_letter"))

        with pytest.raises(ConfigError, match="on_dead_letter"):
            await processor.start()

    @virtual
    async def test_a_limit_on_a_plain_handler_is_refused_since_a_thread_cannot_be_cancelled(self) -> None:
        processor = Processor(
            MemoryHub(1),
            MemoryStore(),
            consumer_group="tests",
            starting_position=Position.earliest(),
            options=ProcessorOptions(handler_timeout_seconds=1.0),
        )
        processor.on_batch(lambda batch: None)

        with pytest.raises(ConfigError, match=r"handler_timeout_seconds.*async"):
            await processor.start()

    @pytest.mark.parametrize("address", ["local:{}/missing", "local:{}/folder/missing"])
    def test_a_missing_hub_is_named(self, tmp_path: Path, address: str) -> None:
        async def main() -> None:
            processor = processor_of(address.format(tmp_path), f"sqlite:///{tmp_path}/state.db")

            with pytest.raises(HubNotFound, match="missing"):
                await processor.start()

        asyncio.run(main())

    def test_a_store_that_cannot_be_opened_is_named(self, tmp_path: Path) -> None:
        async def main() -> None:
            await create_hub(tmp_path, "hub", partitions=1)
            processor = processor_of(f"local:{tmp_path}/hub", f"sqlite:///{tmp_path}/no/such/folder/state.db")

            with pytest.raises(StoreError, match="there is no folder"):
                await processor.start()

        asyncio.run(main())

    def test_a_store_that_cannot_be_reached_is_named(self, tmp_path: Path) -> None:
        async def main() -> None:
            await create_hub(tmp_path, "hub", partitions=1)
            processor = processor_of(f"local:{tmp_path}/hub", "postgresql://user:secret@127.0.0.1:1/db")

            with pytest.raises(StoreUnavailable) as refused:
                async with processor:
                    pass
            assert "127.0.0.1" in str(refused.value)
            assert "secret" not in str(refused.value)

        asyncio.run(main())

    @virtual
    async def test_a_store_that_never_answers_does_not_hang_the_start(self) -> None:
        scene = Scene()
        scene.store.delay_seconds["renew_ownership"] = 1e9

        with pytest.raises(StoreUnavailable, match="did not answer"):
            await scene.processor().processor.start()

    @virtual
    async def test_a_first_call_that_takes_longer_than_a_renewal_is_waited_for(self) -> None:
        """It connects, and may create the schema beside others; no lease runs yet that it could cost."""
        scene = Scene()
        scene.store.delay_seconds["renew_ownership"] = 2 * LEASE.lease_seconds
        recorder = scene.processor()

        await recorder.processor.start()

        scene.store.delay_seconds.clear()
        await until(lambda: recorder.owned)
        await recorder.processor.stop()

    def test_a_start_that_is_cut_short_leaves_nothing_running(self) -> None:
        async def main() -> None:
            store = FaultyStore(MemoryStore())
            store.delay_seconds["renew_ownership"] = 1e6
            processor = processor_of(store=store)

            with pytest.raises(TimeoutError):
                await asyncio.wait_for(processor.start(), 0.1)

            await processor.stop()

        asyncio.run(main())

    @virtual
    async def test_a_processor_that_could_not_start_can_be_stopped(self) -> None:
        scene = Scene()
        scene.store.go_down()
        processor = scene.processor().processor

        with pytest.raises(StoreUnavailable):
            await processor.start()

        await processor.stop()
        assert processor.partitions == []

    @virtual
    async def test_a_processor_starts_once(self) -> None:
        processor = Scene().processor().processor
        async with processor:
            with pytest.raises(ProcessorError, match="already started"):
                await processor.start()
        with pytest.raises(ProcessorError, match="Create another one"):
            await processor.start()

    @virtual
    async def test_what_needs_a_running_processor_says_so(self) -> None:
        processor = Scene().processor().processor

        for ask in (processor.pause, processor.resume):
            with pytest.raises(ProcessorError, match="is not running"):
                ask()
        assert processor.partitions == []
        await processor.stop()

    def test_a_stop_before_the_start_stops_nothing(self, tmp_path: Path) -> None:
        async def main() -> None:
            await create_hub(tmp_path, "hub", partitions=1)
            processor = processor_of(f"local:{tmp_path}/hub", f"sqlite:///{tmp_path}/state.db")
            await processor.stop()
            async with processor:
                await until(lambda: processor.partitions, seconds_max=30)

        asyncio.run(main())

    def test_everything_made_from_addresses_is_closed_at_the_end(self, tmp_path: Path) -> None:
        async def main() -> None:
            await create_hub(tmp_path, "hub", partitions=2)
            async with processor_of(f"local:{tmp_path}/hub", f"sqlite:///{tmp_path}/state.db"):
                pass

        asyncio.run(main())

    def test_what_was_given_as_an_object_stays_open(self, tmp_path: Path) -> None:
        async def main() -> None:
            await create_hub(tmp_path, "hub", partitions=2)
            hub = hubline.open_hub(f"local:{tmp_path}/hub")
            async with processor_of(hub, f"sqlite:///{tmp_path}/state.db"):
                pass
            assert (await hub.describe()).partition_ids == ("0", "1")
            await hub.close()

        asyncio.run(main())
