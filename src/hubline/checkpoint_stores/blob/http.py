"""Requests to Blob Storage: signed, over pooled connections, retried where that may help, bounded in time and size.

A request that is retried may have taken effect the first time, also when a kept connection breaks and the HTTP
library sends it again by itself. Conditional writes therefore carry a mark, and a client whose condition does
not hold looks for it (:mod:`.client`).
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import random
import time
import urllib.request
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from email.utils import formatdate, parsedate_to_datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from hubline.addresses.blob_address import BlobAddress
from hubline.checkpoint_stores.blob.auth import Credential
from hubline.errors import ConfigError, StoreError, StoreUnavailable
from hubline.retry import RetryPolicy
from hubline.text import sentences

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

API_VERSION: Final = "2021-12-02"
"""Old enough for every emulator, new enough for names that XML cannot hold."""

CONNECTIONS_MAX: Final = 32
"""More do not make the service answer sooner, and each costs a TLS handshake."""

BULK_REQUESTS_MAX: Final = CONNECTIONS_MAX - 8
"""Requests of one call at a time: a few connections stay free for heartbeats and checkpoints."""

RETRY: Final = RetryPolicy(max_attempts=4, initial_backoff_seconds=0.3, max_backoff_seconds=1.2)
"""About two seconds: longer outages are for the caller, who has a lease to think of."""

SILENCE_SECONDS_MAX: Final = 15.0
"""The service answers within a second; what takes this long will not come."""
CONNECT_SECONDS_MAX: Final = 5.0

ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
"""5,000 blobs with all the metadata that a blob may have (8 KiB) come to 40 MiB."""

SKEW_SECONDS_MAX: Final = 60.0
"""Requests are dated by the service's clock once it is known to differ by more: it refuses dates 15 minutes off."""

_TRY_AGAIN: Final = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Answer:
    """What the service said. ``now`` is its own time, in seconds since 1970 and without fractions."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    now: float

    @property
    def code(self) -> str:
        """The service's name for what went wrong; empty if nothing did."""
        return self.headers.get("x-ms-error-code", "")


