"""Attaching a link, to send or to receive, wherever the service redirects it to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from hubline.amqp import conditions
from hubline.amqp.transport.errors import AmqpClosed, AmqpError
from hubline.amqp.transport.link import Link
from hubline.amqp.transport.session import Session
from hubline.errors import HubUnavailable
from hubline.hubs.eventhubs.service_connection import Service
from hubline.hubs.eventhubs.service_errors import Where, translated

# The service answers an attach within a second or so.
ATTACH_SECONDS: Final = 30.0
REDIRECTS_MAX: Final = 3

AnyLink = TypeVar("AnyLink", bound=Link)


async def attach(service: Service, where: Where, begin: Callable[[Session], AnyLink]) -> AnyLink:
    """The link that ``begin`` starts in a session of its own, attached. Raises AmqpClosed if the service refuses it."""
    for _ in range(REDIRECTS_MAX):
        try:
            return await _attach_at(service, where, begin)
        except AmqpClosed as closed:
            if closed.error is None or closed.condition != conditions.LINK_REDIRECT:
                raise
            service = service.redirected(closed.error)
        except AmqpError as error:
            raise translated(where, error) from error
    raise HubUnavailable(f"{where} was redirected more than {REDIRECTS_MAX} times. Try again later.", hub=where.hub)


async def _attach_at(service: Service, where: Where, begin: Callable[[Session], AnyLink]) -> AnyLink:
    session = await service.session()
    link = begin(session)
    try:
        async with asyncio.timeout(ATTACH_SECONDS):
            await link.attached()
    except BaseException as error:
        link.detach()
        session.end()
        if isinstance(error, TimeoutError):
            raise HubUnavailable(
                f"{where} did not answer in time. Try again, and check the network.", hub=where.hub
            ) from None
        raise
    return link
