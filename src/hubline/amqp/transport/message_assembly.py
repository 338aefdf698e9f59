"""A message that arrives in several transfers."""

from __future__ import annotations

from collections.abc import Callable

from hubline.amqp.codec.decode import Bytes
from hubline.amqp.codec.performatives import Transfer
from hubline.amqp.transport.frames import kept_memory
from hubline.amqp.transport.link import Message


class MessageAssembly:
    """The message of a link that has begun and not ended. Each part is put in its place at once.

    A message that is all there, and has memory of its own, is not copied. Of one that is too large nothing is held.
    ``count_bytes`` is called with every change of what is held.
    """

    def __init__(self, count_bytes: Callable[[int], None]) -> None:
        self.first: Transfer | None = None
        """What the first part said, if a message has begun."""
        self._count_bytes = count_bytes
        self._view = memoryview(b"")
        self._bytes = 0
        self._held_bytes = 0  # all of it, or nothing
        self._bytes_before = 0  # of the last message of several parts: the next one may be as large

    def __len__(self) -> int:
        """How large the message is so far, held or not."""
        return self._bytes

    def add(self, part: Bytes, *, bytes_max: int) -> None:
        """Puts a part in its place. A message of more than ``bytes_max``, if that is not 0, is only counted."""
        if not part:
            return
        end = self._bytes + len(part)
        if bytes_max and end > bytes_max:
            self._let_go()
            self._bytes = end
            return
        if not self._bytes:  # mostly all there is
            self._view = part if isinstance(part, memoryview) and part.readonly else memoryview(bytes(part))
        else:
            if end > len(self._view):
                self._grow(max(end, 2 * len(self._view), self._bytes_before))
            self._view[self._bytes : end] = part
        self._bytes = self._held_bytes = end
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
        self._let_go()
        self.first = None
        self._bytes = 0

    def _let_go(self) -> None:
        self._count_bytes(-self._held_bytes)
        self._view, self._held_bytes = memoryview(b""), 0

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
