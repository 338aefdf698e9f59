"""Event Hubs as the rest of hubline sees it: :class:`~hubline.ports.Hub` over AMQP."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, TypeVar

from hubline.addresses.hub_address import EventHubsAddress, Transport
from hubline.addresses.names import validate_group_name
from hubline.amqp import service_names
from hubline.errors import ConfigError, HubUnavailable
from hubline.hubs.argument_checks import require_partition
from hubline.hubs.eventhubs.authorization import TokenSource, token_source
from hubline.hubs.eventhubs.network import Endpoint
from hubline.hubs.eventhubs.receive_link import Reading
from hubline.hubs.eventhubs.receiver import EventHubsReceiver
from hubline.hubs.eventhubs.sender import EventHubsSender
from hubline.hubs.eventhubs.service_connection import Service
from hubline.hubs.eventhubs.service_errors import Where
from hubline.hubs.eventhubs.start_position import Progress
from hubline.model.hubs import HubProperties, PartitionProperties
from hubline.model.positions import Position

# Epochs are signed 64-bit numbers in the protocol.
EPOCH_MAX: Final = 2**63 - 1

# Partitions can be added to a hub: senders see them after this long.
PARTITIONS_SECONDS: Final = 60.0

T = TypeVar("T")

_START: Final = datetime(1970, 1, 1, tzinfo=UTC)


class EventHubsHub:
    """A hub of Event Hubs. All its receivers and senders share one connection.

    Making the object connects to nothing; that a hub cannot be reached shows at the first call. An object is used from
    one event loop at a time. ``clock`` gives the time of day in seconds, for tokens.
    """

    def __init__(
        self,
        address: EventHubsAddress,
        *,
        transport: Transport = Transport.AMQP,
        tokens: TokenSource | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._address = address
        self._hub = str(address)
        self._tokens = tokens or token_source(address, clock=clock)
        self._service = Service(Endpoint.of(address, transport), address.name, self._tokens, clock=clock)
        self._partition_ids: tuple[str, ...] = ()
        self._partition_ids_at = -PARTITIONS_SECONDS

    @property
    def namespace(self) -> str:
        return self._address.key_namespace

    @property
    def name(self) -> str:
        return self._address.name

    async def describe(self) -> HubProperties:
        answer = await self._service.ask(Where(self._hub), self._question(service_names.HUB_TYPE))
        with _Answer(self._hub, answer) as values:
            ids = values.texts("partition_ids")
            described = HubProperties(self.namespace, self.name, ids, values.time("created_at"))
        self._partition_ids, self._partition_ids_at = ids, time.monotonic()
        return described

    async def describe_partition(self, partition: str) -> PartitionProperties:
        await self._require_partition(partition)
        parameters = {**self._question(service_names.PARTITION_TYPE), "partition": partition}
        answer = await self._service.ask(Where(self._hub, partition), parameters)
        with _Answer(self._hub, answer) as values:
            last_sequence = values.number(service_names.LAST_SEQUENCE)
            # What the service says of the begin of an empty partition is of no use.
            begin_sequence = (
                last_sequence + 1 if values.flag("is_partition_empty") else values.number("begin_sequence_number")
            )
            has_had_events = last_sequence >= 0
            return PartitionProperties(
                partition,
                begin_sequence=begin_sequence,
                last_sequence=last_sequence,
                last_offset=values.text(service_names.LAST_OFFSET) if has_had_events else None,
                last_enqueued_time=values.time(service_names.LAST_ENQUEUED) if has_had_events else None,
            )

    async def open_receiver(
        self, partition: str, *, group: str, position: Position, epoch: int | None = None
    ) -> EventHubsReceiver:
        group = validate_group_name(group)
        if epoch is not None and not 0 <= epoch <= EPOCH_MAX:
            raise ConfigError(f"an epoch must be a number from 0 to {EPOCH_MAX}, not {epoch}.")
        there = await self.describe_partition(partition)
        reading = Reading(
            Where(self._hub, partition),
            f"{self.name}/ConsumerGroups/{group}/Partitions/{partition}",
            group,
            partition,
            epoch,
            Progress(self._hub, position, there),
            partial(self.describe_partition, partition),
        )
        receiver = EventHubsReceiver(self._service, reading)
        await receiver.open()
        return receiver

    async def open_sender(self) -> EventHubsSender:
        await self._known_partition_ids()  # that the hub is missing shows here already
        return EventHubsSender(self._service, self._hub, self.name, self._known_partition_ids)

    async def close(self) -> None:
        """Lets go of every partition and closes the connection. Receivers that wait get an error."""
        await self._service.close()
        await self._tokens.close()

    def _question(self, kind: str) -> Mapping[object, object]:
        return {"operation": "READ", "name": self.name, "type": kind}

    async def _known_partition_ids(self) -> tuple[str, ...]:
        if time.monotonic() - self._partition_ids_at >= PARTITIONS_SECONDS:
            await self.describe()
        return self._partition_ids

    async def _require_partition(self, partition: str) -> None:
        if partition not in self._partition_ids:
            require_partition(partition, await self.describe(), hub=self._hub)


class _Answer:
    """What the service tells in a map, by name and type. What is missing or of another type is HubUnavailable."""

    def __init__(self, hub: str, answer: Mapping[object, object]) -> None:
        self._hub = hub
        self._answer = answer

    def __enter__(self) -> _Answer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, KeyError | TypeError):
            raise HubUnavailable(
                f"hub {self._hub} describes itself without {error}. Try again, and check that the address is of "
                "an Event Hub.",
                hub=self._hub,
            ) from None

    def number(self, name: str) -> int:
        return self._typed(name, int)

    def flag(self, name: str) -> bool:
        return self._typed(name, bool)

    def text(self, name: str) -> str:
        return str(self._typed(name, str))

    def texts(self, name: str) -> tuple[str, ...]:
        return tuple(str(item) for item in self._typed(name, tuple))

    def time(self, name: str) -> datetime:
        return _START + timedelta(milliseconds=self._typed(name, int))

    def _typed(self, name: str, kind: type[T]) -> T:
        value = self._answer[name]
        if not isinstance(value, kind):
            raise TypeError(name)
        return value
