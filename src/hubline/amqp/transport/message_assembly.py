"""A message that arrives in several transfers."""

from __future__ import annotations

from collections.abc import Callable

from hubline.amqp.codec.decode import Bytes
from hubline.amqp.codec.performatives import Transfer
from hubline.amqp.transport.frames import kept_memory
from hubline.amqp.transport.link import Message


class MessageAssembly:
    """The message of a link that has begun and not ended. Each part is put in its place at once.

    A message that is all there, and has memory of its own, is not copied. ``count_bytes`` is called with every change
    of what is held.
    """

    def __init__(self, count_bytes: Callable[[int], None]) -> None:
        self.first: Transfer | None = None
        """What the first part said, if a message has begun."""
        self._count_bytes = count_bytes
        self._view = memoryview(b"")
        self._bytes = 0
        self._bytes_before = 0  # of the last message of several parts: the next one may be as large

    def __len__(self) -> int:
        return self._bytes

    def add(self, part: Bytes) -> None:
        if not part:
            return
        end = self._bytes + len(part)
        if not self._bytes:  # mostly all there is
            self._view = part if isinstance(part, memoryview) and part.readonly else memoryview(bytes(part))
        else:
            if end > len(self._view):
                self._grow(max(end, 2 * len(self._view), self._bytes_before))
            self._view[self._bytes : end] = part
        self._bytes = end
        self._count_bytes(len(part))

    def finish(self, last: Transfer) -> Message:
        """The message, which is complete with this transfer."""
        first = self.first
        assert first is not None  # noqa: S101
        payload = self._joined()
        self.drop()
        is_settled = bool(first.settled or last.settled)
        return Message(first.delivery_id or 0, first.message_format or 0, is_settled, payload)

    def drop(self) -> None:
        """Forgets what there is, if anything."""
        self._count_bytes(-self._bytes)
        self.first = None
        self._view, self._bytes = memoryview(b""), 0

    def _joined(self) -> memoryview:
        """The payload. It keeps little more memory than it takes."""
        payload = self._view[: self._bytes]
        if payload.readonly:  # one part
            return payload
        self._bytes_before = self._bytes
        return payload if 2 * self._bytes >= len(self._view) else memoryview(bytes(payload))

    def _grow(self, size: int) -> None:
        grown = kept_memory(size)
        grown[: self._bytes] = self._view[: self._bytes]
        self._view = grown
