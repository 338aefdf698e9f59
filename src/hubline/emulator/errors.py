"""What went wrong, in words for the peer: those that Event Hubs clients know, and nothing of where hubs are kept."""

from __future__ import annotations

import logging

from hubline import errors
from hubline.amqp import conditions
from hubline.amqp.codec.performatives import Error
from hubline.amqp.transport.errors import AmqpDecodeError

log = logging.getLogger("hubline.emulator")


class Refusal(errors.HublineError):
    """What is sent to the peer as it stands."""

    def __init__(self, condition: str, text: str) -> None:
        super().__init__(text)
        self.condition = condition


def error_of(error: errors.HublineError) -> Error:
    """The condition that makes a client do the right thing: try again, give up, or let go."""
    return Error(_condition(error), _text(error))


def stolen_text(epoch: int, other_epoch: int | None) -> str:
    """In the service's words: some clients look for them."""
    current = "without an epoch" if other_epoch is None else f"with epoch '{other_epoch}'"
    return (
        f"New receiver with higher epoch of '{epoch}' is created hence current receiver {current} is getting "
        "disconnected. If you are recreating the receiver, make sure a higher epoch is used."
    )


def _refused_text(epoch: int | None, held_epoch: int) -> str:
    """In the service's words, too."""
    if epoch is None:
        return (
            f"At least one receiver for the endpoint is created with epoch of '{held_epoch}', and so non-epoch "
            "receiver is not allowed. Either reconnect with a higher epoch, or make sure all epoch receivers are "
            "closed or disconnected."
        )
    return (
        f"Receiver with a higher epoch '{held_epoch}' already exists. Receiver with epoch {epoch} cannot be created. "
        "Make sure you are creating receiver with increasing epoch value to ensure connectivity, or ensure all old "
        "epoch receivers are closed or disconnected."
    )


def _text(error: errors.HublineError) -> str:
    match error:
        case Refusal() | errors.ConfigError() | AmqpDecodeError():
            return str(error)  # of what the peer itself has said
        case errors.ReaderRefused():
            return f"{_refused_text(error.epoch, error.held_epoch)} ({_where(error)})"
        case errors.ReaderStolen():
            return f"{stolen_text(error.taken_by_epoch, error.epoch)} ({_where(error)})"
        case errors.HubNotFound() | errors.PartitionNotFound():
            return f"{_where(error)} does not exist"
        case errors.EventTooLarge():
            return (
                f"event {error.index} has {error.bytes_count:,} bytes: {_where(error)} takes at most "
                f"{error.max_bytes:,}. Nothing was sent. Split the event."
            )
        case errors.PositionInvalid():
            return f"{_where(error)} holds only the sequence numbers {error.begin_sequence} to {error.last_sequence}"
    # The reason is for who runs this.
    log.warning("failed %s: %s", type(error).__name__, error)
    match error:
        case errors.HubUnavailable():
            return f"{_where(error)} is not available now. Try again."
        case errors.HubFull():
            return f"{_where(error)} has no space left, so nothing was stored"
        case _:
            return f"{_where(error)} cannot be used, because of an error of the server"


def _where(error: errors.HublineError) -> str:
    """The hub by its name, which is the last part of its address."""
    if not isinstance(error, errors.HubError) or not error.hub:
        return "the hub"
    hub = f"hub {error.hub.rpartition('/')[2]}"
    return hub if error.partition is None else f"partition {error.partition} of {hub}"


def _condition(error: errors.HublineError) -> str:
    match error:
        case Refusal():
            return error.condition
        case errors.HubNotFound() | errors.PartitionNotFound():
            return conditions.NOT_FOUND
        case errors.ReaderStolen() | errors.ReaderRefused():
            return conditions.STOLEN
        case errors.HubUnavailable():
            return conditions.SERVER_BUSY
        case errors.HubFull():
            return conditions.RESOURCE_LIMIT_EXCEEDED
        case errors.EventTooLarge():
            return conditions.MESSAGE_SIZE_EXCEEDED
        case errors.PositionInvalid() | errors.ConfigError():
            return conditions.ARGUMENT_ERROR
        case AmqpDecodeError():
            return conditions.DECODE_ERROR
        case _:
            return conditions.INTERNAL_ERROR
