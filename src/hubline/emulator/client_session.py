"""One client of the endpoint, from its connection to its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Final

from hubline.amqp import conditions, service_names
from hubline.amqp.codec.performatives import (
    RECEIVE_FIRST,
    RECEIVER,
    SEND_SETTLED,
    SENDER,
    Attach,
    Error,
    Open,
    Source,
    Target,
)
from hubline.amqp.transport.connection import Connection
from hubline.amqp.transport.link import Link
from hubline.amqp.transport.receiver_link import ReceiverLink
from hubline.amqp.transport.sender_link import SenderLink
from hubline.amqp.transport.session import Session
from hubline.concurrency import BackgroundTasks
from hubline.emulator.authorization import Grants
from hubline.emulator.cbs import TokenNode
from hubline.emulator.errors import Refusal, error_of
from hubline.emulator.hubs import Hubs
from hubline.emulator.link_addresses import (
    CbsAddress,
    ManagementAddress,
    ReceiverAddress,
    SenderAddress,
    parse_address,
    path_segments,
)
from hubline.emulator.management import ManagementNode
from hubline.emulator.receivers import ClientReceiver, ReaderCount, ReceiverLinks, open_receiver
from hubline.emulator.requests import Answering, RequestNode
from hubline.emulator.senders import MESSAGE_BYTES_MAX, ClientSender
from hubline.emulator.start_filter import parse_filter
from hubline.errors import ConfigError, HublineError
from hubline.ports import Hub

# More than a client needs to read every partition of the largest hub. Each takes some memory here.
LINKS_MAX: Final = 2048

# How long a stopping endpoint waits for what clients have sent to be durable and answered.
DRAIN_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Shared:
    """What all clients of an endpoint share."""

    hubs: Hubs
    readers: ReaderCount
    receiver_links: ReceiverLinks


class ClientSession:
    """One client: its links, and what it may do. A connection handler.

    Whatever a client does wrong ends its link or its connection, and nothing else.
    """

    def __init__(self, shared: Shared, grants: Grants) -> None:
        self._shared = shared
        self._grants = grants
        self._tasks = BackgroundTasks()
        self._nodes: dict[tuple[Session, type], RequestNode] = {}
        self._senders: dict[Link, ClientSender] = {}
        self._links: set[Link] = set()
        self._entities: dict[Link, list[str]] = {}
        self._expiry: asyncio.TimerHandle | None = None
        self.on_gone: Callable[[], object] = lambda: None
        """Called when the connection is over."""

    def on_open(self, connection: Connection, remote: Open) -> None: ...

    def on_link(self, link: Link) -> None:
        self._forget_what_is_over()
        if len(self._links) >= LINKS_MAX:
            _refuse(link, Error(conditions.RESOURCE_LIMIT_EXCEEDED, f"a connection has at most {LINKS_MAX} links"))
            return
        self._links.add(link)
        text = _address_text(link)
        address = parse_address(text)
        match address:
            case CbsAddress():
                self._accept_requests(link, CbsAddress, TokenNode(self._grants, self._watch_expiry).answer)
            case ManagementAddress():
                node = ManagementNode(self._shared.hubs, self._grants.allows_with)
                self._accept_requests(link, ManagementAddress, node.answer)
            case SenderAddress() if isinstance(link, ReceiverLink) and self._may(link, text):
                self._tasks.spawn(self._refusing(link, self._open_sender(link, address)))
            case ReceiverAddress() if isinstance(link, SenderLink) and self._may(link, text):
                self._tasks.spawn(self._refusing(link, self._open_receiver(link, address)))
            case SenderAddress() | ReceiverAddress() if not self._grants.allows(path_segments(text)):
                _refuse(link, Error(conditions.UNAUTHORIZED_ACCESS, "no token was put over $cbs for this address"))
            case _:
                _refuse(link, Error(conditions.NOT_FOUND, f"there is nothing under the address {(text or '')[:256]!r}"))

    def on_closed(self, _connection: Connection, _error: Error | None) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._nodes.clear()
        self._links.clear()
        self._entities.clear()
        self.on_gone()

    async def drain(self) -> None:
        """Waits until everything that the client sent is durable and answered."""
        appending = [sender.appending for sender in self._senders.values() if sender.appending is not None]
        if appending:
            await asyncio.wait(appending, timeout=DRAIN_SECONDS)

    async def finish(self) -> None:
        """Waits for what still runs for a client that is gone."""
        await self._tasks.wait()

    # Requests.

    def _accept_requests(self, link: Link, kind: type, answering: Answering) -> None:
        key = (link.session, kind)
        if key not in self._nodes:
            self._nodes[key] = RequestNode(answering, self._tasks.spawn)
        link.accept(_answer_to(link), self._nodes[key])

    def _may(self, link: Link, text: str | None) -> bool:
        segments = path_segments(text)
        self._entities[link] = segments
        return self._grants.allows(segments)

    def _watch_expiry(self) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        seconds = self._grants.seconds_to_next_expiry()
        if seconds is not None:
            self._expiry = asyncio.get_running_loop().call_later(seconds, self._end_expired)

    def _end_expired(self) -> None:
        self._forget_what_is_over()
        for link, segments in self._entities.items():
            if link.is_attached and not self._grants.allows(segments):
                link.detach(
                    Error(conditions.UNAUTHORIZED_ACCESS, "the token for this address has expired. Put a new one.")
                )
        self._watch_expiry()

    # Events.

    async def _refusing(self, link: Link, opening: Coroutine[object, object, None]) -> None:
        """What cannot be opened refuses the link with the reason."""
        try:
            await opening
        except HublineError as error:
            _refuse(link, error_of(error))
        except Exception:
            _refuse(
                link, Error(conditions.INTERNAL_ERROR, "the link cannot continue, because of an error of the server")
            )
            raise

    async def _open_sender(self, link: ReceiverLink, address: SenderAddress) -> None:
        hub = await self._hub(address.hub, address.partition)
        hub_sender = await hub.open_sender()
        if link.is_over:
            await hub_sender.close()
            return
        sender = self._senders[link] = ClientSender(hub_sender, partition=address.partition, spawn=self._tasks.spawn)
        link.accept(_answer_to(link), sender)

    async def _open_receiver(self, link: SenderLink, address: ReceiverAddress) -> None:
        assert link.remote is not None  # noqa: S101 (the peer asked for it)
        source = link.remote.source
        position = parse_filter(source.filter if isinstance(source, Source) else None)
        epoch = _epoch(link.remote)
        hub = await self._hub(address.hub, address.partition)
        await self._shared.receiver_links.settled(address)
        with self._shared.readers.one_more(address) if epoch is None else nullcontext():
            receiver = await open_receiver(hub, address, position, epoch)
            if link.is_over:
                await receiver.close()
                return
            desired = link.remote.desired_capabilities or ()
            has_metrics = service_names.RUNTIME_METRICS in desired
            answer = replace(_answer_to(link), snd_settle_mode=SEND_SETTLED)
            client_receiver = ClientReceiver(hub, receiver, address.partition, has_metrics=has_metrics)
            with self._shared.receiver_links.one_more(address, link, epoch):
                link.accept(answer, client_receiver)
                await client_receiver.run(link)

    async def _hub(self, name: str, partition: str | None) -> Hub:
        hub = await self._shared.hubs.find(name)
        if hub is None:
            raise Refusal(
                conditions.NOT_FOUND,
                (
                    f"there is no hub {name[:64]!r} here. Create it with `hubline serve --create NAME:PARTITIONS`, "
                    "or correct the name."
                ),
            )
        ids = (await hub.describe()).partition_ids
        if partition is not None and partition not in ids:
            raise Refusal(
                conditions.NOT_FOUND,
                (
                    f"hub {hub.name} has no partition {partition[:64]!r}: it has {len(ids)}, from {ids[0]} to "
                    f"{ids[-1]}. Choose one of these."
                ),
            )
        return hub

    def _forget_what_is_over(self) -> None:
        self._senders = {
            link: sender for link, sender in self._senders.items() if not (link.is_over and sender.appending is None)
        }
        self._links = {link for link in self._links if not link.is_over}
        self._entities = {link: segments for link, segments in self._entities.items() if not link.is_over}
        self._nodes = {key: node for key, node in self._nodes.items() if not key[0].is_over}


def _address_text(link: Link) -> str | None:
    """Where the peer sends to, or wants to receive from."""
    assert link.remote is not None  # noqa: S101 (the peer asked for it)
    terminus = link.remote.target if link.role is RECEIVER else link.remote.source
    return terminus.address if isinstance(terminus, Source | Target) else None


def _answer_to(link: Link) -> Attach:
    """The peer's attach from the other side."""
    assert link.remote is not None  # noqa: S101 (the peer asked for it)
    return replace(
        link.remote,
        handle=link.handle,
        role=link.role,
        # What comes is settled as it is answered: there is no second step to ask for.
        rcv_settle_mode=RECEIVE_FIRST if link.role is RECEIVER else link.remote.rcv_settle_mode,
        unsettled=None,
        incomplete_unsettled=False,
        initial_delivery_count=0 if link.role is SENDER else None,
        max_message_size=MESSAGE_BYTES_MAX,
        offered_capabilities=link.remote.desired_capabilities,
        desired_capabilities=None,
    )


def _refuse(link: Link, error: Error) -> None:
    """Refuses a link that was asked for, or ends it if it was taken already; nothing if it is over."""
    if link.is_over:
        return
    if link.is_attached:
        link.detach(error)
    else:
        link.refuse(error, message_bytes_max=MESSAGE_BYTES_MAX)


def _epoch(attach: Attach) -> int | None:
    value = (attach.properties or {}).get(service_names.EPOCH)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"{service_names.EPOCH} must be a number, not {type(value).__name__}.")
    return int(value)
