"""A processor for virtual time."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from hubline.processor import Processor


def make_virtual(processor: Processor, rng: random.Random) -> None:
    """Has a processor run wholly on its caller's event loop, with the randomness that it is given.

    A `Processor` renews its leases in a thread of its own, so that a handler that blocks the event loop loses none.
    Threads wait for the real clock: in a :class:`.virtual_loop.SimProcess` there must be none.
    """
    processor._has_control_thread = False  # noqa: SLF001
    processor._rng = rng  # noqa: SLF001
    processor._now = lambda: asyncio.get_running_loop().time()  # noqa: SLF001


class VirtualProcessor(Processor):
    """A processor that is made for virtual time."""

    def __init__(self, *arguments: Any, rng: random.Random | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        make_virtual(self, self._rng if rng is None else rng)
