"""Errors of AMQP 1.0 itself: bytes that are not AMQP, values that it cannot carry, a peer that breaks its rules.

    HubError
    └── AmqpError
        ├── AmqpDecodeError      bytes that are not valid AMQP: truncated, nonsense, or beyond the bounds set here
        │   └── AmqpFrameError   a frame whose size or header cannot be: the connection is beyond repair
        ├── AmqpEncodeError      a value that AMQP, or a field's type, cannot carry
        ├── AmqpNotAllowed       a frame that the peer may not send at this point: the connection is closed
        └── AmqpClosed           what is used is over: a link, or its session or connection

The codec raises the first three and nothing else, whatever the bytes. The text says what was expected and where; it
never shows the bytes themselves, which may hold a token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hubline.errors import HubError

if TYPE_CHECKING:
    from hubline.amqp.codec.performatives import Error


class AmqpError(HubError):
    """AMQP went wrong."""


class AmqpDecodeError(AmqpError):
    """The bytes are not valid AMQP."""


class AmqpFrameError(AmqpDecodeError):
    """A frame cannot be: where the next one starts is not known, so the connection has to be closed."""


class AmqpEncodeError(AmqpError):
    """AMQP cannot carry the value."""


class AmqpNotAllowed(AmqpError):
    """The peer sent something that it may not send at this point."""


class AmqpClosed(AmqpError):
    """A link, or the session or connection that it is part of, is over. ``condition`` says why, in AMQP's words."""

    def __init__(self, what: str, error: Error | None) -> None:
        why = "without a reason" if error is None else f"{error.condition} {error.description or ''}".rstrip()
        super().__init__(f"{what} was closed: {why}")
        self.condition = None if error is None else error.condition
        self.error = error
