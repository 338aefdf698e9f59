"""What the service says when it refuses, as errors that a caller can act on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from hubline.amqp import conditions
from hubline.amqp.codec.performatives import Error
from hubline.amqp.transport.errors import AmqpClosed, AmqpError
from hubline.errors import (
    AccessDenied,
    HubError,
    HubFull,
    HubNotFound,
    HubUnavailable,
    PartitionNotFound,
    ReaderRefused,
    ReaderStolen,
)
from hubline.text import sentences

_DENIED: Final = frozenset((conditions.UNAUTHORIZED_ACCESS, conditions.AUTH_FAILED, conditions.TOKEN_EXPIRED))
# A position that the service cannot read from; its text tells which.
POSITION_REFUSED: Final = frozenset(
    (conditions.ARGUMENT_OUT_OF_RANGE, conditions.ARGUMENT_ERROR, conditions.INVALID_FIELD)
)
# What trying again does not change.
_LASTING: Final = frozenset(
    (*POSITION_REFUSED, conditions.NOT_ALLOWED, conditions.NOT_IMPLEMENTED, conditions.ENTITY_DISABLED)
)

_DENIED_STATUSES: Final = (401, 403)
_NOT_FOUND_STATUS: Final = 404


@dataclass(frozen=True, slots=True)
class Where:
    """What an error is about."""

    hub: str
    partition: str | None = None

    def __str__(self) -> str:
        return f"hub {self.hub}" if self.partition is None else f"partition {self.partition} of hub {self.hub}"


DENIED: Final = "does not let this key or identity in"
GRANT: Final = (
    "check the key, signature or identity, and that it may listen or send "
    "(roles Azure Event Hubs Data Receiver and Data Sender)"
)


def refused(where: Where, error: Error | None) -> HubError:
    """Why a connection, a link or a message came to nothing. What is not known to last is worth another try."""
    condition = "" if error is None else error.condition
    said, hub, partition = _said(error), where.hub, where.partition
    if condition in _DENIED:
        return AccessDenied(sentences(f"{where} {DENIED}: {said}", GRANT), hub=hub, partition=partition)
    if condition == conditions.NOT_FOUND:
        return not_found(where, said)
    if condition == conditions.RESOURCE_LIMIT_EXCEEDED:
        text = sentences(f"{where} takes no more events: {said}", "wait, or increase its throughput units or quota")
        return HubFull(text, hub=hub, partition=partition)
    if condition in _LASTING:
        text = sentences(f"{where} refuses the request: {said}", "change what the service names, or report it as a bug")
        return HubError(text, hub=hub, partition=partition)
    return unavailable(where, said)


def not_found(where: Where, said: str) -> HubNotFound | PartitionNotFound:
    problem = f"{where} does not exist: {said}"
    if where.partition is None:
        return HubNotFound(sentences(problem, "create it, or correct the address"), hub=where.hub)
    return PartitionNotFound(sentences(problem, "choose another one"), hub=where.hub, partition=where.partition)


def unavailable(where: Where, said: str) -> HubUnavailable:
    text = sentences(f"{where} is not available now: {said}", "try again later")
    return HubUnavailable(text, hub=where.hub, partition=where.partition)


def answered(where: Where, status: int, description: str) -> HubError:
    """Why a request was answered with something else than what was asked for."""
    if status in _DENIED_STATUSES:
        return refused(where, Error(conditions.UNAUTHORIZED_ACCESS, description))
    if status == _NOT_FOUND_STATUS:
        return refused(where, Error(conditions.NOT_FOUND, description))
    problem = f"{where} answers {status}: {_cut(description)}"
    return HubUnavailable(sentences(problem, "try again later"), hub=where.hub, partition=where.partition)


def translated(where: Where, error: AmqpError) -> HubError:
    """An error of the AMQP connection as one of the hub."""
    if isinstance(error, AmqpClosed):
        return refused(where, error.error)
    problem = f"{where} sent what hubline cannot read: {error}"
    fix = "check that the address is of an Event Hub, or try again"
    return HubUnavailable(sentences(problem, fix), hub=where.hub, partition=where.partition)


# What the service says to a reader that it does not let in, rather than to one that it disconnects.
_REFUSALS: Final = ("cannot be created", "is not allowed", "is refused")


def reader_lost(where: Where, epoch: int | None, error: Error) -> ReaderRefused | ReaderStolen:
    """Why a reader that was let in, or seemed to be, lost its partition to another one."""
    is_refusal = any(refusal in (error.description or "") for refusal in _REFUSALS)
    return (reader_refused if is_refusal else reader_stolen)(where, epoch, error)


def reader_refused(where: Where, epoch: int | None, error: Error) -> ReaderRefused:
    held_epoch = _other_epoch(error, own=epoch)
    own = "no epoch" if epoch is None else f"epoch {epoch}"
    return ReaderRefused(
        f"{where} is being read with epoch {held_epoch}, so a reader with {own} is refused. "
        "Close that reader, or read with a higher epoch.",
        hub=where.hub,
        partition=where.partition or "",
        epoch=epoch,
        held_epoch=held_epoch,
    )


def reader_stolen(where: Where, epoch: int | None, error: Error) -> ReaderStolen:
    taken_by_epoch = _other_epoch(error, own=epoch)
    own = "without an epoch" if epoch is None else f"with epoch {epoch}"
    return ReaderStolen(
        f"another reader took {where} with epoch {taken_by_epoch} from this one {own}. "
        "Stop one of them, or use another consumer group.",
        hub=where.hub,
        partition=where.partition or "",
        epoch=epoch,
        taken_by_epoch=taken_by_epoch,
    )


# "New receiver 'b' with higher epoch of '2' is created hence current receiver 'a' with epoch '1' is getting
# disconnected." "Receiver 'a' with a higher epoch '5' already exists. Receiver 'b' with epoch 4 cannot be created."
# "At least one receiver for the endpoint is created with epoch of '0', and so non-epoch receiver is not allowed."
_EPOCH: Final = re.compile(r"epoch(?: of)? '?(-?[0-9]{1,19})")


def _other_epoch(error: Error, *, own: int | None) -> int:
    """The epoch of the other reader: the service tells it in words only, first of all that it names.

    Where it tells none, it is at least our own.
    """
    found = _EPOCH.search(error.description or "")
    return int(found[1]) if found else max(own or 0, 0)


def _said(error: Error | None) -> str:
    if error is None:
        return "it was closed without a reason"
    return f"{_cut(error.description or 'no reason given')} ({error.condition})"


_SHOWN_LENGTH_MAX: Final = 500


def _cut(description: str) -> str:
    """What the service says, safe for a terminal."""
    printable = "".join(character if character.isprintable() else " " for character in description)
    return printable[:_SHOWN_LENGTH_MAX].strip()