class Transport:
    """Sends requests for one container. Connects when first used; may be used from one event loop after another."""

    def __init__(self, address: BlobAddress, credential: Credential, *, clock: Callable[[], float] = time.time) -> None:
        if importlib.util.find_spec("aiohttp") is None:
            raise ConfigError("blob stores need the package aiohttp. Install it: pip install 'hubline[blob]'.")
        self.shown = f"the blob container {address.container!r} at {address.endpoint}"
        self._origin, self._path = _split(address)
        self._proxy = _proxy_of(self._origin)
        self._credential = credential
        self._clock = clock
        self._rng = random.Random()  # noqa: S311 - spreads load, guards nothing
        self._skew_seconds = 0.0
        self._scope: AsyncGenerator[ClientSession, None] | None = None
        self._session: ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def send(
        self,
        method: str,
        *,
        blob: str | None = None,
        is_account: bool = False,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """The service's answer, whatever it is; raises StoreUnavailable if there is none, or none but "try again".

        It is about the blob, or the container, or (``is_account``) the account.
        """
        path = self._path if blob is None else f"{self._path}/{quote(blob, safe='/')}"
        if is_account:
            path = self._path.rpartition("/")[0] + "/"
        problem = ""
        for attempt in range(RETRY.max_attempts):
            if attempt:
                await asyncio.sleep(RETRY.delay(attempt, self._rng))
            try:
                answer = await self._attempt(method, path, query or {}, dict(headers or {}))
            except _NoAnswer as error:
                problem = str(error)
                continue
            if answer.status not in _TRY_AGAIN and not (attempt == 0 and self._is_misdated(answer)):
                return answer
            problem = f"it answers {answer.status} {answer.code}".rstrip()
        raise StoreUnavailable(sentences(f"{self.shown} cannot be used now: {problem}", "try again later"))

    async def close(self) -> None:
        scope, self._scope, self._session = self._scope, None, None
        if scope is not None and self._loop is asyncio.get_running_loop():
            await scope.aclose()

    @property
    def skew_seconds(self) -> float:
        """How far the service's clock is ahead of this machine's, as last seen."""
        return self._skew_seconds

    async def _attempt(self, method: str, path: str, query: Mapping[str, str], headers: dict[str, str]) -> Answer:
        import aiohttp
        from yarl import URL

        session = await self._open_session()
        headers["x-ms-version"] = API_VERSION
        headers["x-ms-date"] = formatdate(self._clock() + self._date_correction(), usegmt=True)
        if method == "PUT":
            headers["Content-Length"] = "0"
        proof = await self._credential.authorize(method, path, query, headers)
        pairs = [f"{name}={quote(value, safe='')}" for name, value in query.items()]
        pairs += [f"{name}={value}" for name, value in proof.items()]
        # Encoded already: what is sent has to be what was signed.
        url = URL(f"{self._origin}{path}{'?' if pairs else ''}{'&'.join(pairs)}", encoded=True)
        try:
            async with session.request(
                method, url, headers=headers, allow_redirects=False, proxy=self._proxy
            ) as response:
                body = await _bounded_body(response)
                return self._answer(response.status, response.headers, body)
        except TimeoutError:
            problem = f"no answer within {SILENCE_SECONDS_MAX:g} s"
        except aiohttp.ClientConnectorCertificateError as error:
            problem = f"its certificate is not trusted ({error.certificate_error})"
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
            problem = str(error) or type(error).__name__
        except aiohttp.ClientError as error:
            # Of others the text may quote the URL, and with it the signature.
            problem = type(error).__name__
        raise _NoAnswer(problem)

    def _answer(self, status: int, headers: Mapping[str, str], body: bytes) -> Answer:
        text = headers.get("Date")
        if text is None:
            raise StoreError(
                f"{self.shown} answers without the time (no Date header). Check for a proxy that removes it."
            )
        now = seconds_of(text)
        self._skew_seconds = now - self._clock()
        return Answer(status, headers, body, now)

    def _date_correction(self) -> float:
        return self._skew_seconds if abs(self._skew_seconds) > SKEW_SECONDS_MAX else 0.0

    def _is_misdated(self, answer: Answer) -> bool:
        """Whether the request was refused because of this machine's clock: dated by the service's it may pass."""
        return answer.status == 403 and abs(self._skew_seconds) > SKEW_SECONDS_MAX

    async def _open_session(self) -> ClientSession:
        loop = asyncio.get_running_loop()
        if self._session is None or self._loop is not loop:
            # As an asynchronous generator it ends with its event loop, also if nobody closes the store before.
            self._scope, self._loop = _session(), loop
            self._session = await anext(self._scope)
        return self._session


class _NoAnswer(Exception):
    """The request may or may not have taken effect. Does not leave this module."""


async def _session() -> AsyncGenerator[ClientSession, None]:
    import aiohttp

    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX),
        # Not the time that a request waits for a connection: how long that may take, its caller knows.
        timeout=aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS_MAX, sock_read=SILENCE_SECONDS_MAX),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent", "Accept", "Content-Type"),
    )
    try:
        yield session
    finally:
        await session.close()
        await asyncio.sleep(0)  # lets the connections see that they are closed


async def _bounded_body(response: ClientResponse) -> bytes:
    chunks: list[bytes] = []
    left = ANSWER_BYTES_MAX
    async for chunk in response.content.iter_any():
        left -= len(chunk)
        if left < 0:
            raise StoreError(
                f"an answer has more than {ANSWER_BYTES_MAX:,} bytes. Check that the address is of Azure Blob "
                "Storage, not of a proxy."
            )
        chunks.append(chunk)
    return b"".join(chunks)


def _split(address: BlobAddress) -> tuple[str, str]:
    """The origin, and the encoded path of the container."""
    scheme, _, rest = address.endpoint.partition("://")
    authority, slash, account = rest.partition("/")
    return f"{scheme}://{authority}", f"{slash}{account}/{address.container}"


def _proxy_of(origin: str) -> str | None:
    """The proxy that HTTPS_PROXY names, unless NO_PROXY excepts the host. Plain connections use none."""
    settings = urllib.request.getproxies_environment()
    scheme, _, authority = origin.partition("://")
    is_excepted = urllib.request.proxy_bypass_environment(authority, settings)  # type: ignore[attr-defined]
    url = settings.get("https")
    if scheme != "https" or not url or is_excepted:
        return None
    return url if "://" in url else f"http://{url}"


@functools.lru_cache(maxsize=1024)
def seconds_of(text: str) -> float:
    """Seconds since 1970 of a date as HTTP writes it: many blobs have the same."""
    return parsedate_to_datetime(text).timestamp()
