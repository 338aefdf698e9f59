"""What the addresses of links name. Some clients send URIs, some bare paths; case does not matter in fixed parts.

$cbs                                            where tokens are put
$management, HUB/$management                    what there is
HUB, HUB/Partitions/ID                          where events are sent
HUB/ConsumerGroups/GROUP/Partitions/ID          where events come from
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeAlias
from urllib.parse import unquote

from hubline.amqp.service_names import CBS, MANAGEMENT

# Longer than any that names something: hub, group and partition have at most 256, 50 and 64 characters.
ADDRESS_LENGTH_MAX: Final = 1024

_SCHEME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://[^/]*")


@dataclass(frozen=True, slots=True)
class CbsAddress:
    """Where tokens are put."""


@dataclass(frozen=True, slots=True)
class ManagementAddress:
    """Where to ask what there is."""


@dataclass(frozen=True, slots=True)
class SenderAddress:
    """Where events are sent: a hub, or one of its partitions."""

    hub: str
    partition: str | None = None


@dataclass(frozen=True, slots=True)
class ReceiverAddress:
    """Where events come from."""

    hub: str
    group: str
    partition: str


Address: TypeAlias = CbsAddress | ManagementAddress | SenderAddress | ReceiverAddress


def parse_address(text: str | None) -> Address | None:
    """What an address names; None if it names nothing that could be here."""
    match path_segments(text):
        case [name] if name.lower() == CBS:
            return CbsAddress()
        case [*_, name] if name.lower() == MANAGEMENT:
            return ManagementAddress()
        case [hub]:
            return SenderAddress(hub)
        case [hub, word, partition] if word.lower() == "partitions":
            return SenderAddress(hub, partition)
        case [hub, word, group, other, partition] if (word.lower(), other.lower()) == ("consumergroups", "partitions"):
            return ReceiverAddress(hub, group, partition)
    return None


def path_segments(text: str | None) -> list[str]:
    """The parts of the path of a URI, or of a bare path; none if there is no sense in it."""
    if not text or len(text) > ADDRESS_LENGTH_MAX:
        return []
    path = _SCHEME.sub("", text, count=1).partition("?")[0].strip("/")
    return [unquote(segment) for segment in path.split("/")] if path else []
