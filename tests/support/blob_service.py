"""Blob Storage as its client sees it, in virtual time: the requests are the client's own, and each is counted."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import formatdate
from typing import Final
from xml.sax.saxutils import escape

from hubline.addresses.blob_address import BlobAddress
from hubline.addresses.store_address import parse_store
from hubline.checkpoint_stores.blob import BlobStore
from hubline.checkpoint_stores.blob.http import Answer
from hubline.testing.simulation.virtual_loop import SimProcess, World

STARTED_AT: Final = 1_800_000_000
"""The service's time when the world begins, in seconds since 1970."""

LATENCY_SECONDS: Final = 0.005
"""One way."""

META: Final = "x-ms-meta-"


@dataclass(frozen=True, slots=True)
class _Stored:
    etag: str
    modified_at: int
    metadata: Mapping[str, str]


class BlobService:
    """A container. ``calls`` counts requests by their names in the service's documentation."""

    def __init__(self, world: World) -> None:
        self.calls: Counter[str] = Counter()
        self._world = world
        self._blobs: dict[str, _Stored] = {}
        self._etags = itertools.count(1)

    def connect(self, _process: SimProcess) -> BlobStore:
        """A process's own client."""
        address = parse_store("http://127.0.0.1:10000/devstoreaccount1/simulated")
        assert isinstance(address, BlobAddress)
        store = BlobStore(address)
        store.container._transport = _Connection(self)  # type: ignore[assignment]
        return store

    def answer(self, method: str, blob: str | None, query: Mapping[str, str], headers: Mapping[str, str]) -> Answer:
        if blob is None:
            self.calls["List Blobs"] += 1
            return self._answered(200, body=self._listing(query["prefix"]))
        stored = self._blobs.get(blob)
        if method == "HEAD":
            self.calls["Get Blob Properties"] += 1
            return self._answered(404) if stored is None else self._answered(200, stored)
        if method == "DELETE":
            self.calls["Delete Blob"] += 1
        else:
            self.calls["Set Blob Metadata" if query.get("comp") == "metadata" else "Put Blob"] += 1
        if stored is None and (method == "DELETE" or "comp" in query):
            return self._answered(404)
        if stored is not None and headers.get("If-None-Match") == "*":
            return self._answered(409)
        if stored is not None and headers.get("If-Match", stored.etag) != stored.etag:
            return self._answered(412)
        if method == "DELETE":
            del self._blobs[blob]
            return self._answered(202)
        metadata = {name.removeprefix(META): text for name, text in headers.items() if name.startswith(META)}
        self._blobs[blob] = _Stored(f'"0x{next(self._etags):X}"', self._now, metadata)
        return self._answered(200 if "comp" in query else 201, self._blobs[blob])

    @property
    def _now(self) -> int:
        return STARTED_AT + int(self._world.now)

    def _answered(self, status: int, stored: _Stored | None = None, *, body: bytes = b"") -> Answer:
        headers: dict[str, str] = {}
        if stored is not None:
            headers = {"ETag": stored.etag, "Last-Modified": formatdate(stored.modified_at, usegmt=True)}
            headers |= {META + name: text for name, text in stored.metadata.items()}
        return Answer(status, headers, body, float(self._now))

    def _listing(self, prefix: str) -> bytes:
        blobs = "".join(
            f"<Blob><Name>{escape(name)}</Name><Properties>"
            f"<Last-Modified>{formatdate(stored.modified_at, usegmt=True)}</Last-Modified><Etag>{stored.etag}</Etag>"
            f"</Properties><Metadata>{_elements(stored.metadata)}</Metadata></Blob>"
            for name, stored in self._blobs.items()
            if name.startswith(prefix)
        )
        return f"<EnumerationResults><Blobs>{blobs}</Blobs><NextMarker/></EnumerationResults>".encode()


def _elements(metadata: Mapping[str, str]) -> str:
    return "".join(f"<{name}>{escape(text)}</{name}>" for name, text in metadata.items())


class _Connection:
    """In place of :class:`~hubline.checkpoint_stores.blob.http.Transport`."""

    shown = "the simulated container"
    skew_seconds = 0.0

    def __init__(self, service: BlobService) -> None:
        self._service = service

    async def send(
        self,
        method: str,
        *,
        blob: str | None = None,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        await asyncio.sleep(LATENCY_SECONDS)
        answer = self._service.answer(method, blob, query or {}, headers or {})
        await asyncio.sleep(LATENCY_SECONDS)
        return answer

    async def close(self) -> None:
        """Nothing is open."""
