"""What can go wrong with AMQP 1.0 itself: bytes that are no AMQP, values that it cannot carry, what a peer refuses.

    HubError
    └── AmqpError
        ├── AmqpDecodeError      bytes that are no valid AMQP: truncated, nonsense, or beyond the bounds set here
        │   └── AmqpFrameError   a frame whose size or header cannot be: the connection is beyond repair
        └── AmqpEncodeError      a value that AMQP, or a field's type, cannot carry

The codec raises these and nothing else, whatever the bytes. The text tells what was expected and where; it never shows
the bytes themselves, which may hold a token.
"""

from __future__ import annotations

from hubline.errors import HubError


class AmqpError(HubError):
    """AMQP went wrong."""


class AmqpDecodeError(AmqpError):
    """The bytes are no valid AMQP."""


class AmqpFrameError(AmqpDecodeError):
    """A frame cannot be: where the next one starts is not known, so the connection has to be closed."""


class AmqpEncodeError(AmqpError):
    """AMQP cannot carry the value."""
