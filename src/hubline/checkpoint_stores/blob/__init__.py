"""Azure Blob Storage as a checkpoint store, in the layout of the official Event Hubs SDKs.

auth.py       who asks: the account's key, a signature, Entra
transport.py  requests over pooled connections: signed, tried again, bounded
container.py  what can be done to the blobs of one container
listing.py    the answers of List Blobs
layout.py     which blob is what
records.py    metadata into records, whoever wrote it
together.py   several requests at the same time
store.py      the store that the SDKs share
leased.py     the store of partitions that never move, locked by the service's leases
"""

from hubline.checkpoint_stores.blob.client import Container, Written
from hubline.checkpoint_stores.blob.leased import LeasedBlobStore
from hubline.checkpoint_stores.blob.listing import Blob
from hubline.checkpoint_stores.blob.store import BlobStore

__all__ = ["Blob", "BlobStore", "Container", "LeasedBlobStore", "Written"]
