"""How often something is tried again, and after which pause."""

from __future__ import annotations

import random
from dataclasses import dataclass

from hubline.errors import ConfigError


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how soon something is tried again: exponential backoff with full jitter."""

    attempts_max: int = 3
    backoff_seconds: float = 0.5
    backoff_seconds_max: float = 30.0

    def __post_init__(self) -> None:
        if self.attempts_max < 1:
            raise ConfigError(f"a handler is tried at least once, not {self.attempts_max} times")
        if not 0 <= self.backoff_seconds <= self.backoff_seconds_max:
            raise ConfigError("a backoff is not negative, and not above its maximum")

    def delay(self, attempt: int, rng: random.Random) -> float:
        """Seconds to wait after the given failed attempt (from 1), between half and all of the backoff."""
        # 2 ** 30 backoffs are beyond any maximum; the bound keeps the power from growing without end.
        backoff = min(self.backoff_seconds * 2.0 ** min(attempt - 1, 30), self.backoff_seconds_max)
        return backoff * rng.uniform(0.5, 1.0)
