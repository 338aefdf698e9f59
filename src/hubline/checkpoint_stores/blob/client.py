"""What can be done to the blobs of one container. All of them are empty: what they say is in their metadata.

Conditional writes tell apart "somebody else was first" from "my own write, whose answer was lost": each carries a mark
of its own, and a client whose condition does not hold reads it back.
"""

from __future__ import annotations

import re
import secrets
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

from hubline.checkpoint_stores.blob.http import Answer, Transport, seconds_of
from hubline.errors import ConfigError, StoreError, StoreNotFound, StoreUnavailable
from hubline.text import sentences

MARK: Final = "hublinewrite"
"""The metadata of the mark. The SDKs ignore names that they do not know."""

PAGES_MAX: Final = 1_000
"""Five million blobs: a listing that does not end there never will."""

_METADATA_HEADER: Final = "x-ms-meta-"
# What a header can carry, and brings back unchanged: no line ends, nothing but ASCII, no spaces around it.
_VALUE: Final = re.compile(r"(?:[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)?")


@dataclass(frozen=True, slots=True)
class Blob:
    """A blob as it is listed or looked at. Metadata names are in lower case; ``modified_at`` is by the service's clock.

    ``age_seconds`` is what has passed between then and the answer, at least: both times are whole seconds.
    """

    name: str
    etag: str
    modified_at: float
    age_seconds: float
    metadata: Mapping[str, str]
    bytes_count: int = 0
    is_leased: bool = False


RESOLUTION_SECONDS = 1.0
"""How far the difference of two whole seconds may be above that of the times themselves."""


def age_seconds(modified_at: float, now: float) -> float:
    """An age that is never overstated: a lease must not look older than it is."""
    return max(0.0, now - modified_at - RESOLUTION_SECONDS)


@dataclass(frozen=True, slots=True)
class Written:
    """A blob after a write: its new ETag, and when that was, both by the service."""

    etag: str
    modified_at: float


