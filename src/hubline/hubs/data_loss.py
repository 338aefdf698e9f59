"""What happens where reading cannot continue without losing events: the option `on_data_loss` decides.

A position is lost where its events have expired, or are another hub's: PositionInvalid says which.
"""

from __future__ import annotations

import logging

from hubline.errors import PositionInvalid
from hubline.model.positions import OnDataLoss

log = logging.getLogger("hubline.hubs")


def accept_data_loss(error: PositionInvalid, on_data_loss: OnDataLoss) -> None:
    """Raises the error if the user chose "fail". Otherwise logs it: the caller continues elsewhere."""
    if on_data_loss == "fail":
        raise error
    log.error("data_loss partition=%s reason=%s on_data_loss=%s %s", error.partition, error.reason, on_data_loss, error)


def sequence_after_data_loss(error: PositionInvalid, on_data_loss: OnDataLoss) -> int:
    """The sequence number at which reading continues, logged. Raises the error if the user chose "fail"."""
    accept_data_loss(error, on_data_loss)
    return error.begin_sequence if on_data_loss == "earliest" else error.last_sequence + 1
