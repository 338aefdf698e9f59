"""Azure Blob Storage as a checkpoint store, in the layout of the official Event Hubs SDKs.

auth.py         credentials: the account's key, a signature, Entra
http.py         requests over pooled connections: signed, retried, bounded
client.py       operations on the blobs of one container, and their listing
contention.py   writes that start again because another was first
layout.py       names of blobs
records.py      metadata into records, whichever SDK wrote it
ownership.py    owners, members and requests
locks.py        locks on partitions, by leases of Blob Storage
checkpoints.py  checkpoints, and which epoch may move them
store.py        the store: both behind one port
"""

from hubline.checkpoint_stores.blob.client import Blob, Container, Written
from hubline.checkpoint_stores.blob.store import BlobStore

__all__ = ["Blob", "BlobStore", "Container", "Written"]
