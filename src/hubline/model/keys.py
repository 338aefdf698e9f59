"""What a consumer group and a partition are called."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from hubline.errors import ConfigError


def partition_order(partition: str) -> tuple[int, str]:
    """What to sort partition ids by: numbers by their value, so that 10 comes after 9; other ids after them."""
    return (int(partition), "") if partition.isdecimal() else (sys.maxsize, partition)


@dataclass(frozen=True, slots=True, order=True)
class GroupKey:
    """A consumer group of a hub: what shares the work, and what a store lists.

    Attributes:
        namespace: The namespace of the hub, as `Hub.namespace` has it.
        hub: The name of the hub.
        group: The name of the consumer group.

    Raises:
        ConfigError: One of them is empty.
    """

    namespace: str
    hub: str
    group: str

    def __post_init__(self) -> None:
        if not (self.namespace and self.hub and self.group):
            raise ConfigError(f"a consumer group must have a namespace, a hub and a name: {self}.")

    def partition(self, partition: str) -> PartitionKey:
        """Return the key of one partition in this group.

        Args:
            partition: The id of the partition.
        """
        return PartitionKey(self.namespace, self.hub, self.group, partition)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.hub}/{self.group}"


@dataclass(frozen=True, slots=True, order=True)
class PartitionKey:
    """One partition, as a consumer group sees it: the key of every ownership and checkpoint.

    Attributes:
        namespace: The namespace of the hub, as `Hub.namespace` has it.
        hub: The name of the hub.
        group: The name of the consumer group.
        partition: The id of the partition.

    Raises:
        ConfigError: One of them is empty.
    """

    namespace: str
    hub: str
    group: str
    partition: str

    def __post_init__(self) -> None:
        if not (self.namespace and self.hub and self.group and self.partition):
            raise ConfigError(f"a partition key must have a namespace, a hub, a group and an ID: {self}.")

    @property
    def group_key(self) -> GroupKey:
        """The consumer group alone."""
        return GroupKey(self.namespace, self.hub, self.group)

    def __str__(self) -> str:
        return f"{self.namespace}/{self.hub}/{self.group}/{self.partition}"