class Container:
    """The blobs of a container. Raises StoreUnavailable to try again, StoreError where that does not help."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @property
    def shown(self) -> str:
        return self._transport.shown

    @property
    def skew_seconds(self) -> float:
        """How far the service's clock is ahead of this machine's, as last seen."""
        return self._transport.skew_seconds

    async def list(self, prefix: str) -> tuple[list[Blob], float]:
        """Every blob whose name starts so, with its metadata, and the service's time."""
        query = {"restype": "container", "comp": "list", "prefix": prefix, "include": "metadata"}
        blobs: list[Blob] = []
        now = 0.0
        for page in range(PAGES_MAX):
            answer = await self._transport.send("GET", query=query)
            self._expect(answer, 200)
            # The first page's time: what was listed later is no younger than it looks.
            now = now if page else answer.now
            listed, marker = parse_listing(answer.body, now=answer.now)
            blobs += listed
            if not marker:
                return blobs, now
            query = {**query, "marker": marker}
        raise StoreError(
            f"{self.shown}: the list of blobs below {prefix!r} does not end. Check that the address is of "
            "Azure Blob Storage, not of a proxy."
        )

    async def look(self, name: str) -> Blob | None:
        """The blob, or None if there is none."""
        answer = await self._transport.send("HEAD", blob=name)
        if self._is_missing(answer):
            return None
        self._expect(answer, 200)
        modified_at = seconds_of(answer.headers["Last-Modified"])
        return Blob(
            name=name,
            etag=bare_etag(answer.headers["ETag"]),
            modified_at=modified_at,
            age_seconds=age_seconds(modified_at, answer.now),
            metadata={
                header.lower().removeprefix(_METADATA_HEADER): value
                for header, value in answer.headers.items()
                if header.lower().startswith(_METADATA_HEADER)
            },
            bytes_count=int(answer.headers.get("Content-Length", "0")),
            is_leased=answer.headers.get("x-ms-lease-state") == "leased",
        )

    async def read(self, name: str) -> bytes | None:
        """What a blob contains, for those that others wrote; None if there is none."""
        answer = await self._transport.send("GET", blob=name)
        if self._is_missing(answer):
            return None
        self._expect(answer, 200)
        return answer.body

    async def create(self, name: str, metadata: Mapping[str, str]) -> Written | Blob | None:
        """Makes the blob. If there is one already it is left as it is, and returned; None if it is gone by then."""
        return await self._write(name, metadata, {"If-None-Match": "*", "x-ms-blob-type": "BlockBlob"}, {})

    async def put(self, name: str, metadata: Mapping[str, str]) -> Written:
        """Makes the blob, whatever there was."""
        written = await self._write(name, metadata, {"x-ms-blob-type": "BlockBlob"}, {})
        if not isinstance(written, Written):
            raise StoreUnavailable(
                f"{self.shown}: {name!r} cannot be written now, because another program holds a lease on the "
                "blob. Try again when it has ended, or break the lease."
            )
        return written

    async def replace(
        self, name: str, metadata: Mapping[str, str], *, etag: str, lease_id: str = ""
    ) -> Written | Blob | None:
        """Writes the metadata of a blob, if it is still as it was under this ETag, and leased under this id if one is
        given, or else not at all.

        If it is not, returns what is there instead; None if it is gone.
        """
        headers = {"If-Match": f'"{etag}"'} | ({"x-ms-lease-id": lease_id} if lease_id else {})
        return await self._write(name, metadata, headers, {"comp": "metadata"})

    async def delete(self, name: str, *, etag: str | None = None) -> bool:
        """Whether the blob is gone. With an ETag only if it is still as it was under that one."""
        headers = {"x-ms-delete-snapshots": "include"} | ({} if etag is None else {"If-Match": f'"{etag}"'})
        answer = await self._transport.send("DELETE", blob=name, headers=headers)
        if self._is_missing(answer):
            return True
        if answer.status == 412:
            return False
        self._expect(answer, 202)
        return True

    # Leases: the service's own locks. None of these changes an ETag, and each may be sent twice.

    async def acquire_lease(self, name: str, lease_id: str, *, seconds: int, etag: str) -> bool:
        """Whether the blob is leased under this id now: nobody else held it, and it was as under this ETag."""
        headers = {"x-ms-proposed-lease-id": lease_id, "x-ms-lease-duration": str(seconds), "If-Match": f'"{etag}"'}
        return await self._lease(name, "acquire", headers, status=201)

    async def renew_lease(self, name: str, lease_id: str) -> bool:
        """Whether the blob is leased under this id, and its time starts again. An expired lease comes back, if nobody
        has leased or written the blob since."""
        return await self._lease(name, "renew", {"x-ms-lease-id": lease_id}, status=200)

    async def release_lease(self, name: str, lease_id: str) -> bool:
        return await self._lease(name, "release", {"x-ms-lease-id": lease_id}, status=200)

    async def break_lease(self, name: str) -> bool:
        """Ends the lease at once, no matter who has it. Whether there was one."""
        return await self._lease(name, "break", {"x-ms-lease-break-period": "0"}, status=202)

    async def service_properties(self) -> bytes | None:
        """The account's settings for blobs, as XML; None to who may not ask: a container's signature may not."""
        answer = await self._transport.send("GET", is_account=True, query={"restype": "service", "comp": "properties"})
        return answer.body if answer.status == 200 else None

    async def keeps_versions(self, prefix: str) -> bool | None:
        """Whether the account keeps a version of every write; None if there is no blob whose name starts so to tell."""
        blobs, _ = await self.list(prefix)
        if not blobs:
            return None
        answer = await self._transport.send("HEAD", blob=blobs[0].name)
        return "x-ms-version-id" in answer.headers if answer.status == 200 else None

    async def close(self) -> None:
        await self._transport.close()

    async def _lease(self, name: str, action: str, headers: Mapping[str, str], *, status: int) -> bool:
        """409 and 412 mean that the lease, or the blob, is another's or another: a result, and no error."""
        answer = await self._transport.send(
            "PUT", blob=name, query={"comp": "lease"}, headers={**headers, "x-ms-lease-action": action}
        )
        if self._is_missing(answer) or answer.status in (409, 412):
            return False
        self._expect(answer, status)
        return True

    async def _write(
        self, name: str, metadata: Mapping[str, str], headers: Mapping[str, str], query: Mapping[str, str]
    ) -> Written | Blob | None:
        mark = secrets.token_hex(8)
        marked = {**metadata, MARK: mark}
        answer = await self._transport.send(
            "PUT", blob=name, query=query, headers={**headers, **_metadata_headers(name, marked)}
        )
        if answer.status in (200, 201):
            return Written(bare_etag(answer.headers["ETag"]), seconds_of(answer.headers["Last-Modified"]))
        if answer.status not in (409, 412) and not self._is_missing(answer):
            raise self._refused(answer)
        if self._is_missing(answer):
            return None
        found = await self.look(name)
        if found is not None and found.metadata.get(MARK) == mark:
            return Written(found.etag, found.modified_at)  # it was sent twice, and found itself
        return found

    def _is_missing(self, answer: Answer) -> bool:
        """Whether there is no such blob. A container that is missing is another matter."""
        if answer.status != 404:
            return False
        if answer.code == "ContainerNotFound":
            raise StoreNotFound(f"{self.shown} does not exist. Create it, or correct the address.")
        return True

    def _expect(self, answer: Answer, status: int) -> None:
        if answer.status != status:
            raise self._refused(answer)

    def _refused(self, answer: Answer) -> StoreError:
        if answer.code == "ContainerBeingDeleted":
            return StoreUnavailable(f"{self.shown} is being deleted. Wait, create it again, or correct the address.")
        said = f"{answer.status} {answer.code}".rstrip()
        if answer.code == "ContainerNotFound":
            return StoreNotFound(f"{self.shown} does not exist. Create it, or correct the address.")
        return StoreError(sentences(f"{self.shown} refused: {said}", _ADVICE.get(answer.status, _OTHERWISE)))


