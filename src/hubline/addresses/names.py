"""The names of hubs, consumer groups, partitions and owners, and which of them are allowed."""

from __future__ import annotations

import re
from typing import Final

from hubline.errors import ConfigError
from hubline.secrets import shown

DEFAULT_GROUP: Final = "$Default"
"""The consumer group that every hub has."""

# The limits are those of the Event Hubs service, so that a local name also works there.
HUB_NAME_LENGTH_MAX: Final = 256
GROUP_NAME_LENGTH_MAX: Final = 50
# Service ids are small decimal numbers; more room costs nothing and still fits any folder or key.
PARTITION_ID_LENGTH_MAX: Final = 64
# The SDKs use 36-character UUIDs; people use host names (at most 253) or shorter.
OWNER_ID_LENGTH_MAX: Final = 256
# A file system's limit for one name, which a local hub's folder has to keep.
LOCAL_NAME_LENGTH_MAX: Final = 255


# Names -------------------------------------------------------------------------------------------------------------

_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_NAME_RULE = "letters, digits, '.', '-' and '_', starting and ending with a letter or digit"
_VISIBLE = re.compile(r"[\x21-\x7e]+")


def validate_hub_name(name: str) -> str:
    """The name itself, if a hub may have it."""
    return plain_name("hub name", name)


def validate_group_name(name: str) -> str:
    """The name itself, if a consumer group may have it; the default group in its usual spelling."""
    if name.lower() == DEFAULT_GROUP.lower():
        return DEFAULT_GROUP
    rule = f"{_NAME_RULE}; or {DEFAULT_GROUP}"
    return validated("consumer group", name, _NAME, length_max=GROUP_NAME_LENGTH_MAX, rule=rule)


def validate_partition_id(partition: str) -> str:
    """The id itself, if a partition may have it."""
    return validated("partition id", partition, _NAME, length_max=PARTITION_ID_LENGTH_MAX, rule=_NAME_RULE)


def validate_owner_id(owner_id: str) -> str:
    """The id itself, if it can stand in a log line and in an HTTP header: visible ASCII without spaces."""
    rule = "visible ASCII characters without spaces"
    return validated("owner id", owner_id, _VISIBLE, length_max=OWNER_ID_LENGTH_MAX, rule=rule)


def plain_name(what: str, name: str, *, length_max: int = HUB_NAME_LENGTH_MAX) -> str:
    return validated(what, name, _NAME, length_max=length_max, rule=_NAME_RULE)


def validated(what: str, name: str, pattern: re.Pattern[str], *, length_max: int, rule: str) -> str:
    if not name:
        raise ConfigError(f"the {what} is empty. Give 1 to {length_max} characters ({rule}).")
    if len(name) > length_max:
        raise ConfigError(f"the {what} {shown(name)} has {len(name)} characters. Use at most {length_max}.")
    if not pattern.fullmatch(name):
        raise ConfigError(f"the {what} {shown(name)} is not allowed. Use {rule}.")
    return name
