"""Dead letters sent to a hub again: at least once, and each time with the same identity.

What is sent has the body, the partition key and the properties of the event, and two properties more:

- :data:`REDRIVEN_PROPERTY` names the dead letter;
- the id (:mod:`hubline.event_ids`) is that of the event, with an origin of its own for each failure. Sinks keep the
  highest id of each origin partition, and drop what comes below: under its first id, an event that comes late would be
  lost. Sent twice, it has the same id twice, and is dropped the second time.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from hubline.dead_letters.redrive import in_thread
from hubline.errors import ConfigError, EventTooLarge
from hubline.event_ids import ID_PROPERTY, event_ids, split_ids
from hubline.model.dead_letters import DeadLetter, DeadLetterId
from hubline.model.events import new_events
from hubline.ports import Hub, Sender
from hubline.sinks.sql_sink.redrive_transaction import RedriveTransaction
from hubline.sql.dead_letter_table import micros

REDRIVEN_PROPERTY: Final = "hubline-redriven"
"""The application property that tells of which dead letter an event was made."""

_SUFFIX = "~redriven."
_REDRIVEN_ORIGIN = re.compile(rf"{_SUFFIX}[^~\n]*$")


class Republisher:
    """Sends dead letters to a hub: those with a partition key by their key, the others to the partition that they came
    from.

    Where that is another hub, those without a key go to its partitions in turn.
    """

    def __init__(self, hub: Hub, sender: Sender) -> None:
        self._hub = hub
        self._sender = sender

    async def __call__(self, dead_letters: Sequence[DeadLetter], transaction: RedriveTransaction) -> None:
        pending = list(dead_letters)
        while pending:
            try:
                await self._send(pending)
            except _TooLarge as refused:
                # None of its part was sent; parts that were are sent again, with the same ids.
                pending.remove(refused.dead_letter)
                failed = DeadLetter.of(
                    refused.dead_letter.key,
                    refused.dead_letter.event,
                    refused.error,
                    attempts=1,
                    stage=refused.dead_letter.stage,
                )
                await in_thread(functools.partial(transaction.dead_letter, [failed]))
            else:
                break
        # Dying here sends them again: their dead letters still wait.
        await in_thread(transaction.commit)

    async def _send(self, dead_letters: Sequence[DeadLetter]) -> None:
        """Returns once all are durable."""
        key = dead_letters[0].key
        is_back_home = (self._hub.namespace, self._hub.name) == (key.namespace, key.hub)
        parts = {
            None: [dead_letter for dead_letter in dead_letters if dead_letter.event.partition_key is not None],
            key.partition if is_back_home else "": [
                dead_letter for dead_letter in dead_letters if dead_letter.event.partition_key is None
            ],
        }
        for partition, part in parts.items():
            if part:
                try:
                    await self._sender.send(redriven_events(part), partition=partition or None)
                except EventTooLarge as error:
                    raise _TooLarge(part[error.index], error) from error


class _TooLarge(Exception):
    """A dead letter that the hub does not take, whatever else is sent."""

    def __init__(self, dead_letter: DeadLetter, error: EventTooLarge) -> None:
        super().__init__(str(error))
        self.dead_letter = dead_letter
        self.error = error


def redriven_events(dead_letters: Sequence[DeadLetter]) -> pa.RecordBatch:
    """What is sent for dead letters."""
    return new_events(
        {
            "body": dead_letter.event.body,
            "partitionKey": dead_letter.event.partition_key,
            "properties": {
                **dead_letter.event.properties,
                ID_PROPERTY: redriven_id(dead_letter),
                REDRIVEN_PROPERTY: str(DeadLetterId.of(dead_letter)),
            },
        }
        for dead_letter in dead_letters
    )


def redriven_id(dead_letter: DeadLetter) -> str:
    """The id of the dead letter's event, for this failure of it."""
    key, event = dead_letter.key, dead_letter.event
    own = event.properties.get(ID_PROPERTY)
    try:
        parts = split_ids(pa.array([own], pa.string())).to_pylist()[0]
    except ConfigError:
        parts = {"origin": None}  # the property of somebody else
    if parts["origin"] is None:
        parts = {
            "origin": f"{key.namespace}/{key.hub}",
            "partition": key.partition,
            "sequenceNumber": event.sequence_number,
            "index": 0,
        }
    # What was redriven before, and failed again elsewhere, has a new failure.
    origin = _REDRIVEN_ORIGIN.sub("", parts["origin"])
    failure = f"{key.group}.{key.partition}.{event.sequence_number}.{micros(dead_letter.failed_at)}"
    ids = event_ids(f"{origin}{_SUFFIX}{failure}", parts["partition"], parts["sequenceNumber"], parts["index"])
    return str(ids.to_pylist()[0] if isinstance(ids, pa.Array) else ids.as_py())
