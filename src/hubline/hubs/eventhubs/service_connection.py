"""The connection to the service that all links of a hub object share.

It is opened when it is first needed, and by the next call after it was lost. Nothing here tries again after a failure:
for readers :mod:`hubline.hubs.reconnecting_receiver` does. Before anything else it shows a token, over ``$cbs``, for
the hub and all that is beneath it; and it shows the next one in time.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from hubline.amqp import conditions, service_names
from hubline.amqp.codec.message import Map, Message, Value
from hubline.amqp.codec.performatives import Error, Open
from hubline.amqp.transport.connection import Connection, ConnectionOptions
from hubline.amqp.transport.errors import AmqpClosed, AmqpError
from hubline.amqp.transport.handshake import ClientHandshake
from hubline.amqp.transport.link import Link
from hubline.amqp.transport.session import Session
from hubline.errors import HubError, HublineError, HubUnavailable
from hubline.hubs.eventhubs.authorization import Token, TokenSource, renewal_at
from hubline.hubs.eventhubs.management_requests import Requests, status_of
from hubline.hubs.eventhubs.network import Endpoint, connect
from hubline.hubs.eventhubs.service_errors import Where, answered, translated

log = logging.getLogger("hubline.hubs")


# The service sends frames of 64 KiB, whatever it may. A large frame of hubline's emulator is received in its place.
FRAME_BYTES_MAX: Final = 8 * 1024 * 1024

# A redirect leads to where the hub is; one that leads on and on leads nowhere.
REDIRECTS_MAX: Final = 3

# A peer that says nothing for so long is gone; it is asked to say something at least twice as often.
IDLE_SECONDS: Final = 60.0

# A token that could not be renewed is asked for again after so long; the old one is still good for some minutes.
RENEW_AGAIN_SECONDS: Final = 10.0


@dataclass(slots=True)
class AuthorizedConnection:
    """A connection that is open and authorized, and what goes with it."""

    connection: Connection
    cbs: Requests
    token: Token
    renewing: asyncio.Task[None] | None = None
    management: Requests | None = None


class Service:
    """See the module. Used from one event loop."""

    def __init__(
        self, endpoint: Endpoint, name: str, tokens: TokenSource, *, clock: Callable[[], float] = time.time
    ) -> None:
        self._endpoint = endpoint
        self._name = name
        self._tokens = tokens
        self._clock = clock
        self._audience = f"sb://{endpoint.host}/{name}"
        self._where = Where(f"eventhubs://{endpoint.host}/{name}")
        self._authorized: AuthorizedConnection | None = None
        self._opening: asyncio.Task[AuthorizedConnection] | None = None
        self._elsewhere: dict[Endpoint, Service] = {}
        self._is_closed = False

    @property
    def is_closed(self) -> bool:
        """Whether this program has closed it."""
        return self._is_closed

    async def session(self) -> Session:
        """A session of its own for a link. Raises HubUnavailable, AccessDenied, HubNotFound."""
        return (await self._connected()).connection.begin()

    async def ask(self, where: Where, parameters: Map) -> dict[object, object]:
        """The answer of ``$management``, a map."""
        authorized = await self._connected()
        if authorized.management is None or authorized.management.is_over:
            authorized.management = Requests(authorized.connection.begin(), service_names.MANAGEMENT)
        parameters = {**parameters, "security_token": authorized.token.text.reveal()}
        answer = await self._answer(where, authorized.management, None, parameters)
        if not isinstance(answer.body, Value) or not isinstance(answer.body.value, dict):
            raise HubUnavailable(
                f"{where} describes itself by a value that is not a map. Check that the address is of an Event Hub.",
                hub=where.hub,
            )
        return answer.body.value

    def redirected(self, error: Error) -> Service:
        """The service at the place that a link was redirected to, with a connection of its own."""
        endpoint = self._redirect(error)
        if endpoint not in self._elsewhere:
            self._elsewhere[endpoint] = Service(endpoint, self._name, self._tokens, clock=self._clock)
        return self._elsewhere[endpoint]

    async def close(self) -> None:
        """Ends the connection. The tokens are closed by the caller that gave them."""
        self._is_closed = True
        for service in self._elsewhere.values():
            await service.close()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        if self._authorized is not None:
            await _end(self._authorized)
            self._authorized = None

    async def _connected(self) -> AuthorizedConnection:
        self.require_open()
        if self._authorized is not None and not self._authorized.connection.is_over:
            return self._authorized
        if self._opening is None or self._opening.done():
            self._opening = asyncio.create_task(self._open(), name="hubline-eventhubs-open")
            self._opening.add_done_callback(lambda opening: opening.cancelled() or opening.exception())
        try:
            # Several wait for the same connection: that one of them gives up must not take it from the others.
            return await asyncio.shield(self._opening)
        except asyncio.CancelledError:
            self.require_open()  # closing cancels the opening, not the one who waits for it
            raise

    def require_open(self) -> None:
        """Raises HubError if this program has closed it."""
        if self._is_closed:
            raise HubError(f"{self._where} was closed by this program. Open it again.", hub=self._where.hub)

    async def _open(self) -> AuthorizedConnection:
        if self._authorized is not None:
            await _end(self._authorized)
            self._authorized = None
        endpoint = self._endpoint
        for _ in range(REDIRECTS_MAX):
            try:
                self._authorized = await self._open_at(endpoint)
            except AmqpClosed as error:
                if error.error is None or error.condition != conditions.CONNECTION_REDIRECT:
                    raise translated(self._where, error) from error
                endpoint = self._redirect(error.error)
            except AmqpError as error:
                raise translated(self._where, error) from error
            else:
                return self._authorized
        raise HubUnavailable(
            f"{self._where} was redirected more than {REDIRECTS_MAX} times. Try again later.", hub=self._where.hub
        )

    async def _open_at(self, endpoint: Endpoint) -> AuthorizedConnection:
        token = await self._tokens.token(self._audience)
        connection = Connection(
            ConnectionOptions(
                container_id=f"hubline-{secrets.token_hex(8)}",
                hostname=self._endpoint.host,
                idle_seconds=IDLE_SECONDS,
                frame_bytes_max=FRAME_BYTES_MAX,
                properties={"product": "hubline"},
            ),
            handshake=ClientHandshake(self._endpoint.host),
            handler=_Nothing(),
        )
        try:
            await connect(endpoint, connection)
            await connection.opened()
            authorized = AuthorizedConnection(connection, Requests(connection.begin(), service_names.CBS), token)
            await self._show(authorized, token)
        except BaseException:
            connection.close()
            connection.abort()
            raise
        authorized.renewing = asyncio.create_task(self._keep_renewing(authorized), name="hubline-eventhubs-renew")
        return authorized

    async def _show(self, authorized: AuthorizedConnection, token: Token) -> None:
        """Proves to the service who asks. Raises AccessDenied."""
        parameters: Map = {"operation": "put-token", "type": token.type, "name": self._audience}
        await self._answer(self._where, authorized.cbs, token.text.reveal(), parameters)
        authorized.token = token

    async def _answer(self, where: Where, requests: Requests, body: object, parameters: Map) -> Message:
        try:
            answer = await requests.ask(body, parameters)
        except TimeoutError:
            # A peer that takes requests and answers none is better left: the next call connects again.
            if self._authorized is not None:
                self._authorized.connection.abort()
            raise HubUnavailable(
                f"{where} did not answer a request in time. Try again, and check the network.", hub=where.hub
            ) from None
        except AmqpClosed as error:
            if error.condition == conditions.CONNECTION_REDIRECT:
                raise
            raise translated(where, error) from error
        status, description = status_of(answer)
        if not 200 <= status < 300:
            raise answered(where, status, description)
        return answer

    async def _keep_renewing(self, authorized: AuthorizedConnection) -> None:
        renew_at = renewal_at(authorized.token, now=self._clock())
        while not authorized.connection.is_over:
            await asyncio.sleep(max(renew_at - self._clock(), 0.0))
            renew_at = self._clock() + RENEW_AGAIN_SECONDS
            try:
                token = await self._tokens.token(self._audience)
                # A source may have nothing newer yet, or never: a signature is what it is.
                if token.expires_at > authorized.token.expires_at:
                    await self._show(authorized, token)
                    renew_at = renewal_at(token, now=self._clock())
            except HublineError as error:
                # Also what is denied now may be granted in a minute: a managed identity is not always to be had. Once
                # the old token expires the service ends the links, and says why.
                log.warning("token_not_renewed hub=%s reason=%s", self._where.hub, error)

    def _redirect(self, error: Error) -> Endpoint:
        """Where a redirect leads. The token goes there too, so it has to be a place of the same domain."""
        info = {str(key): value for key, value in (error.info or {}).items()}
        host, port = info.get("network-host"), info.get("port")
        own = self._endpoint
        if not isinstance(host, str) or not _is_beside(host, own.host):
            raise HubUnavailable(
                f"{self._where} was redirected to a host outside of its own domain, which hubline does not "
                "follow. Check the namespace's address.",
                hub=self._where.hub,
            )
        return replace(own, host=host, port=port if isinstance(port, int) else own.port)


def _is_beside(host: str, other: str) -> bool:
    """Whether the hosts are the same or belong to the same domain, that of the service."""
    domain = other.partition(".")[2]
    return host == other or ("." in domain and host.endswith(f".{domain}"))


async def _end(authorized: AuthorizedConnection) -> None:
    if authorized.renewing is not None:
        authorized.renewing.cancel()
        with suppress(asyncio.CancelledError):
            await authorized.renewing
    authorized.connection.close()
    await authorized.connection.closed()


class _Nothing:
    """What happens on the connection beside its links: nothing that is not asked for where it matters."""

    def on_open(self, connection: Connection, remote: Open) -> None:
        pass

    def on_link(self, link: Link) -> None:
        link.refuse(Error(conditions.NOT_ALLOWED, "this side asks for links, and offers none"))

    def on_closed(self, connection: Connection, error: Error | None) -> None:
        pass
