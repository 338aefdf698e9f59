"""Error conditions, by the names that they have on the wire: those of AMQP, and those that Event Hubs adds."""

from __future__ import annotations

from typing import Final

# Of AMQP 1.0.
DECODE_ERROR: Final = "amqp:decode-error"
FRAME_SIZE_TOO_SMALL: Final = "amqp:frame-size-too-small"
INTERNAL_ERROR: Final = "amqp:internal-error"
INVALID_FIELD: Final = "amqp:invalid-field"
NOT_ALLOWED: Final = "amqp:not-allowed"
NOT_FOUND: Final = "amqp:not-found"
NOT_IMPLEMENTED: Final = "amqp:not-implemented"
RESOURCE_LIMIT_EXCEEDED: Final = "amqp:resource-limit-exceeded"
UNAUTHORIZED_ACCESS: Final = "amqp:unauthorized-access"

CONNECTION_FORCED: Final = "amqp:connection:forced"
CONNECTION_REDIRECT: Final = "amqp:connection:redirect"
FRAMING_ERROR: Final = "amqp:connection:framing-error"

HANDLE_IN_USE: Final = "amqp:session:handle-in-use"
UNATTACHED_HANDLE: Final = "amqp:session:unattached-handle"

DETACH_FORCED: Final = "amqp:link:detach-forced"
LINK_REDIRECT: Final = "amqp:link:redirect"
MESSAGE_SIZE_EXCEEDED: Final = "amqp:link:message-size-exceeded"
STOLEN: Final = "amqp:link:stolen"
TRANSFER_LIMIT_EXCEEDED: Final = "amqp:link:transfer-limit-exceeded"

# Of Event Hubs.
ARGUMENT_ERROR: Final = "com.microsoft:argument-error"
ARGUMENT_OUT_OF_RANGE: Final = "com.microsoft:argument-out-of-range"
AUTH_FAILED: Final = "com.microsoft:auth-failed"
ENTITY_DISABLED: Final = "com.microsoft:entity-disabled"
SERVER_BUSY: Final = "com.microsoft:server-busy"
TOKEN_EXPIRED: Final = "com.microsoft:token-expired"  # noqa: S105 (not a token)
