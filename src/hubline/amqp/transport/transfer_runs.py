"""Many frames at once: where each starts, and the simple transfers among them.

Most of what a receiver gets are transfers that hold all of a message, and need nothing but to be taken. The compiled
core finds them; whatever it does not take is decoded by itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hubline.amqp.arrays import Mask, Octets, Positions
from hubline.amqp.codec.performatives import UINT_MAX
from hubline.amqp.core.library import Core, Frames, address_of

# From so many frames on, looking at them together is cheaper than one after the other.
BULK_COUNT_MIN: Final = 8

_HANDLE_BITS: Final = 32


@dataclass(frozen=True, slots=True, eq=False)
class Deliveries:
    """Complete messages that arrived on one link, in order: ``data[start:end]`` of each.

    ``data`` changes with the next ``FrameReader.writable``: copy out of it what is to stay.
    """

    channel: int
    handle: int
    is_settled: bool
    delivery_ids: npt.NDArray[np.int64]
    data: Octets
    starts: Positions
    ends: Positions

    def __len__(self) -> int:
        return len(self.starts)


_Frames: TypeAlias = slice | Positions


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Complete frames that follow each other, for each whether it is a simple transfer, and what that says."""

    data: Octets
    bounds: Positions
    is_simple: Mask
    is_settled: Mask
    links: npt.NDArray[np.int64]
    delivery_ids: npt.NDArray[np.int64]
    payloads: Positions

    def first_of(self, links: Set[tuple[int, int]], first: int, end: int) -> int:
        """The first of the frames ``first`` to ``end`` that is of one of the links (channel and handle), or ``end``."""
        if not links:
            return end
        numbers = [channel << _HANDLE_BITS | handle for channel, handle in links]
        is_of_one = np.isin(self.links[first:end], numbers)
        return first + int(is_of_one.argmax()) if is_of_one.any() else end

    def deliveries(self, first: int, end: int) -> Iterator[Deliveries]:
        """Those of the frames ``first`` to ``end``, all found, by link; and apart where they change to be settled."""
        changes = np.flatnonzero(np.diff(self.is_settled[first:end])) + 1
        for start, stop in pairwise((first, *(first + changes).tolist(), end)):
            links = self.links[start:stop]
            if bool((links == links[0]).all()):
                yield self._of_link(int(links[0]), np.s_[start:stop])
            else:
                for link in dict.fromkeys(links.tolist()):
                    yield self._of_link(link, start + np.flatnonzero(links == link))

    def _of_link(self, link: int, frames: _Frames) -> Deliveries:
        return Deliveries(
            channel=link >> _HANDLE_BITS,
            handle=link & UINT_MAX,
            is_settled=bool(self.is_settled[frames][0]),
            delivery_ids=self.delivery_ids[frames],
            data=self.data,
            starts=self.payloads[frames],
            ends=self.bounds[1:][frames],
        )


class ImpossibleFrame(Exception):
    """A frame says that it has this size, which none can have."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


def find_frames(core: Core, data: Octets, part: slice, sizes: range) -> Found | None:
    """The complete frames of a part of the data; None if they are few. Raises ImpossibleFrame for other sizes."""
    frames = Frames(
        data=address_of(data), start=part.start, end=part.stop, size_min=sizes.start, size_max=sizes.stop - 1
    )
    core.frames(frames)
    if frames.impossible >= 0:
        raise ImpossibleFrame(frames.impossible)
    if frames.count < BULK_COUNT_MIN:
        return None
    width = frames.count + 1
    numbers, flags = np.empty((4, width), np.int64), np.empty((2, width), np.bool_)
    frames.bounds, frames.is_simple = address_of(numbers), address_of(flags)
    frames.links, frames.delivery_ids, frames.payloads = (frames.bounds + 8 * width * row for row in (1, 2, 3))
    frames.is_settled = frames.is_simple + width
    core.frames(frames)
    links, delivery_ids, payloads = numbers[1:, : frames.count]
    is_simple, is_settled = flags[:, : frames.count]
    return Found(data, numbers[0], is_simple, is_settled, links, delivery_ids, payloads)
