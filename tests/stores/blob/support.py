"""Stores over a container of Azurite, and what the official store does to the same blobs."""

from __future__ import annotations

import time
from collections.abc import Callable

from hubline.config import BlobAddress, parse_store
from hubline.stores.blob import BlobStore
from hubline.stores.blob.store import REFRESH_SECONDS


def blob_store(
    address: str, *, refresh_seconds: float = REFRESH_SECONDS, clock: Callable[[], float] = time.time
) -> BlobStore:
    parsed = parse_store(address)
    assert isinstance(parsed, BlobAddress)
    return BlobStore(parsed, refresh_seconds=refresh_seconds, clock=clock)
