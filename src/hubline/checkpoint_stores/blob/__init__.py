"""Azure Blob Storage as a checkpoint store, in the layout of the official Event Hubs SDKs.

auth.py       credentials: the account's key, a signature, Entra
http.py       requests over pooled connections: signed, retried, bounded
client.py     operations on the blobs of one container
listing.py    the answers of List Blobs
layout.py     names of blobs
records.py    metadata into records, whichever SDK wrote it
store.py      the store
locks.py      locks on partitions, by leases of Blob Storage
"""

from hubline.checkpoint_stores.blob.client import Container, Written
from hubline.checkpoint_stores.blob.listing import Blob
from hubline.checkpoint_stores.blob.store import BlobStore

__all__ = ["Blob", "BlobStore", "Container", "Written"]
