"""How many events a receiver lets come."""

from __future__ import annotations

from typing import Final

from hubline.hubs.size_estimate import SizeEstimate
from hubline.read_ahead import ReadAhead

# Enough to fill a connection of 100 MB/s over 60 ms.
BYTES_MAX: Final = 8 * 1024 * 1024


class CreditWindow:
    """Gives credit for the events that there is room for, by the sizes that events have had so far.

    Bytes are those on the wire: decoded, events take fewer.
    """

    def __init__(self) -> None:
        self.sizes = SizeEstimate()

    def credit(self, outstanding: int, ahead: ReadAhead, *, wanted: int | None = None) -> int | None:
        """The credit to grant in place of what is outstanding; None: leave it as it is.

        It is given for what there is room for and is wanted, once that is half of what there could be. Where events
        turn out larger than those before, and are more than there is room for, fewer are to come.
        """
        credit = self.sizes.fitting_count(ahead)
        if wanted is not None:
            credit = min(credit, wanted)
        if credit <= outstanding:
            return credit if outstanding > 2 * credit else None
        if not outstanding and not ahead.held_bytes:
            return credit
        most = self.sizes.most_count(ahead)
        if wanted is not None:
            most = min(most, wanted)
        return credit if credit - outstanding >= most / 2 else None
