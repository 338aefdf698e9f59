"""How often something is tried again, and after which pause: the only backoff in hubline."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hubline.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how soon something is tried again: exponential backoff, shortened by a random 0-50%.

    Instances that failed together thus do not all come back at the same moment.
    """

    max_attempts: int = 3
    initial_backoff_seconds: float = 0.5
    max_backoff_seconds: float = 30.0

    def __post_init__(self) -> None:
        if self.max_attempts < 1:
            raise ConfigError(f"a handler is tried at least once, not {self.max_attempts} times")
        if not 0 <= self.initial_backoff_seconds <= self.max_backoff_seconds:
            raise ConfigError("a backoff is not negative, and not above its maximum")

    def delay(self, attempt: int, rng: random.Random) -> float:
        """Seconds to wait after the given failed attempt (from 1): the backoff, shortened by a random 0-50%."""
        # 2 ** 30 backoffs are beyond any maximum; the bound keeps the power from growing without end.
        backoff = min(self.initial_backoff_seconds * 2.0 ** min(attempt - 1, 30), self.max_backoff_seconds)
        return backoff * rng.uniform(0.5, 1.0)
