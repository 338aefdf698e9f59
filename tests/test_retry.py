import asyncio

import pytest

from hubline.errors import HubNotFound, HubUnavailable
from hubline.retry import Backoff, RetryPolicy, retrying
from tests.support.scene import virtual

POLICY = RetryPolicy(initial_backoff_seconds=1.0, max_backoff_seconds=4.0)


class Calls:
    """A call that fails as often as it has failures, and the times at which it was tried."""

    def __init__(self, *failures: Exception) -> None:
        self._failures = list(failures)
        self.times: list[float] = []

    async def __call__(self) -> str:
        self.times.append(asyncio.get_running_loop().time())
        if self._failures:
            raise self._failures.pop(0)
        return "done"


class TestRetrying:
    @virtual
    async def test_it_tries_again_until_the_call_works(self) -> None:
        call, reported = Calls(HubUnavailable("first"), HubUnavailable("second")), list[str]()

        result = await retrying(
            call,
            POLICY,
            on=HubUnavailable,
            timeout_seconds=60.0,
            report=lambda error: reported.append(str(error)),
        )

        assert result == "done"
        assert reported == ["first", "second"]
        first, second, third = call.times
        assert 0.5 <= second - first <= 1.0
        assert 1.0 <= third - second <= 2.0

    @virtual
    async def test_no_try_begins_after_the_timeout(self) -> None:
        call = Calls(*[HubUnavailable(f"{number}") for number in range(100)])
        began = asyncio.get_running_loop().time()

        with pytest.raises(HubUnavailable) as caught:
            await retrying(call, POLICY, on=HubUnavailable, timeout_seconds=10.0)

        assert str(caught.value) == str(len(call.times) - 1)
        assert 6.0 <= call.times[-1] - began < 10.0

    @virtual
    async def test_another_failure_is_raised_at_once(self) -> None:
        call = Calls(HubNotFound("gone"))

        with pytest.raises(HubNotFound):
            await retrying(call, POLICY, on=HubUnavailable, timeout_seconds=60.0)

        assert len(call.times) == 1


class TestBackoff:
    def test_waits_grow_until_something_works(self) -> None:
        backoff = Backoff(POLICY)

        growing = [backoff.next_delay() for _ in range(4)]
        backoff.reset()

        assert all(limit / 2 <= delay <= limit for delay, limit in zip(growing, [1.0, 2.0, 4.0, 4.0], strict=True))
        assert backoff.next_delay() <= 1.0
