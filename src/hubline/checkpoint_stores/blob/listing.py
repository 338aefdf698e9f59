"""The answers of List Blobs."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from hubline.checkpoint_stores.blob.http import seconds_of
from hubline.errors import StoreError


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
    raise StoreError("the answer to a List Blobs request does not read: is this Blob Storage?")


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
