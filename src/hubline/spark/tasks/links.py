"""Receivers of a hub that wait for their next range: the next batch continues where they stand, without connecting."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from hubline.concurrency import IdleCache
from hubline.errors import HublineError
from hubline.ports import Receiver

LINK_IDLE_SECONDS: Final = 10.0
"""A receiver waits this long for its next range. The service takes five readers of a partition in a group: where many
workers take turns, those that do not get it again must let go soon."""

LinkKey = tuple[str, str]
"""Consumer group and partition."""

_Link = tuple[Receiver, int]


class Links:
    """The waiting receivers of one hub, one for each partition and group. They belong to the running loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: IdleCache[LinkKey, _Link] = IdleCache(self._close_soon, idle_seconds=LINK_IDLE_SECONDS)

    def take(self, key: LinkKey, next_sequence: int) -> Receiver | None:
        """The receiver that stands right there, if there is one. One that stands elsewhere is of no more use."""
        link = self._waiting.take(key)
        if link is None:
            return None
        receiver, stands_at = link
        if stands_at == next_sequence:
            return receiver
        self._close_soon(link)
        return None

    def keep(self, key: LinkKey, receiver: Receiver, next_sequence: int) -> None:
        """For the next range. A receiver that waits there already is closed."""
        self._waiting.put(key, (receiver, next_sequence))

    async def close(self) -> None:
        await _close_all(self._waiting.take_all())

    def _close_soon(self, link: _Link) -> None:
        if self._loop.is_running():
            asyncio.run_coroutine_threadsafe(_close_all([link]), self._loop)


async def _close_all(links: Iterable[_Link]) -> None:
    for receiver, _ in links:
        with suppress(HublineError):  # what cannot be closed in order is gone already
            await receiver.close()
