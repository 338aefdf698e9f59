"""How often a call is retried, and after which pause: the only backoff in hubline."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from hubline.addresses.option_checks import checked_options
from hubline.addresses.option_kinds import Count, Seconds
from hubline.errors import ConfigError

Failure = TypeVar("Failure", bound=Exception)
Result = TypeVar("Result")


@checked_options
@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how soon a call is retried: exponential backoff, shortened by a random 0-50%.

    Instances that failed together thus do not all come back at the same moment.

    Attributes:
        max_attempts: How often it is tried, the first time included. Default: 3.
        initial_backoff_seconds: The pause after the first failed attempt; each one after it is twice as long.
            Default: 0.5.
        max_backoff_seconds: The longest pause. Default: 30.

    Raises:
        ConfigError: An option is of the wrong type, or is not allowed.
    """

    max_attempts: Count = 3
    initial_backoff_seconds: Seconds = 0.5
    max_backoff_seconds: Seconds = 30.0

    def __post_init__(self) -> None:
        if self.initial_backoff_seconds > self.max_backoff_seconds:
            raise ConfigError(
                f"RetryPolicy: initial_backoff_seconds must be at most max_backoff_seconds, and "
                f"{self.initial_backoff_seconds:g} is more than {self.max_backoff_seconds:g}. Change one of them."
            )

    def delay(self, attempt: int, rng: random.Random) -> float:
        """Return how many seconds to wait after a failed attempt: the backoff, shortened by a random 0-50%.

        Args:
            attempt: Which attempt failed, from 1.
            rng: The source of randomness.
        """
        # 2 ** 30 backoffs are beyond any maximum; the bound keeps the power from growing without end.
        backoff = min(self.initial_backoff_seconds * 2.0 ** min(attempt - 1, 30), self.max_backoff_seconds)
        return backoff * rng.uniform(0.5, 1.0)


class Backoff:
    """The waits between failures, each longer than the one before, until something works again."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._rng = random.Random()  # noqa: S311 - spreads load, guards nothing
        self._failures = 0

    def next_delay(self) -> float:
        """Counts a failure. Returns how many seconds to wait after it."""
        self._failures += 1
        return self._policy.delay(self._failures, self._rng)

    async def wait(self) -> None:
        """Counts a failure, and waits after it."""
        await asyncio.sleep(self.next_delay())

    def reset(self) -> None:
        """Something works: the next failure is the first one again."""
        self._failures = 0


async def retrying(
    call: Callable[[], Awaitable[Result]],
    policy: RetryPolicy,
    *,
    on: type[Failure],
    timeout_seconds: float,
    report: Callable[[Failure], object] | None = None,
) -> Result:
    """The result of a call, which is retried where it fails in this way. No try begins after the timeout.

    Args:
        call: Starts one try.
        policy: The waits between tries. Its number of attempts does not count.
        on: The failures after which to try again. The last one is raised.
        timeout_seconds: How long to keep trying.
        report: Is given each failure after which the call is retried.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_seconds
    backoff = Backoff(policy)
    while True:
        try:
            return await call()
        except on as error:
            delay = backoff.next_delay()
            if loop.time() + delay >= deadline:
                raise
            if report is not None:
                report(error)
        await asyncio.sleep(delay)
