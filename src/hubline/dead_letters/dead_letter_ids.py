"""The ids of dead letters, as people type them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hubline.addresses.names import validate_partition_id
from hubline.errors import ConfigError
from hubline.model.dead_letters import DeadLetterId
from hubline.model.keys import GroupKey

_SEQUENCE = re.compile(r"[0-9]{1,19}")
_SEQUENCE_MAX = 2**63 - 1


def parse_dead_letter_id(text: str) -> DeadLetterId:
    """Reads `NAMESPACE/HUB/GROUP/PARTITION/SEQUENCE`, or `PARTITION/SEQUENCE` of any consumer group.

    Raises:
        ConfigError: The text is not such an id.
    """
    # From the right: the namespace of a local hub is a path, and has slashes of its own.
    *group, partition, sequence = text.rsplit("/", 4) if text.count("/") > 1 else ("", *text.partition("/")[::2])
    group = [part for part in group if part]
    if len(group) not in (0, 3) or not _SEQUENCE.fullmatch(sequence) or int(sequence) > _SEQUENCE_MAX:
        raise ConfigError(
            f"{ascii(text)[:80]} is not the ID of a dead letter. Write PARTITION/SEQUENCE, such as 0/17, or "
            "the full ID that hubline dlq list --json prints."
        )
    return DeadLetterId(GroupKey(*group) if group else None, validate_partition_id(partition), int(sequence))


def parse_dead_letter_ids(texts: Iterable[str]) -> tuple[DeadLetterId, ...]:
    """Reads several ids."""
    return tuple(map(parse_dead_letter_id, texts))
