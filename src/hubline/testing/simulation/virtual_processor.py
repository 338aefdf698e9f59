"""A processor for virtual time."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from hubline.processor import Processor


class VirtualProcessor(Processor):
    """A processor that runs wholly on its caller's event loop, with the randomness that it is given.

    A `Processor` renews its leases in a thread of its own, so that a handler that blocks the event loop loses none.
    Threads wait for the real clock: in a :class:`.virtual_loop.SimProcess` there must be none.
    """

    _has_control_thread = False

    def __init__(self, *arguments: Any, rng: random.Random | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._now = lambda: asyncio.get_running_loop().time()
        if rng is not None:
            self._rng = rng