_ADVICE: Final = {
    401: "the token is not valid for this account. Check the tenant and the account's name.",
    403: (
        "check the account's key, what the signature permits and when it expires (read, write, create, delete and "
        "list are needed), or give the identity the role Storage Blob Data Contributor; and the account's firewall."
    ),
    400: "check that the address is of Azure Blob Storage, in an account that has block blobs",
}
_OTHERWISE: Final = "see this code in the documentation of Azure Blob Storage"


def _metadata_headers(name: str, metadata: Mapping[str, str]) -> dict[str, str]:
    for key, value in metadata.items():
        if not _VALUE.fullmatch(value):
            raise ConfigError(
                f"{key} of {name!r} cannot be stored in a blob's metadata. Use visible ASCII characters without "
                "spaces at either end."
            )
    return {f"{_METADATA_HEADER}{key}": value for key, value in metadata.items()}


# The answers of List Blobs


def parse_listing(body: bytes, *, now: float) -> tuple[list[Blob], str]:
    """The blobs of a page, and the marker of the next, empty if this is the last. Raises StoreError."""
    try:
        text = body.decode("utf-8-sig")
        # Listings have none, and without one there are no entities that could grow.
        root = None if "<!DOCTYPE" in text else ET.fromstring(text)  # noqa: S314
    except (UnicodeDecodeError, ET.ParseError):
        root = None
    blobs = None if root is None else root.find("Blobs")
    if root is not None and blobs is not None:
        try:
            return [_blob(element, now) for element in blobs.iter("Blob")], root.findtext("NextMarker") or ""
        except ValueError:  # a date or a number that is none
            pass
    raise StoreError(
        "the answer to a List Blobs request cannot be read. Check that the address is of Azure Blob "
        "Storage, not of a proxy."
    )


def _blob(element: ET.Element, now: float) -> Blob:
    name, properties, metadata = element.find("Name"), element.find("Properties"), element.find("Metadata")
    if name is None or properties is None:
        raise ValueError("no name or no properties")
    text = name.text or ""
    modified_at = seconds_of(properties.findtext("Last-Modified") or "")
    return Blob(
        name=unquote(text) if name.get("Encoded") == "true" else text,
        etag=bare_etag(properties.findtext("Etag") or ""),
        modified_at=modified_at,
        age_seconds=age_seconds(modified_at, now),
        metadata={} if metadata is None else {child.tag.lower(): child.text or "" for child in metadata},
        bytes_count=int(properties.findtext("Content-Length") or "0"),
        is_leased=properties.findtext("LeaseState") == "leased",
    )


def bare_etag(text: str) -> str:
    """Without the quotes, which headers have and listings have not."""
    return text.strip('"')
