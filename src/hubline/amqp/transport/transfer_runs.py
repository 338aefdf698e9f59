"""Finding simple transfers among many frames at once.

Most of what a receiver gets are transfers that differ in little: the frame's size, the delivery's id, its tag. What
they look like is learned from the first of them, which is decoded as any frame is; then all frames are compared with
it together. Whatever looks different is found not to match, and is decoded by itself: this saves time, it decides
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from hubline.amqp.codec.decode import Reader
from hubline.amqp.codec.performatives import PERFORMATIVES, UINT_MAX, Transfer
from hubline.amqp.events.byte_rows import COMPARED, IGNORED, Mask, Octets, Pattern, Positions, unsigned
from hubline.amqp.transport.errors import AmqpDecodeError

# Handle and delivery id come in three widths each, settled or not; a tag rarely changes its length.
HEADS_MAX: Final = 16

# More at once hardly happens; what is left is decoded frame by frame.
LEARNED_MAX: Final = 8

_FRAME_HEADER_BYTES: Final = 8
_CHANNEL_OFFSET: Final = 6

# Of a frame's header, size and channel may be anything; where its body starts and its type may not.
_FRAME_HEADER_MASK: Final = bytes((*4 * (IGNORED,), COMPARED, COMPARED, IGNORED, IGNORED))
_FRAME_HEADER_PLAIN: Final = b"\x02\x00"

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


@dataclass(frozen=True, slots=True, eq=False)
class _Number:
    """Where in a head a number stands; a width of 0 is for one that its type code tells: 0."""

    offset: int
    width: int

    def values(self, rows: Octets) -> npt.NDArray[np.int64]:
        return unsigned(rows, self.offset, self.width) if self.width else np.zeros(len(rows), np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class _Head:
    """What a frame of a simple transfer looks like up to its payload."""

    pattern: Pattern
    handle: _Number
    delivery_id: _Number
    is_settled: bool


_Frames: TypeAlias = slice | npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """For each frame whether it is a simple transfer, and what it says."""

    data: Octets
    is_found: Mask
    is_settled: Mask
    links: npt.NDArray[np.int64]
    delivery_ids: npt.NDArray[np.int64]
    payloads: Positions
    ends: Positions

    def note(self, head: _Head, rows: Octets, frames: _Frames, starts: Positions) -> None:
        """These frames have this head."""
        self.is_found[frames] = True
        self.is_settled[frames] = head.is_settled
        self.links[frames] = _links(head, rows)
        self.delivery_ids[frames] = head.delivery_id.values(rows)
        self.payloads[frames] = starts[frames] + head.pattern.width

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
            ends=self.ends[frames],
        )


class TransferHeads:
    """The heads seen on a connection, the latest first."""

    def __init__(self) -> None:
        self._heads: list[_Head] = []

    def find(self, data: Octets, starts: Positions, ends: Positions) -> Found:
        """Looks at all frames together. Raises nothing: what is not a transfer, or not AMQP, is not found."""
        count = len(starts)
        links, delivery_ids, payloads = (np.zeros(count, np.int64) for _ in range(3))
        is_found, is_settled = (np.zeros(count, np.bool_) for _ in range(2))
        found = Found(data, is_found, is_settled, links, delivery_ids, payloads, ends)
        left: npt.NDArray[np.int64] = np.arange(count)
        for head in tuple(self._heads):
            left = self._look_for(head, found, left, starts)
        for _ in range(LEARNED_MAX):
            if not len(left):
                break
            learned = _learned(data, int(starts[left[0]]), int(ends[left[0]]))
            if learned is None:
                left = left[1:]
            else:
                self._heads.append(learned)
                left = self._look_for(learned, found, left, starts)
        del self._heads[HEADS_MAX:]
        return found

    def _look_for(
        self, head: _Head, found: Found, left: npt.NDArray[np.int64], starts: Positions
    ) -> npt.NDArray[np.int64]:
        """Notes the frames that have this head; returns those that have not."""
        if not len(left):
            return left
        candidates = left[starts[left] + head.pattern.width <= found.ends[left]]
        rows = head.pattern.rows(found.data, starts[candidates])
        matched = head.pattern.matches(rows)
        if not matched.any():
            return left
        self._heads.remove(head)
        self._heads.insert(0, head)
        if len(starts) == len(candidates) and matched.all():  # the usual case, without an index for each
            found.note(head, rows, np.s_[:], starts)
            return left[:0]
        found.note(head, rows[matched], candidates[matched], starts)
        return left[~found.is_found[left]]


def _links(head: _Head, rows: Octets) -> npt.NDArray[np.int64]:
    """Channel and handle as one number, which identifies a link."""
    return unsigned(rows, _CHANNEL_OFFSET, 2) << _HANDLE_BITS | head.handle.values(rows)


def _learned(data: Octets, start: int, end: int) -> _Head | None:
    """What the frames that are like this one look like; None if it is not a simple transfer."""
    octets = data[start:end].tobytes()
    if octets[4:_CHANNEL_OFFSET] != _FRAME_HEADER_PLAIN:
        return None
    reader = Reader(octets, _FRAME_HEADER_BYTES)
    try:
        transfer = PERFORMATIVES.from_value(reader.value())
    except AmqpDecodeError:
        return None
    if not isinstance(transfer, Transfer) or not _is_simple(transfer):
        return None
    return _head(octets[: reader.position], is_settled=bool(transfer.settled))


def _is_simple(transfer: Transfer) -> bool:
    """Whether the message is all there, of the usual format, and needs nothing but to be taken."""
    return (
        transfer.delivery_id is not None
        and transfer.delivery_tag is not None
        and not transfer.message_format
        and not transfer.more
        and not transfer.aborted
        and not transfer.resume
        and transfer.state is None
    )


def _head(octets: bytes, *, is_settled: bool) -> _Head:
    """The first three fields are handle, delivery id and tag: their values may be anything, the rest may not."""
    mask = bytearray(_FRAME_HEADER_MASK + bytes((COMPARED,)) * (len(octets) - _FRAME_HEADER_BYTES))
    reader = Reader(octets, _FRAME_HEADER_BYTES)
    reader.descriptor()
    reader.enter()
    handle, delivery_id, tag = (reader.span() for _ in range(3))
    for value in (handle, delivery_id, tag):
        mask[value.start : value.end] = bytes((IGNORED,)) * (value.end - value.start)
    return _Head(
        Pattern(octets, bytes(mask)),
        handle=_Number(handle.start, handle.end - handle.start),
        delivery_id=_Number(delivery_id.start, delivery_id.end - delivery_id.start),
        is_settled=is_settled,
    )
