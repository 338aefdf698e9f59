"""Which blob is what.

The layout of the official SDKs, whose first three names are in lower case:

    {namespace}/{hub}/{group}/ownership/{partition}     ownerid, hublineepoch
    {namespace}/{hub}/{group}/checkpoint/{partition}    offset, sequencenumber, hublineepoch

and beside it, under a prefix that the SDKs never list:

    hubline/{namespace}/{hub}/{group}/member/{owner}       ownerid, partitionsmax; its age is the member's
    hubline/{namespace}/{hub}/{group}/request/{partition}  ownerid of who asks; its age is the request's
    hubline/{namespace}/{hub}/{group}/fence/{partition}    hublineepoch, while there is no checkpoint to keep it
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from hubline.model.keys import GroupKey, PartitionKey

OWN_PREFIX: Final = "hubline/"

OWNERSHIP: Final = "ownership/"
CHECKPOINT: Final = "checkpoint/"
MEMBER: Final = "member/"
REQUEST: Final = "request/"
FENCE: Final = "fence/"


def group_prefix(group: GroupKey) -> str:
    """What the names of the SDKs' blobs start with."""
    return f"{group.namespace}/{group.hub}/{group.group}/".lower()


def ownership_prefix(group: GroupKey) -> str:
    return group_prefix(group) + OWNERSHIP


def checkpoint_prefix(group: GroupKey) -> str:
    return group_prefix(group) + CHECKPOINT


def own_prefix(group: GroupKey) -> str:
    """What the names of hubline's own blobs start with."""
    return OWN_PREFIX + group_prefix(group)


def ownership_blob(key: PartitionKey) -> str:
    return ownership_prefix(key.group_key) + key.partition


def checkpoint_blob(key: PartitionKey) -> str:
    return checkpoint_prefix(key.group_key) + key.partition


def request_blob(key: PartitionKey) -> str:
    return own_prefix(key.group_key) + REQUEST + key.partition


def fence_blob(key: PartitionKey) -> str:
    return own_prefix(key.group_key) + FENCE + key.partition


def member_blob(group: GroupKey, owner_id: str) -> str:
    return own_prefix(group) + MEMBER + _quoted(owner_id)


def _quoted(owner_id: str) -> str:
    # An owner id may be anything visible, and a path of dots and slashes means something to web servers.
    return quote(owner_id, safe="").replace(".", "%2E")
