"""How much is read ahead: the bytes of events that are held between a hub and those who take them, and their bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class ReadAheadPool:
    """What several partitions hold, and may hold together. Each may hold an equal part of it."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self.members_count = 0

    @property
    def part_bytes(self) -> int:
        return self.max_bytes // max(self.members_count, 1)


class ReadAhead:
    """What is held of one partition between the hub and those who take its events. Used from one event loop.

    All that hold events on their way count them: a receiver those that it has not given out, its caller those that
    nobody has taken yet. An event that is larger than the bound is held by itself, so one fits wherever none is held:
    also where other partitions hold all that is allowed together, since none may wait for another one's handler.
    """

    def __init__(self, max_bytes: int, pool: ReadAheadPool | None = None) -> None:
        self._max_bytes = max_bytes
        self._pool = pool
        self._held_bytes = 0
        self._has_room = asyncio.Event()
        self._has_room.set()
        self.on_room: Callable[[], object] | None = None
        """Called when something was released."""

    @property
    def max_bytes(self) -> int:
        """The bound, of which new partitions take their part."""
        return self._max_bytes if self._pool is None else min(self._max_bytes, self._pool.part_bytes)

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    @property
    def room(self) -> int:
        """How many more bytes may come."""
        return max(self._left_of(self.max_bytes), 0)

    @property
    def portion(self) -> int:
        """How many bytes to read at once: half of the bound. 0 until there is room for that."""
        half = max(self.max_bytes // 2, 1)
        if not self._held_bytes:
            return max(min(half, self.room), 1)
        return half if self.room >= half else 0

    @property
    def is_full(self) -> bool:
        """Whether a receiver could not read on, and nothing was released since."""
        return not self._has_room.is_set()

    @property
    def left(self) -> int:
        """How many bytes may be held of what comes: more than there is room for where others joined since it was asked
        for."""
        return self._left_of(self._max_bytes)

    def fits(self, bytes_count: int) -> bool:
        """Whether so many bytes that have come may be held."""
        return bytes_count <= self.left or not self._held_bytes

    def hold(self, bytes_count: int) -> None:
        """Counts so many bytes more; or fewer, where others count them from now on."""
        self._held_bytes += bytes_count
        if self._pool is not None:
            self._pool.held_bytes += bytes_count

    def release(self, bytes_count: int) -> None:
        """So many bytes are not between the hub and those who take events any more."""
        self.hold(-bytes_count)
        self.give_room()

    def give_room(self) -> None:
        """Tells that there are fewer bytes by now, which were not only moved."""
        self._has_room.set()
        if self.on_room is not None:
            self.on_room()

    def mark_full(self) -> None:
        """Nothing can be read until something is released."""
        self._has_room.clear()

    async def released(self) -> None:
        """Waits until a receiver that could not read on may try again."""
        await self._has_room.wait()

    def join(self) -> None:
        """From now on the partition has its part of what several may hold together."""
        if self._pool is not None:
            self._pool.members_count += 1

    def leave(self) -> None:
        """Nothing more is read: the others have its part. What is still held counts until it is released."""
        if self._pool is not None:
            self._pool.members_count -= 1

    def _left_of(self, max_bytes: int) -> int:
        """How much of a bound of its own is left, and of what all may hold together: below 0 if it is exceeded."""
        left = max_bytes - self._held_bytes
        return left if self._pool is None else min(left, self._pool.max_bytes - self._pool.held_bytes)
