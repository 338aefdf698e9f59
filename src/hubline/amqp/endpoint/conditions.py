"""What went wrong, in the words that Event Hubs clients know."""

from __future__ import annotations

from typing import Final

from hubline import errors
from hubline.amqp.errors import AmqpDecodeError
from hubline.amqp.links import MESSAGE_SIZE_EXCEEDED, RESOURCE_LIMIT_EXCEEDED
from hubline.amqp.performatives import Error

NOT_FOUND: Final = "amqp:not-found"
STOLEN: Final = "amqp:link:stolen"
UNAUTHORIZED: Final = "amqp:unauthorized-access"
INTERNAL_ERROR: Final = "amqp:internal-error"
DECODE_ERROR: Final = "amqp:decode-error"
SERVER_BUSY: Final = "com.microsoft:server-busy"
ARGUMENT_ERROR: Final = "com.microsoft:argument-error"


def error_of(error: errors.HublineError) -> Error:
    """The condition that makes a client do the right thing: try again, give up, or let go."""
    return Error(_condition(error), str(error))


def _condition(error: errors.HublineError) -> str:
    match error:
        case errors.HubNotFound() | errors.PartitionNotFound():
            return NOT_FOUND
        case errors.ReaderStolen() | errors.ReaderRefused():
            return STOLEN
        case errors.HubUnavailable():
            return SERVER_BUSY
        case errors.HubFull():
            return RESOURCE_LIMIT_EXCEEDED
        case errors.EventTooLarge():
            return MESSAGE_SIZE_EXCEEDED
        case errors.PositionInvalid() | errors.ConfigError():
            return ARGUMENT_ERROR
        case AmqpDecodeError():
            return DECODE_ERROR
        case _:
            return INTERNAL_ERROR
