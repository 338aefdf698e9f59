"""Writes that start again because another was first."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

from hubline.errors import StoreUnavailable

CONTENTION_MAX: Final = 100
"""How often a write starts again because another was first. Who is to be fenced off may write all the time; each try
has a fair chance to come between two of its writes."""

CONTENTION_SECONDS: Final = 0.02
"""About what a write takes."""


async def contend(attempt: Callable[[], Awaitable[bool]], *, what: str) -> None:
    """Repeats an attempt until it says that nobody came in between. Raises StoreUnavailable."""
    for _ in range(CONTENTION_MAX):
        if await attempt():
            return
        await yield_to_others()
    raise contended(what)


async def yield_to_others() -> None:
    """Those who lost a race wait a little, each another time, so that they do not meet again."""
    await asyncio.sleep(random.uniform(0, CONTENTION_SECONDS))  # noqa: S311


def contended(what: str) -> StoreUnavailable:
    return StoreUnavailable(
        f"{what} was changed by other consumers during each of {CONTENTION_MAX} attempts. Try again."
    )
