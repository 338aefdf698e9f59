"""What a connection holds of its peer's: beyond these limits it stops reading, or is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from hubline.amqp.transport.heartbeat import Heartbeat

# Messages that have begun and not ended, of all links together.
PARTS_BYTES_MAX: Final = 64 * 1024 * 1024


class InputLimits:
    """Pauses reading while handlers hold more than ``held_bytes_max``. ``on_overflow`` is called when messages that are
    not complete take more than PARTS_BYTES_MAX."""

    def __init__(self, heartbeat: Heartbeat, *, held_bytes_max: int, on_overflow: Callable[[], None]) -> None:
        self._heartbeat = heartbeat
        self._held_bytes_max = held_bytes_max
        self._on_overflow = on_overflow
        self._transport: asyncio.Transport | None = None
        self._held_bytes = 0
        self._parts_bytes = 0

    def connect(self, transport: asyncio.Transport | None) -> None:
        """Reads from this transport from now on; from None once it is gone."""
        self._transport = transport

    def hold(self, bytes_count: int) -> None:
        """Counts what a handler keeps of the peer's; beyond the limit nothing more is read."""
        was_reading = self._is_reading
        self._held_bytes += bytes_count
        if was_reading and not self._is_reading and self._transport is not None:
            self._heartbeat.pause_listening()
            self._transport.pause_reading()

    def release(self, bytes_count: int) -> None:
        """Gives back what :meth:`hold` counted."""
        was_reading = self._is_reading
        self._held_bytes -= bytes_count
        if not was_reading and self._is_reading and self._transport is not None:
            self._heartbeat.resume_listening()
            self._transport.resume_reading()

    def count_parts(self, bytes_count: int) -> None:
        """Counts what incomplete messages take."""
        self._parts_bytes += bytes_count
        if self._parts_bytes > PARTS_BYTES_MAX:
            self._on_overflow()

    @property
    def _is_reading(self) -> bool:
        return self._held_bytes <= self._held_bytes_max
