"""A handler that fails: retried, then stopped or dead-lettered; never skipped silently, and never alone for good."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import suppress

import pytest

from hubline.errors import DeadLetterLimit, HandlerFailed, HandlerStalled, HublineError, ProcessorError
from hubline.model.dead_letters import DeadLetter
from hubline.model.events import Event, EventBatch
from hubline.processor import CheckpointPolicy, PartitionContext, ReleaseReason, RetryPolicy
from tests.support.scene import LEASE, Behaviour, Scene, until, virtual


def failing(*sequences: int, times: int = 10**9) -> Behaviour:
    """Fails on any batch that holds one of the events, so often."""
    left = [times]

    async def fail(batch: EventBatch, partition: PartitionContext) -> None:
        if set(sequences) & set(batch.arrow.column("sequenceNumber").to_pylist()) and left[0]:
            left[0] -= 1
            raise ValueError(f"cannot take {sequences}")

    return fail


class TestRetry:
    @virtual
    async def test_a_handler_that_recovers_is_retried_and_nothing_is_reported(self) -> None:
        scene = Scene()
        scene.append(3)
        recorder = scene.processor(failing(1, times=2))

        async with recorder.processor:
            await until(lambda: recorder.sequences)

        assert [batch.first_sequence for batch in recorder.batches] == [0, 0, 0]
        assert (recorder.sequences, recorder.errors) == ([0, 1, 2], [])

    @virtual
    async def test_retries_wait_longer_each_time(self) -> None:
        scene = Scene()
        scene.append(1)
        retry = RetryPolicy(max_attempts=6, initial_backoff_seconds=1.0, max_backoff_seconds=8.0)
        recorder = scene.processor(failing(0, times=5), handler_retry=retry)

        async with recorder.processor:
            await until(lambda: recorder.sequences)

        waits = [later - earlier for earlier, later in itertools.pairwise(recorder.delivered_at)]
        assert all(most / 2 <= wait <= most for wait, most in zip(waits, [1, 2, 4, 8, 8], strict=True))

    @virtual
    async def test_one_attempt_is_no_retry(self) -> None:
        scene = Scene()
        scene.append(1)
        recorder = scene.processor(failing(0), handler_retry=RetryPolicy(max_attempts=1))

        async with recorder.processor:
            await until(lambda: recorder.errors)
            assert len(recorder.batches) == 1


class TestStop:
    @virtual
    async def test_a_stop_while_retrying_is_not_a_failure_of_the_partition(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        scene = Scene()
        scene.append(1)
        recorder = scene.processor(
            failing(0), handler_retry=RetryPolicy(initial_backoff_seconds=60.0, max_backoff_seconds=60.0)
        )

        async with recorder.processor:
            await until(lambda: recorder.batches)

        assert recorder.released == ["released 0 stopped"]
        assert "partition_failed" not in caplog.text

    @virtual
    async def test_the_partition_stops_and_the_error_tells_all(self) -> None:
        scene = Scene()
        scene.append(5)
        recorder = scene.processor(failing(3), max_batch_size=2)

        async with recorder.processor:
            await until(lambda: recorder.released)

        (error, *_) = recorder.errors
        assert isinstance(error, HandlerFailed)
        assert (error.partition, error.first_sequence, error.last_sequence, error.attempts) == ("0", 2, 3, 3)
        assert isinstance(error.__cause__, ValueError)
        assert "cannot take" in str(error)
        assert recorder.released[0] == "released 0 failed"

    @virtual
    async def test_it_reopens_from_its_checkpoint_and_skips_nothing(self) -> None:
        scene = Scene()
        scene.append(6)
        recorder = scene.processor(failing(3, times=7), max_batch_size=2)

        async with recorder.processor:
            await until(lambda: 5 in recorder.sequences)

        assert recorder.sequences == [0, 1, 2, 3, 4, 5]  # 0 and 1 once: they were checkpointed before it stopped
        assert await scene.checkpoint() == 5

    @virtual
    async def test_without_a_checkpoint_it_starts_over(self) -> None:
        scene = Scene()
        scene.append(4)
        recorder = scene.processor(failing(3, times=3), max_batch_size=2, checkpoint_policy=CheckpointPolicy.manual())

        async with recorder.processor:
            await until(lambda: 3 in recorder.sequences)

        assert recorder.sequences == [0, 1, 0, 1, 2, 3]

    @virtual
    async def test_it_waits_longer_each_time_and_soon_again_after_progress(self) -> None:
        scene = Scene()
        scene.append(1)
        reopen = RetryPolicy(initial_backoff_seconds=1.0, max_backoff_seconds=16.0)
        once = RetryPolicy(max_attempts=1)
        recorder = scene.processor(failing(0, 1, times=6), handler_retry=once, reconnect_backoff=reopen)

        async with recorder.processor:
            await until(lambda: recorder.sequences)
            first = list(recorder.delivered_at)
            recorder.clear()
            recorder.behaviour = failing(1, times=1)
            scene.append(1)
            await until(lambda: recorder.sequences)

        waits = [later - earlier for earlier, later in itertools.pairwise(first)]
        assert all(most / 2 <= wait <= most + 0.1 for wait, most in zip(waits, [1, 2, 4, 8, 16, 16], strict=True))
        assert recorder.delivered_at[1] - recorder.delivered_at[0] <= 1.1

    @virtual
    async def test_other_partitions_go_on(self) -> None:
        async def fail(batch: EventBatch, partition: PartitionContext) -> None:
            if partition.partition_id == "0":
                raise ValueError("always")

        scene = Scene(2)
        recorder = scene.processor(fail)
        async with recorder.processor:
            for _ in range(20):
                scene.append(1, partition="0")
                scene.append(1, partition="1")
                await asyncio.sleep(1)

        assert recorder.handled["1"] == list(range(20))
        assert recorder.handled["0"] == []

    @virtual
    async def test_a_stop_does_not_wait_for_a_long_backoff(self) -> None:
        scene = Scene()
        scene.append(1)
        reopen = RetryPolicy(initial_backoff_seconds=1e5, max_backoff_seconds=1e5)
        recorder = scene.processor(failing(0), reconnect_backoff=reopen)
        await recorder.processor.start()
        await until(lambda: recorder.released)
        started_at = asyncio.get_running_loop().time()

        await recorder.processor.stop()

        assert asyncio.get_running_loop().time() - started_at < 5
        assert await scene.owners() == {"0": ""}

    @virtual
    async def test_a_stop_does_not_wait_for_long_retries(self) -> None:
        scene = Scene()
        scene.append(1)
        retry = RetryPolicy(max_attempts=100, initial_backoff_seconds=1e5, max_backoff_seconds=1e5)
        recorder = scene.processor(failing(0), handler_retry=retry)
        await recorder.processor.start()
        await until(lambda: recorder.batches)
        started_at = asyncio.get_running_loop().time()

        await recorder.processor.stop()

        assert asyncio.get_running_loop().time() - started_at < 5
        assert await scene.owners() == {"0": ""}
        assert await scene.checkpoint() is None


class TestDeadLetters:
    @virtual
    async def test_the_failing_events_are_found_in_order_and_the_others_handled(self) -> None:
        scene = Scene()
        scene.append(40)
        recorder = scene.processor(failing(5, 6, 23), on_failure="dead_letter")

        async with recorder.processor:
            await until(lambda: 39 in recorder.sequences)

        assert [dead_letter.event.sequence_number for dead_letter in recorder.dead_letters] == [5, 6, 23]
        assert recorder.sequences == [n for n in range(40) if n not in (5, 6, 23)]
        assert recorder.released == ["released 0 stopped"]
        assert await scene.checkpoint() == 39

    @virtual
    async def test_a_dead_letter_tells_the_event_the_error_and_the_attempts(self) -> None:
        scene = Scene()
        scene.append(1, body=b"bad")
        recorder = scene.processor(failing(0), on_failure="dead_letter")

        async with recorder.processor:
            await until(lambda: recorder.dead_letters)

        (dead_letter,) = recorder.dead_letters
        assert isinstance(dead_letter, DeadLetter)
        assert (dead_letter.event.body, dead_letter.event.sequence_number, dead_letter.attempts) == (b"bad", 0, 3)
        assert (dead_letter.error_type, dead_letter.error_text) == ("ValueError", "cannot take (0,)")
        assert "in fail" in dead_letter.traceback
        assert dead_letter.key == scene.group.partition("0")

    @virtual
    async def test_every_event_comes_exactly_once_to_one_of_the_two(self) -> None:
        poison = {0, 1, 7, 8, 9, 31}
        scene = Scene()
        scene.append(32)
        recorder = scene.processor(failing(*poison), on_failure="dead_letter", max_batch_size=10)

        async with recorder.processor:
            await until(lambda: len(recorder.sequences) + len(recorder.dead_letters) == 32)

        assert sorted(
            recorder.sequences + [dead_letter.event.sequence_number for dead_letter in recorder.dead_letters]
        ) == [*range(32)]

    @virtual
    async def test_too_many_in_a_row_stop_the_partition_with_a_clear_reason(self) -> None:
        scene = Scene()
        scene.append(20)
        recorder = scene.processor(failing(*range(20)), on_failure="dead_letter", max_consecutive_failures=4)

        async with recorder.processor:
            await until(lambda: len(recorder.errors_of(DeadLetterLimit)) == 3)

        assert [dead_letter.event.sequence_number for dead_letter in recorder.dead_letters] == [0, 1, 2, 3]
        error = recorder.errors_of(DeadLetterLimit)[0]
        assert "more than 4 events in a row" in str(error)
        assert isinstance(error.__cause__, ValueError)
        assert recorder.released[0] == "released 0 failed"
        assert await scene.checkpoint() == 3  # those that were handed over are done

    @virtual
    async def test_a_success_in_between_starts_the_count_again(self) -> None:
        scene = Scene()
        scene.append(20)
        recorder = scene.processor(
            failing(*[n for n in range(20) if n % 3]),
            on_failure="dead_letter",
            max_consecutive_failures=2,
        )

        async with recorder.processor:
            await until(lambda: len(recorder.dead_letters) == 13)

        assert recorder.errors == []

    @virtual
    async def test_the_partition_recovers_from_the_limit_once_the_handler_does(self) -> None:
        scene = Scene()
        scene.append(20)
        recorder = scene.processor(failing(*range(20)), on_failure="dead_letter", max_consecutive_failures=4)

        async with recorder.processor:
            await until(lambda: recorder.errors_of(DeadLetterLimit))
            recorder.behaviour = None
            await until(lambda: 19 in recorder.sequences)

        assert recorder.sequences == list(range(4, 20))

    @virtual
    async def test_a_dead_letter_that_is_not_taken_stops_the_partition_and_comes_again(self) -> None:
        refused: list[int] = []

        async def refuse_twice(dead_letter: DeadLetter) -> None:
            if len(refused) < 2:
                refused.append(dead_letter.event.sequence_number)
                raise OSError("the dead letters' disk is full")

        scene = Scene()
        scene.append(6)
        recorder = scene.processor(failing(3), on_failure="dead_letter")
        recorder.lettering = refuse_twice

        async with recorder.processor:
            await until(lambda: recorder.dead_letters)

        assert refused == [3, 3]
        assert [dead_letter.event.sequence_number for dead_letter in recorder.dead_letters] == [3]
        error = recorder.errors[0]
        assert isinstance(error, HandlerFailed)
        assert "on_dead_letter failed for partition 0, event 3" in str(error)
        assert "the dead letters' disk is full" in str(error)
        assert (error.first_sequence, error.last_sequence) == (3, 3)
        assert sorted(recorder.sequences) == [0, 1, 2, 4, 5]  # none again: what came before was checkpointed

    @virtual
    async def test_a_checkpoint_after_a_dead_letter_covers_it_and_no_more(self) -> None:
        async def save(dead_letter: DeadLetter, partition: PartitionContext) -> None:
            await partition.checkpoint()
            seen.append(await scene.checkpoint())

        seen: list[int | None] = []
        scene = Scene()
        scene.append(6)
        processor = scene.bare(on_failure="dead_letter", checkpoint_policy=CheckpointPolicy.manual())
        behaviour = failing(3)
        processor.on_batch(behaviour)
        processor.on_dead_letter(save)
        async with processor:
            await until(lambda: seen)

        assert seen == [3]


class TestOtherHandlers:
    @virtual
    async def test_on_assigned_that_fails_is_retried_before_any_event_comes(self) -> None:
        attempts: list[int] = []

        def fail_twice(partition: PartitionContext) -> None:
            attempts.append(partition.epoch)
            if len(attempts) < 3:
                raise OSError("the table is locked")

        scene = Scene()
        scene.append(2)
        recorder = scene.processor()
        recorder.assigning = fail_twice
        async with recorder.processor:
            await until(lambda: recorder.sequences)

        assert len(attempts) == 3
        assert [str(error) for error in recorder.errors] == [
            "on_assigned failed for partition 0, in attempt 1: OSError: the table is locked. "
            "Correct the handler, or what it uses."
        ] * 2
        assert recorder.sequences == [0, 1]
        assert recorder.released == ["released 0 stopped"]  # not for those that were never assigned

    @pytest.mark.parametrize("name", ["on_released", "on_renewed"])
    @virtual
    async def test_others_that_fail_are_reported_and_change_nothing(self, name: str) -> None:
        scene = Scene()
        processor = scene.bare()
        errors: list[HublineError] = []
        handled: list[int] = []

        @processor.on_batch
        async def handle(batch: EventBatch) -> None:
            handled.append(len(batch))

        @processor.on_error
        async def note(error: HublineError) -> None:
            errors.append(error)

        async def fail(partition: PartitionContext) -> None:
            raise OSError("nobody home")

        getattr(processor, name)(fail)
        async with processor:
            for _ in range(10):
                scene.append(1)
                await asyncio.sleep(1)

        assert sum(handled) == 10
        assert all(isinstance(error, HandlerFailed) and name in str(error) for error in errors)
        assert errors
        assert await scene.checkpoint() == 9
        assert await scene.owners() == {"0": ""}

    @virtual
    async def test_on_renewed_comes_only_while_the_partition_is_assigned(self) -> None:
        scene = Scene()
        scene.append(1)
        recorder = scene.processor(
            failing(0), reconnect_backoff=RetryPolicy(initial_backoff_seconds=20.0, max_backoff_seconds=20.0)
        )
        recorder.processor.on_renewed(lambda partition: recorder.happened.append("renewed 0"))
        async with recorder.processor:
            await asyncio.sleep(60)

        is_assigned = False
        for what in recorder.happened:
            if what == "renewed 0":
                assert is_assigned, recorder.happened
            else:
                is_assigned = what.startswith("assigned")

    @virtual
    async def test_a_slow_on_renewed_does_not_pile_up(self) -> None:
        running = [0, 0]

        async def slow(partition: PartitionContext) -> None:
            running[0] += 1
            running[1] = max(running)
            await asyncio.sleep(50)
            running[0] -= 1

        recorder = Scene().processor()
        recorder.processor.on_renewed(slow)
        async with recorder.processor:
            await asyncio.sleep(200)

        assert running[1] == 1

    @virtual
    async def test_every_assignment_is_followed_by_a_release(self) -> None:
        scene = Scene(3)
        for partition in range(3):
            scene.append(5, partition=str(partition))
        recorder = scene.processor(failing(4, times=20))
        async with recorder.processor:
            await asyncio.sleep(30)

        for partition in range(3):
            mine = [what.split()[0] for what in recorder.happened if what.split()[1] == str(partition)]
            assert mine == ["assigned", "released"] * (len(mine) // 2)


class TestCancellation:
    @pytest.mark.parametrize("way", ["raise", "cancel own task", "cancel own task and wait"])
    @virtual
    async def test_a_handler_that_cancels_itself_fails_and_its_partition_goes_on(self, way: str) -> None:
        async def cancel_once(batch: EventBatch, partition: PartitionContext) -> None:
            if len(recorder.batches) > 1:
                return
            if way == "raise":
                raise asyncio.CancelledError
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            if way == "cancel own task and wait":
                await asyncio.sleep(1)

        scene = Scene()
        scene.append(2)
        recorder = scene.processor(cancel_once)
        async with recorder.processor:
            await until(lambda: recorder.sequences)
            scene.append(1)
            await until(lambda: 2 in recorder.sequences)

        assert len(recorder.batches) == 3
        assert recorder.errors == []

    @virtual
    async def test_a_handler_that_takes_too_long_is_cancelled_and_fails(self) -> None:
        ended: list[str] = []

        async def hang(batch: EventBatch, partition: PartitionContext) -> None:
            if len(recorder.batches) == 1:
                try:
                    await asyncio.sleep(1e6)
                finally:
                    ended.append("cancelled")

        scene = Scene()
        scene.append(2)
        recorder = scene.processor(hang, handler_timeout_seconds=10.0, handler_retry=RetryPolicy(max_attempts=1))
        async with recorder.processor:
            await until(lambda: recorder.sequences)

        assert ended == ["cancelled"]
        assert "handler_timeout_seconds=10" in str(recorder.errors[0])
        assert recorder.sequences == [0, 1]

    @virtual
    @pytest.mark.parametrize("reaction", ["ends", "raises", "goes on", "uncancels"])
    async def test_an_event_has_the_whole_time_limit_and_only_the_one_that_hangs_fails(self, reaction: str) -> None:
        scene = Scene()
        scene.append(8)
        dead_letters: list[DeadLetter] = []
        handled: list[int] = []
        retry = RetryPolicy(max_attempts=1)
        processor = scene.bare(handler_timeout_seconds=10.0, handler_retry=retry, on_failure="dead_letter")
        processor.on_dead_letter(dead_letters.append)

        @processor.on_event
        async def handle(event: Event) -> None:
            await asyncio.sleep(9)
            if event.sequence_number == 3:
                try:
                    await asyncio.sleep(1e6)
                except asyncio.CancelledError:
                    if reaction == "raises":
                        raise ValueError("cancelled") from None
                    if reaction == "ends":
                        raise
                    if reaction == "uncancels":
                        task = asyncio.current_task()
                        assert task is not None
                        task.uncancel()
            handled.append(event.sequence_number)

        async with processor:
            await until(lambda: len(handled) == (7 if reaction in ("ends", "raises") else 8) and dead_letters)

        (dead_letter,) = dead_letters
        assert (dead_letter.event.sequence_number, dead_letter.error_type) == (3, "TimeoutError")
        assert "handler_timeout_seconds=10" in dead_letter.error_text
        assert [each for each in handled if each != 3] == [0, 1, 2, 4, 5, 6, 7]

    @virtual
    async def test_one_that_outlives_its_lease_is_waited_for_before_the_partition_is_opened_again(self) -> None:
        """It takes no notice of being cancelled; meanwhile the lease is lost, and won back."""
        running = [0]

        async def stubborn(batch: EventBatch, partition: PartitionContext) -> None:
            running[0] += 1
            assert running[0] == 1, "two handlers of one partition at once"
            if len(recorder.batches) == 1:
                scene.store.go_down()
                scene.loop.call_later(LEASE.lease_seconds * 2, scene.store.come_up)
                for _ in range(10):
                    with suppress(asyncio.CancelledError):
                        await asyncio.sleep(LEASE.lease_seconds)
            running[0] -= 1

        scene = Scene()
        scene.append(2)
        recorder = scene.processor(stubborn)
        async with recorder.processor:
            await until(lambda: len(recorder.batches) == 2)

        assert recorder.released[0] == "released 0 lost"
        assert recorder.batches[1].first_sequence == 0

    @virtual
    async def test_a_handlers_own_timeout_is_its_own_error(self) -> None:
        async def time_out(batch: EventBatch, partition: PartitionContext) -> None:
            async with asyncio.timeout(1):
                await asyncio.sleep(100)

        scene = Scene()
        scene.append(1)
        recorder = scene.processor(time_out, handler_timeout_seconds=50.0)
        async with recorder.processor:
            await until(lambda: recorder.errors)

        assert isinstance(recorder.errors[0].__cause__, TimeoutError)
        assert "handler_timeout_seconds" not in str(recorder.errors[0])

    @virtual
    async def test_a_handler_that_runs_very_long_is_reported_and_goes_on(self) -> None:
        async def take_long(batch: EventBatch, partition: PartitionContext) -> None:
            await asyncio.sleep(100)

        scene = Scene()
        scene.append(2)
        recorder = scene.processor(take_long, slow_handler_seconds=30.0)
        async with recorder.processor:
            await until(lambda: recorder.sequences)

        (error,) = recorder.errors
        assert isinstance(error, HandlerStalled)
        assert error.partition == "0"
        assert error.seconds == pytest.approx(30)
        assert "sequences 0..1" in str(error)
        assert recorder.sequences == [0, 1]


class TestStopping:
    @virtual
    async def test_a_batch_in_progress_is_finished_and_checkpointed(self) -> None:
        async def take_long(batch: EventBatch, partition: PartitionContext) -> None:
            await asyncio.sleep(10)

        scene = Scene()
        scene.append(4)
        recorder = scene.processor(take_long, max_batch_size=2)
        await recorder.processor.start()
        await until(lambda: recorder.batches)

        await recorder.processor.stop()

        assert (recorder.sequences, await scene.checkpoint()) == ([0, 1], 1)
        assert recorder.released == ["released 0 stopped"]
        assert await scene.owners() == {"0": ""}

    @virtual
    async def test_a_handler_that_hangs_does_not_hang_the_stop(self) -> None:
        async def hang(batch: EventBatch, partition: PartitionContext) -> None:
            await asyncio.sleep(1e6)

        scene = Scene(2)
        scene.append(1, partition="1")
        recorder = scene.processor(hang, stop_timeout_seconds=20.0)
        await recorder.processor.start()
        await until(lambda: recorder.batches)
        started_at = asyncio.get_running_loop().time()

        await recorder.processor.stop()

        assert asyncio.get_running_loop().time() - started_at == pytest.approx(20, abs=0.5)
        (error,) = recorder.errors_of(ProcessorError)
        assert "longer than 20 s" in str(error)
        assert "partitions 1 stay owned" in str(error)
        assert await scene.checkpoint("1") is None

    @virtual
    async def test_a_stop_that_is_cut_short_leaves_nothing_running(self) -> None:
        async def hang(batch: EventBatch, partition: PartitionContext) -> None:
            await asyncio.sleep(1e6)

        scene = Scene()
        scene.append(1)
        recorder = scene.processor(hang)
        await recorder.processor.start()
        await until(lambda: recorder.batches)

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(recorder.processor.stop(), 1)

        await recorder.processor.stop()
        assert recorder.sequences == []

    @virtual
    async def test_a_batch_that_waits_to_fill_up_does_not_hold_up_the_stop(self) -> None:
        scene = Scene()
        scene.append(1)
        recorder = scene.processor(max_wait_seconds=1e5)
        await recorder.processor.start()
        await until(lambda: recorder.owned)
        await asyncio.sleep(10)
        started_at = asyncio.get_running_loop().time()

        await recorder.processor.stop()

        assert asyncio.get_running_loop().time() - started_at < 1
        assert (recorder.batches, await scene.checkpoint()) == ([], None)

    @virtual
    async def test_stopping_twice_at_once_waits_for_both(self) -> None:
        async def take_long(batch: EventBatch, partition: PartitionContext) -> None:
            await asyncio.sleep(10)

        scene = Scene()
        scene.append(2)
        recorder = scene.processor(take_long)
        await recorder.processor.start()
        await until(lambda: recorder.batches)

        await asyncio.gather(recorder.processor.stop(), recorder.processor.stop())
        await recorder.processor.stop()

        assert recorder.sequences == [0, 1]
        assert recorder.released == ["released 0 stopped"]

    @virtual
    async def test_a_handler_that_stops_its_own_processor_learns_how(self) -> None:
        async def stop(batch: EventBatch, partition: PartitionContext) -> None:
            await recorder.processor.stop()

        scene = Scene()
        scene.append(1)
        recorder = scene.processor(stop)
        async with recorder.processor:
            await until(lambda: recorder.errors, seconds_max=10)

        assert isinstance(recorder.errors[0].__cause__, ProcessorError)
        assert "create_task" in str(recorder.errors[0].__cause__)

    @virtual
    async def test_a_handler_may_have_its_processor_stopped_by_a_task(self) -> None:
        async def stop(batch: EventBatch, partition: PartitionContext) -> None:
            stopping.append(asyncio.create_task(recorder.processor.stop()))

        stopping: list[asyncio.Task[None]] = []
        scene = Scene()
        scene.append(2)
        recorder = scene.processor(stop)
        await recorder.processor.start()
        await until(lambda: stopping)
        await stopping[0]

        assert (recorder.sequences, await scene.checkpoint()) == ([0, 1], 1)

    @virtual
    async def test_on_error_may_stop_the_processor(self) -> None:
        scene = Scene()
        scene.append(1)
        processor = scene.bare()
        stopped: list[float] = []
        loop = asyncio.get_running_loop()

        @processor.on_batch
        async def fail(batch: EventBatch) -> None:
            raise ValueError("always")

        @processor.on_error
        async def give_up(error: HublineError) -> None:
            if not stopped:
                stopped.append(loop.time())
                await processor.stop()
                stopped.append(loop.time())

        await processor.start()
        await until(lambda: len(stopped) == 2)

        assert stopped[1] - stopped[0] < 5
        assert await scene.owners() == {"0": ""}

    @virtual
    async def test_a_processor_that_is_stopped_at_once_after_its_start_ends_well(self) -> None:
        for delay in (0.0, 0.4, 0.5, 0.500001, 0.6):
            scene = Scene(2)
            scene.append(3)
            recorder = scene.processor()
            await recorder.processor.start()
            await asyncio.sleep(delay)
            await recorder.processor.stop()
            assert set((await scene.owners()).values()) <= {""}

    @virtual
    async def test_what_happens_to_a_partition_when_it_is_released_is_reported(self) -> None:
        scene = Scene()
        reasons: list[ReleaseReason] = []
        processor = scene.bare()
        processor.on_batch(failing())

        @processor.on_released
        async def note(partition: PartitionContext, reason: ReleaseReason) -> None:
            reasons.append(reason)

        async with processor:
            await until(lambda: processor.partitions)
            await asyncio.sleep(1)

        assert reasons == [ReleaseReason.STOPPED]
