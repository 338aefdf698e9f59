"""Keeping a quiet connection open, and noticing that the peer is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from hubline.amqp.transport.frames import HEARTBEAT
from hubline.amqp.transport.output_buffer import OutputBuffer

# No peer needs a sign of life more often than this, whatever it asks for.
HEARTBEAT_SECONDS_MIN: Final = 0.1


class Heartbeat:
    """Sends a frame without content when nothing else was sent for a while. ``on_silence`` is called once when nothing
    came from the peer for ``idle_seconds``."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        output: OutputBuffer,
        *,
        idle_seconds: float,
        on_silence: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._output = output
        self._idle_seconds = idle_seconds
        self._on_silence = on_silence
        self._heartbeat_seconds: float | None = None
        self._is_listening = True
        self._heard_at = loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def start(self, peer_idle_milliseconds: int | None) -> None:
        """Begins, with the idle time that the peer announced; without one it needs no heartbeats."""
        if peer_idle_milliseconds:
            self._heartbeat_seconds = max(peer_idle_milliseconds / 1000 / 4, HEARTBEAT_SECONDS_MIN)
        self._beat()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def heard(self) -> None:
        """Something came from the peer."""
        self._heard_at = self._loop.time()

    def pause_listening(self) -> None:
        """Nothing is read for now, so the peer's silence says nothing."""
        self._is_listening = False

    def resume_listening(self) -> None:
        self._is_listening = True
        self.heard()

    def _beat(self) -> None:
        now = self._loop.time()
        if self._heartbeat_seconds is not None and now - self._output.written_at >= self._heartbeat_seconds / 2:
            self._output.write(HEARTBEAT)
        if self._is_listening and now - self._heard_at > self._idle_seconds:
            self._on_silence()
            return
        every_seconds = min(self._idle_seconds / 2, self._heartbeat_seconds or self._idle_seconds)
        self._timer = self._loop.call_later(every_seconds, self._beat)
