"""How many events there is room for, before they have come: an estimate by the sizes of those that came."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from hubline.read_ahead import ReadAhead

# Before so many events have come, each may be as large as the service takes them, with what goes over the wire as well.
FIRST_COUNT: Final = 5
FIRST_BYTES: Final = 1152 * 1024
# After them it may grow with each delivery by so much: what came may not be what will come.
GROWTH: Final = 16
# The size of events is averaged over about this many deliveries, or over the first events.
SIZE_MEMORY: Final = 8
# Sizes that vary get this many standard deviations of room: events that come beyond the bound have to be read again.
DEVIATIONS: Final = 2.0
# A smaller event counts as this much: of small ones 20,000 for 8 MiB, since in memory each takes more than on the wire.
EVENT_BYTES_MIN: Final = 420


class SizeEstimate:
    """The sizes of a partition's events so far."""

    def __init__(self) -> None:
        self.event_bytes = 0.0
        """Of one event, on average; 0 if none has come yet."""
        self._square_bytes = 0.0
        self._seen_count = 0

    def arrived(self, sizes: npt.NDArray[np.int64], bytes_count: int) -> None:
        """Events of these sizes have come, so many bytes together."""
        self._count_in(len(sizes), bytes_count / len(sizes), int(np.dot(sizes, sizes)) / len(sizes))

    def arrived_alike(self, count: int, bytes_count: int) -> None:
        """So many events have come, of one size or of sizes that are too dear to ask for."""
        mean = bytes_count / count
        self._count_in(count, mean, mean**2)

    def expect(self, event_bytes: int) -> None:
        """From now on events are at least as large as this one, which there was no room for."""
        self.event_bytes = max(self.event_bytes, float(event_bytes))
        self._square_bytes = self.event_bytes**2

    def fitting_count(self, ahead: ReadAhead) -> int:
        """How many more events fit. One that is larger than all the room has to come, too, by itself.

        The first ones may come one by one as long as they are small.
        """
        is_first = self._seen_count < FIRST_COUNT and ahead.portion > 0
        return self._count(ahead.room, least=1 if is_first or not ahead.held_bytes else 0)

    def most_count(self, ahead: ReadAhead) -> int:
        """How many would fit if none were held."""
        return self._count(ahead.max_bytes, least=1)

    def _count_in(self, count: int, mean_bytes: float, mean_square: float) -> None:
        self._seen_count += count
        weight = max(count / self._seen_count, 1 / SIZE_MEMORY)
        self.event_bytes += (mean_bytes - self.event_bytes) * weight
        self._square_bytes += (mean_square - self._square_bytes) * weight

    def _count(self, room: int, *, least: int) -> int:
        if self._seen_count < FIRST_COUNT:
            return max(room // FIRST_BYTES, least)
        most = min(room // EVENT_BYTES_MIN, GROWTH * self._seen_count)
        if most <= least:
            return least
        mean = max(self.event_bytes, 1.0)
        spread = DEVIATIONS * math.sqrt(max(self._square_bytes - self.event_bytes**2, 0.0))
        # The largest n for which n * mean + spread * sqrt(n) is no more than there is room for.
        root = (math.sqrt(spread**2 + 4 * mean * room) - spread) / (2 * mean)
        return max(min(int(root**2 + 1e-6), most), least)
