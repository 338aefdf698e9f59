"""How many events a receiver lets come."""

from __future__ import annotations

from typing import Final

# How large events are is not known at first: so many of the largest there are still fit into memory.
CREDIT_FIRST: Final = 256
# The size of events is averaged over about this many deliveries.
SIZE_MEMORY: Final = 8
# Enough to fill a connection of 100 MB/s over 60 ms.
BYTES_MAX: Final = 8 * 1024 * 1024
# A smaller event counts as this much: of small ones 20,000 for 8 MiB, since in memory each takes more than on the wire.
EVENT_BYTES_MIN: Final = 420


class CreditWindow:
    """Gives credit for the events that fit into ``max_bytes``, by the size that events have had so far.

    Bytes are those on the wire. They are held from their arrival until they are given out.
    """

    def __init__(self, max_bytes: int = BYTES_MAX) -> None:
        self.max_bytes = max_bytes
        self.held_bytes = 0
        self.event_bytes = 0.0
        """Of one event, on average; 0 if none has come yet."""

    @property
    def max_count(self) -> int:
        """How many small events there is room for."""
        return max(self.max_bytes // EVENT_BYTES_MIN, 1)

    def arrived(self, bytes_count: int, count: int) -> None:
        self.held_bytes += bytes_count
        self.event_bytes += (bytes_count / count - self.event_bytes) / (SIZE_MEMORY if self.event_bytes else 1)

    def given_out(self, bytes_count: int) -> None:
        self.held_bytes -= bytes_count

    def credit(self, outstanding: int, *, wanted: int | None = None) -> int | None:
        """The credit to grant in place of what is outstanding; None: leave it as it is.

        It is given for what there is room for and is wanted, once that is half of what there could be. Where events
        turn out larger than those before, and are more than there is room for, no others are to come.
        """
        credit = most = CREDIT_FIRST
        if self.event_bytes:
            if self.held_bytes > self.max_bytes and outstanding:
                return 0
            credit, most = self._room(self.held_bytes), self._room(0)
        if wanted is not None:
            credit, most = min(credit, wanted), min(most, wanted)
        return credit if credit and credit - outstanding >= most / 2 else None

    def _room(self, used_bytes: int) -> int:
        """How many more events fit. One that is larger than all the room has to come, too, by itself."""
        fitting = int((self.max_bytes - used_bytes) / self.event_bytes)
        return min(self.max_count, max(fitting, 0 if used_bytes else 1))
