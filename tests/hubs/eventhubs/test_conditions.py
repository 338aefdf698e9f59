"""What the service says becomes an error that a caller can act on."""

from __future__ import annotations

import pytest

from hubline.amqp import conditions
from hubline.amqp.codec.performatives import Error
from hubline.amqp.transport.errors import AmqpClosed, AmqpDecodeError
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
from hubline.hubs.eventhubs.service_errors import (
    Where,
    answered,
    reader_lost,
    reader_refused,
    reader_stolen,
    refused,
    translated,
)

HUB = Where("eventhubs://ns/orders")
PARTITION = Where("eventhubs://ns/orders", "3")


@pytest.mark.parametrize(
    ("where", "condition", "expected"),
    [
        (HUB, "amqp:unauthorized-access", AccessDenied),
        (HUB, "amqp:not-found", HubNotFound),
        (PARTITION, "amqp:not-found", PartitionNotFound),
        (HUB, "amqp:resource-limit-exceeded", HubFull),
        (PARTITION, "com.microsoft:entity-disabled", HubError),
        (PARTITION, "com.microsoft:server-busy", HubUnavailable),
        (PARTITION, "com.microsoft:timeout", HubUnavailable),
        (PARTITION, "amqp:connection:forced", HubUnavailable),
        (PARTITION, "never heard of", HubUnavailable),
    ],
)
def test_conditions_become_errors(where: Where, condition: str, expected: type[HubError]) -> None:
    error = refused(where, Error(condition, "because\n\x1b[31m of this"))
    assert type(error) is expected
    assert (error.hub, error.partition) == (where.hub, where.partition)
    assert "because" in str(error)
    assert condition in str(error)
    assert str(error).isprintable()


def test_an_end_without_a_reason_may_be_tried_again() -> None:
    assert isinstance(refused(HUB, None), HubUnavailable)


@pytest.mark.parametrize(
    ("status", "expected"), [(401, AccessDenied), (404, HubNotFound), (500, HubUnavailable), (0, HubUnavailable)]
)
def test_statuses_become_errors(status: int, expected: type[HubError]) -> None:
    assert type(answered(HUB, status, "why")) is expected


def test_errors_of_the_connection_become_errors_of_the_hub() -> None:
    assert isinstance(translated(HUB, AmqpClosed("link", Error("amqp:not-found"))), HubNotFound)
    assert isinstance(translated(HUB, AmqpDecodeError("nonsense")), HubUnavailable)


# As the service words them.
@pytest.mark.parametrize(
    ("description", "own", "other"),
    [
        ("Receiver 'a' with a higher epoch '5' already exists. Receiver 'b' with epoch 4 cannot be created.", 4, 5),
        (
            "At least one receiver for the endpoint is created with epoch of '0', and so non-epoch receiver is not",
            None,
            0,
        ),
        ("New receiver 'b' with higher epoch of '2' is created hence current receiver 'a' with epoch '1' is", 1, 2),
        ("it does not say", 7, 7),
        ("it does not say", None, 0),
    ],
)
def test_both_epochs_are_named(description: str, own: int | None, other: int) -> None:
    error = Error(conditions.STOLEN, description)
    refusal, theft = reader_refused(PARTITION, own, error), reader_stolen(PARTITION, own, error)
    assert (refusal.epoch, refusal.held_epoch, refusal.partition) == (own, other, "3")
    assert (theft.epoch, theft.taken_by_epoch, theft.partition) == (own, other, "3")
    assert f"epoch {other}" in str(refusal)
    assert f"epoch {other}" in str(theft)


@pytest.mark.parametrize(
    ("description", "kind"),
    [
        (
            "Receiver 'a' with a higher epoch '5' already exists. Receiver 'b' with epoch 4 cannot be created.",
            ReaderRefused,
        ),
        (
            "At least one receiver is created with epoch of '0', and so non-epoch receiver is not allowed.",
            ReaderRefused,
        ),
        ("New receiver 'b' with higher epoch of '2' is created hence current receiver is disconnected.", ReaderStolen),
    ],
)
def test_a_reader_that_is_sent_away_after_it_was_let_in_knows_a_refusal(description: str, kind: type[HubError]) -> None:
    """Whether the service refuses an attach, or answers it and ends the link at once, is for it to choose."""
    assert type(reader_lost(PARTITION, 1, Error(conditions.STOLEN, description))) is kind
