"""Event Hubs through the official azure-eventhub package: the same hub, slower; to compare with, or to fall back on.

What the package cannot do, and how it shows:

- A reader's link is opened by a task of the package, after ``open_receiver`` has returned. So ReaderRefused is raised
  by the first ``receive``, and a takeover begins only then.
- The package tells its own errors from each other by text. ReaderStolen and ReaderRefused are recognised by it.
- It is slow to begin and to end: half a second for a question, a second to close a receiver.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from hubline.addresses.hub_address import EventHubsAddress
from hubline.addresses.names import validate_group_name
from hubline.amqp import conditions
from hubline.amqp.codec.data_sections import DATA_SECTIONS, split_body
from hubline.amqp.codec.message import Message
from hubline.amqp.codec.performatives import Error
from hubline.amqp.codec.property_types import FIELDS, PREFIX, encode_properties, named_fields
from hubline.amqp.codec.text import to_text
from hubline.amqp.codec.types import Timestamp
from hubline.amqp.service_names import PARTITION_KEY
from hubline.credentials.entra_tokens import AccessToken, Credential, close_credential
from hubline.credentials.token_credentials import token_credential
from hubline.errors import (
    AccessDenied,
    ConfigError,
    EventTooLarge,
    HubError,
)
from hubline.hubs.argument_checks import checked_outgoing, require_count, require_one_target, require_partition
from hubline.hubs.event_buffer import EventBuffer
from hubline.hubs.eventhubs.sender import Share, shared_out
from hubline.hubs.eventhubs.service_errors import DENIED, GRANT, Where, not_found, reader_lost, unavailable
from hubline.hubs.eventhubs.start_position import Progress, Start
from hubline.model.events import EVENT_SCHEMA, EventBatch
from hubline.model.hubs import HubProperties, PartitionProperties
from hubline.model.positions import Position, PositionKind
from hubline.read_ahead import ReadAhead
from hubline.text import sentences

if TYPE_CHECKING:
    from azure.eventhub import EventData
    from azure.eventhub.aio import EventHubConsumerClient, EventHubProducerClient

log = logging.getLogger("hubline.hubs")

# Events that wait to be received: the package continues only once there is room.
WAITING_COUNT_MAX: Final = 8000
BATCH_COUNT_MAX: Final = 1000
# The package asks for so many events ahead; more make it faster over a slow network.
PREFETCH: Final = 3000


class SdkHub:
    """A hub of Event Hubs, through azure-eventhub. Used from one event loop."""

    def __init__(self, address: EventHubsAddress) -> None:
        self._require_package()
        self._address = address
        self._hub = str(address)
        self._client: EventHubProducerClient | None = None
        self._credential: _InThread | None = None
        self._partition_ids: tuple[str, ...] = ()
        self._receivers: set[SdkReceiver] = set()

    @property
    def namespace(self) -> str:
        return self._address.key_namespace

    @property
    def name(self) -> str:
        return self._address.name

    async def describe(self) -> HubProperties:
        with sdk_errors(Where(self._hub)):
            properties = await self._producer().get_eventhub_properties()
        self._partition_ids = tuple(properties["partition_ids"])
        return HubProperties(self.namespace, self.name, self._partition_ids, _in_utc(properties["created_at"]))

    async def describe_partition(self, partition: str) -> PartitionProperties:
        await self.require_partition(partition)
        with sdk_errors(Where(self._hub, partition)):
            properties = await self._producer().get_partition_properties(partition)
        last_sequence = int(properties["last_enqueued_sequence_number"])
        has_had_events = last_sequence >= 0
        return PartitionProperties(
            partition,
            begin_sequence=last_sequence + 1
            if properties["is_empty"]
            else int(properties["beginning_sequence_number"]),
            last_sequence=last_sequence,
            last_offset=str(properties["last_enqueued_offset"]) if has_had_events else None,
            last_enqueued_time=_in_utc(properties["last_enqueued_time_utc"]) if has_had_events else None,
        )

    async def open_receiver(
        self, partition: str, *, group: str, position: Position, epoch: int | None = None
    ) -> SdkReceiver:
        group = validate_group_name(group)
        there = await self.describe_partition(partition)
        progress = Progress(self._hub, position, there)
        receiver = SdkReceiver(
            self, Where(self._hub, partition), progress, client=self._consumer(group), position=position, epoch=epoch
        )
        self._receivers.add(receiver)
        return receiver

    async def open_sender(self) -> SdkSender:
        await self.describe()  # that the hub is missing shows here already
        return SdkSender(self, self._producer(), Where(self._hub))

    async def close(self) -> None:
        for receiver in list(self._receivers):
            await receiver.close()
        client, self._client = self._client, None
        if client is not None:
            await client.close()
        credential, self._credential = self._credential, None
        if credential is not None:
            await credential.close()

    async def partition_ids(self) -> tuple[str, ...]:
        return self._partition_ids or (await self.describe()).partition_ids

    async def require_partition(self, partition: str) -> None:
        if partition not in self._partition_ids:
            require_partition(partition, await self.describe(), hub=self._hub)

    def forget(self, receiver: SdkReceiver) -> None:
        self._receivers.discard(receiver)

    def _require_package(self) -> None:
        try:
            import azure.eventhub.aio  # noqa: F401  (slow to load, and of use only here)
        except ImportError:
            raise ConfigError(
                "the transport sdk needs the official package azure-eventhub. Install it: pip install "
                "'hubline[sdk]'. Or leave out the transport."
            ) from None

    def _producer(self) -> EventHubProducerClient:
        from azure.eventhub.aio import EventHubProducerClient

        if self._client is None:
            if self._has_key:
                self._client = EventHubProducerClient.from_connection_string(self._connection_string())
            else:
                self._client = EventHubProducerClient(self._address.namespace, self.name, self._entra())
        return self._client

    def _consumer(self, group: str) -> EventHubConsumerClient:
        from azure.eventhub.aio import EventHubConsumerClient

        if self._has_key:
            return EventHubConsumerClient.from_connection_string(self._connection_string(), group)
        return EventHubConsumerClient(self._address.namespace, self.name, group, self._entra())

    def _entra(self) -> Any:
        """The package takes any asynchronous credential, and closes none."""
        self._credential = self._credential or _InThread(token_credential(self._address.credential, where=self._hub))
        return self._credential

    @property
    def _has_key(self) -> bool:
        return self._address.key is not None or self._address.signature is not None

    def _connection_string(self) -> str:
        address = self._address
        place = f"{address.namespace}:{address.port}" if address.emulator else address.namespace
        parts = {"Endpoint": f"sb://{place}/"}
        if address.key is not None:
            parts |= {"SharedAccessKeyName": address.key_name or "", "SharedAccessKey": address.key.reveal()}
        elif address.signature is not None:
            parts["SharedAccessSignature"] = address.signature.reveal()
        parts["EntityPath"] = address.name
        if address.emulator:
            parts["UseDevelopmentEmulator"] = "true"
        return ";".join(f"{name}={value}" for name, value in parts.items())


class _InThread:
    """A credential as the package wants it: asynchronous."""

    def __init__(self, credential: Credential) -> None:
        self._credential = credential

    async def get_token(self, *scopes: str, **_options: Any) -> AccessToken:
        return await asyncio.to_thread(self._credential.get_token, *scopes)

    async def close(self) -> None:
        await asyncio.to_thread(close_credential, self._credential)


class SdkReceiver:
    """Reads one partition, as :class:`~hubline.ports.Receiver` says, as far as the package can."""

    def __init__(
        self,
        hub: SdkHub,
        where: Where,
        progress: Progress,
        *,
        client: EventHubConsumerClient,
        position: Position,
        epoch: int | None,
    ) -> None:
        self._hub = hub
        self._where = where
        self._partition = where.partition or ""
        self._progress = progress
        self._client = client
        self._epoch = epoch
        self._buffer = EventBuffer(ReadAhead(sys.maxsize))  # bounded by its count
        self._failed: HubError | None = None
        self._last_sequence: int | None = None
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._is_closed = False
        self._task = asyncio.create_task(self._run(position), name=f"hubline-sdk-{self._partition}")

    @property
    def last_sequence(self) -> int | None:
        return self._last_sequence

    async def receive(self, *, max_count: int, wait_seconds: float) -> EventBatch:
        require_count(max_count)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + wait_seconds
        while True:
            self._require_readable()
            if self._progress.missing_from is not None:
                self._progress.explain(await self._hub.describe_partition(self._partition))
                continue
            self._last_sequence = self._progress.last_sequence
            if self._buffer.count:
                return self._take(max_count)
            if loop.time() >= deadline:
                return EventBatch.empty(self._partition)
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await self._changed.wait()

    async def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._hub.forget(self)
        self._changed.set()
        self._room.set()
        self._task.cancel()
        await asyncio.wait([self._task])
        await self._client.close()

    def _take(self, max_count: int) -> EventBatch:
        batch = self._buffer.take(max_count, copied_bytes_max=0)
        if self._buffer.count < WAITING_COUNT_MAX:
            self._room.set()
        return batch

    def _require_readable(self) -> None:
        if self._is_closed:
            raise HubError("the receiver is closed. Open another one.", partition=self._partition)
        failed = self._failed or self._progress.failed
        if failed is not None:
            self._buffer.clear()
            raise failed

    async def _run(self, position: Position) -> None:
        starting_position, inclusive = _starting_position(position, self._progress.start)
        with suppress(asyncio.CancelledError):
            await self._client.receive_batch(
                self._on_batch,
                max_batch_size=BATCH_COUNT_MAX,
                partition_id=self._partition,
                owner_level=self._epoch,
                prefetch=PREFETCH,
                track_last_enqueued_event_properties=True,
                starting_position=starting_position,
                starting_position_inclusive=inclusive,
                on_error=self._on_error,
            )

    async def _on_batch(self, context: Any, events: list[EventData]) -> None:
        if not events or self._failed is not None:
            return
        batch = self._progress.take(EventBatch(self._partition, columns(self._partition, events)))
        newest = (context.last_enqueued_event_properties or {}).get("sequence_number")
        if isinstance(newest, int):
            self._progress.last_sequence = max(self._progress.last_sequence, newest)
        if len(batch):
            self._buffer.put(batch)
        if self._buffer.count >= WAITING_COUNT_MAX:
            self._room.clear()
        self._changed.set()
        await self._room.wait()

    async def _on_error(self, _context: object, error: Exception) -> None:
        # The package would start over from the first position: nothing that it reads from now on counts.
        self._failed = receiving_error(self._where, self._epoch, error)
        self._changed.set()


class SdkSender:
    """Appends to the hub, as :class:`~hubline.ports.Sender` says, as far as the package can."""

    def __init__(self, hub: SdkHub, client: EventHubProducerClient, where: Where) -> None:
        self._hub = hub
        self._client = client
        self._where = where
        self._lock = asyncio.Lock()
        self._is_closed = False

    async def send(
        self, events: pa.RecordBatch, *, partition: str | None = None, partition_key: str | None = None
    ) -> None:
        if self._is_closed:
            raise HubError("the sender is closed. Open another one.", hub=self._where.hub)
        require_one_target(partition, partition_key)
        events = checked_outgoing(events)
        if partition is not None:
            await self._hub.require_partition(partition)
        async with self._lock:
            with sdk_errors(self._where):
                await self._send(events, partition, partition_key)

    async def close(self) -> None:
        self._is_closed = True

    async def _send(self, events: pa.RecordBatch, partition: str | None, key: str | None) -> None:
        batches: list[Any] = []
        for share in await shared_out(events, partition, key, self._hub.partition_ids):
            batches += await self._batches(share)
        # All are made before the first is sent: an event that is too large keeps back all.
        for batch in batches:
            await self._client.send_batch(batch)

    async def _batches(self, share: Share) -> list[Any]:
        batches: list[Any] = []
        batch = None
        for index, row in zip(share.indexes.tolist(), share.events.to_pylist(), strict=True):
            event = _event(row)
            if batch is not None and not _added(batch, event):
                batch = None
            if batch is None:
                batch = await self._new_batch(share)
                batches.append(batch)
                if not _added(batch, event):
                    raise self._too_large(index, row, batch.max_size_in_bytes)
        return batches

    async def _new_batch(self, share: Share) -> Any:
        if share.key is not None:
            return await self._client.create_batch(partition_key=share.key)
        return await self._client.create_batch(partition_id=share.partition)

    def _too_large(self, index: int, row: Mapping[str, Any], max_bytes: int) -> EventTooLarge:
        properties = row["properties"] or ()
        bytes_count = len(row["body"]) + sum(len(name.encode()) + len(text.encode()) for name, text in properties)
        return EventTooLarge(
            f"event {index} has {bytes_count:,} bytes: hub {self._where.hub} takes at most {max_bytes:,}. "
            "Nothing was sent. Split the event.",
            hub=self._where.hub,
            index=index,
            bytes_count=bytes_count,
            max_bytes=max_bytes,
        )


def _event(row: Mapping[str, Any]) -> EventData:
    from azure.eventhub import EventData
    from azure.eventhub.amqp import AmqpMessageProperties

    pairs = row["properties"] or ()
    # The package has no section that is null.
    parts = [part or b"" for part in split_body(row["body"], dict(pairs).get(DATA_SECTIONS))]
    event = EventData(parts if len(parts) > 1 else parts[0])
    message = Message.decode(encode_properties(pairs))
    # As text, whatever its type was: the package has no numbers of more than 32 bits.
    event.properties = {str(name): to_text(value) for name, value in (message.application_properties or {}).items()}
    if message.properties is not None:
        event.raw_amqp_message.properties = AmqpMessageProperties(  # type: ignore[no-untyped-call]
            **asdict(message.properties)
        )
    if row["partitionKey"] is not None:
        event.raw_amqp_message.annotations = {PARTITION_KEY.encode(): row["partitionKey"]}
    return event


def _added(batch: Any, event: EventData) -> bool:
    try:
        batch.add(event)
    except ValueError:
        return False  # it would be too large
    return True


def columns(partition: str, events: Sequence[EventData]) -> pa.RecordBatch:
    """What the package gives, as EVENT_SCHEMA."""
    rows = [
        {
            "body": _body(event),
            "partition": partition,
            "offset": str(event.offset),
            "sequenceNumber": event.sequence_number,
            "enqueuedTime": event.enqueued_time,
            "partitionKey": _text(event.partition_key),
            "properties": [*_own_properties(event), *_application_properties(event)] or None,
        }
        for event in events
    ]
    return pa.RecordBatch.from_pylist(rows, schema=EVENT_SCHEMA)


def _own_properties(event: EventData) -> list[tuple[str, str | None]]:
    own = event.raw_amqp_message.properties
    if own is None:
        return []
    values = [_typed(name, getattr(own, name.removeprefix(PREFIX).replace("-", "_"))) for name in FIELDS]
    return [(name, _text(value)) for name, value in named_fields(values)]


def _application_properties(event: EventData) -> list[tuple[str | None, str | None]]:
    return [(_text(name), _text(value)) for name, value in (event.properties or {}).items()]


def _typed(name: str, value: object) -> object:
    """The package gives times as plain numbers, and what is binary as it gives strings."""
    if isinstance(value, int) and name.endswith("-time"):
        return Timestamp(value)
    return base64.b64encode(value) if isinstance(value, bytes) and name == "amqp:user-id" else value


def _body(event: EventData) -> bytes:
    from azure.eventhub.amqp import AmqpMessageBodyType

    if event.body_type is AmqpMessageBodyType.DATA:
        body: Any = event.body
        return body if isinstance(body, bytes) else b"".join(body)
    return event.body_as_str().encode()


def _text(value: object) -> str | None:
    # The package gives strings as bytes.
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else to_text(value)


def _starting_position(position: Position, start: Start) -> tuple[str | int | datetime, bool]:
    """The position as the package takes it, and whether the event there is included."""
    if start.offset is not None:
        return start.offset, True
    if start.next_sequence is not None:
        return start.next_sequence - 1, False
    if position.kind is PositionKind.ENQUEUED and isinstance(position.value, datetime):
        return position.value, position.inclusive
    return "-1", False


def receiving_error(where: Where, epoch: int | None, error: Exception) -> HubError:
    """What the package says went wrong with reading, as one of ours."""
    said = str(error)
    if "link:stolen" in said or "epoch" in said:
        return reader_lost(where, epoch, Error(conditions.STOLEN, said))
    return _translated(where, error)


@contextmanager
def sdk_errors(where: Where) -> Iterator[None]:
    """Turns what the package raises into errors of ours."""
    from azure.eventhub.exceptions import EventHubError

    try:
        yield
    except (EventHubError, OSError, TimeoutError) as error:
        raise _translated(where, error) from error


def _translated(where: Where, error: Exception) -> HubError:
    from azure.eventhub.exceptions import AuthenticationError

    said = str(error).splitlines()[0] if str(error) else type(error).__name__
    if isinstance(error, AuthenticationError) or "unauthorized-access" in str(error):
        return AccessDenied(sentences(f"{where} {DENIED}: {said}", GRANT), hub=where.hub)
    if "not-found" in str(error):
        return not_found(where, said)
    return unavailable(where, said)


def _in_utc(time: Any) -> datetime:
    """The package gives a time of day in UTC that may not say so."""
    moment: datetime = time
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
