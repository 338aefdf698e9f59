"""Offsets as Spark keeps them: for each partition the range that the batch reads, and under which epoch.

    {"@hub": {"created": "2026-01-31T12:00:00+00:00", "split": false,
              "namespace": "acme.servicebus.windows.net", "name": "telemetry", "group": "store"},
     "0": {"from": 100, "to": 250, "epoch": 3},
     "1": {"from": 70, "to": 70, "epoch": 1, "gap": {"reason": "expired", "next": 20}}}

An offset tells its batch by itself, without the one before it: what a partition did between two batches (lost,
regained, moved on by another instance) does not change what a replay reads. ``from`` is the first sequence
number that is read, ``to`` the first that is not; what lies before ``replayed_to``, if that is there, was handled
before the query started, and is read again. Spark compares offsets as JSON text, so that their order is fixed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeGuard

from hubline.errors import ConfigError
from hubline.model.keys import GroupKey

# No partition id can be mistaken for it: they have no '@'.
HUB_KEY: Final = "@hub"

ENDS_KEY: Final = "ends"
"""In what an offset says of the hub: where its partitions ended when the batch was planned. There where Spark does not
ask the source for that (Spark 4.0 and 4.1)."""


@dataclass(frozen=True, slots=True)
class Range:
    """Events of one partition: from sequence number ``start`` up to ``end``, which is not among them.

    Those before ``replayed_to`` were handled earlier, and are read again.
    """

    partition: str
    start: int
    end: int
    replayed_to: int = 0

    @property
    def count(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Gap:
    """What was skipped because the user chose so: events from ``next_sequence`` on, which are gone or another hub's."""

    reason: str
    next_sequence: int


@dataclass(frozen=True, slots=True)
class Entry:
    """What a batch reads of one partition, and under which epoch it is owned.

    What lies before ``replayed_to`` was handled earlier, and is read again: it moves no checkpoint. One that is not
    ``held`` reads nothing: it tells how far the query had come in a partition that it does not own, or not yet again.
    """

    start: int
    end: int
    epoch: int = 0
    gap: Gap | None = None
    replayed_to: int = 0
    held: bool = True

    @property
    def new_start(self) -> int:
        """The first event that was not handled before; ``end`` if there is none."""
        return min(max(self.start, self.replayed_to), self.end)

    def let_go(self) -> Entry:
        """How far it came, for as long as the partition is not held."""
        return replace(self, start=self.end, gap=None, held=False)

    @classmethod
    def at(cls, sequence: int, *, epoch: int = 0) -> Entry:
        """Nothing yet, and from here on."""
        return cls(sequence, sequence, epoch)


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """How far a query has come. ``created`` is when its hub was created: one of the same name may come after it."""

    created: str = ""
    entries: Mapping[str, Entry] = field(default_factory=dict)
    is_split: bool = False
    """Whether several tasks may read parts of one range: sinks that commit by partition have to know."""
    group: GroupKey | None = None
    """Whose progress it is, for sinks that keep it too. None in offsets of the JVM connector."""
    connectors_hub: str = ""
    """The hub's name, where the JVM connector wrote it: then it says where a batch ends, and the one before it where
    it starts."""

    def to_json(self) -> dict[str, dict[str, object]]:
        return {
            HUB_KEY: {"created": self.created, "split": self.is_split, **_group_json(self.group)},
            **{partition: _entry_json(self.entries[partition]) for partition in in_order(self.entries)},
        }

    @classmethod
    def from_json(cls, value: object) -> StreamOffset:
        """Raises ConfigError if it is something else's: a source of Spark's own may write a bare number."""
        if not isinstance(value, dict):
            raise _foreign()
        if HUB_KEY not in value:
            return _from_connector(value)
        hub = value[HUB_KEY]
        if not isinstance(hub, dict):
            raise _foreign()
        created, is_split = hub.get("created"), hub.get("split")
        if not isinstance(created, str) or not isinstance(is_split, bool):
            raise _foreign()
        entries = {partition: _entry(entry) for partition, entry in value.items() if partition != HUB_KEY}
        return cls(created, entries, is_split, _group(hub))

    def ranges(self, before: StreamOffset) -> list[Range]:
        """What the batch reads that ends here, in order of partitions; ``before`` counts for the JVM connector's."""
        ranges = (
            Range(partition, self._start(partition, before), entry.end, entry.replayed_to)
            for partition, entry in ((partition, self.entries[partition]) for partition in in_order(self.entries))
        )
        return [found for found in ranges if found.count > 0]

    def _start(self, partition: str, before: StreamOffset) -> int:
        if not self.connectors_hub:
            return self.entries[partition].start
        earlier = before.entries.get(partition)
        return earlier.end if earlier else self.entries[partition].end


def gaps_in(offset: Mapping[str, object]) -> dict[str, Gap]:
    """The gaps that the batch of an offset skipped, by partition: as the offset itself says."""
    return {
        partition: Gap(str(entry["gap"]["reason"]), int(entry["gap"]["next"]))
        for partition, entry in offset.items()
        if isinstance(entry, dict) and "gap" in entry
    }


def in_order(partitions: Iterable[str]) -> list[str]:
    """By number, as people count them: 2 before 10."""
    return sorted(partitions, key=lambda partition: (len(partition), partition))


def _group_json(group: GroupKey | None) -> dict[str, object]:
    return {"namespace": group.namespace, "name": group.hub, "group": group.group} if group else {}


def _group(hub: Mapping[str, object]) -> GroupKey | None:
    names = [hub.get(name) for name in ("namespace", "name", "group")]
    if names == [None, None, None]:
        return None
    namespace, name, group = (found if isinstance(found, str) else "" for found in names)
    if not (namespace and name and group):
        raise _foreign()
    return GroupKey(namespace, name, group)


def _entry_json(entry: Entry) -> dict[str, object]:
    value: dict[str, object] = {"from": entry.start, "to": entry.end, "epoch": entry.epoch}
    if entry.gap is not None:
        value["gap"] = {"reason": entry.gap.reason, "next": entry.gap.next_sequence}
    if entry.replayed_to > entry.start:
        value["replayed_to"] = entry.replayed_to
    if not entry.held:
        value["held"] = False
    return value


def _entry(value: object) -> Entry:
    if not isinstance(value, dict):
        raise _foreign()
    start, end, epoch = (value.get(name) for name in ("from", "to", "epoch"))
    replayed_to, held = value.get("replayed_to", 0), value.get("held", True) is True
    if not (_is_count(start) and _is_count(end) and _is_count(epoch) and start <= end and _is_count(replayed_to)):
        raise _foreign()
    # The gap is recorded once, by the offset of the batch that skipped it.
    return Entry(start, end, epoch, replayed_to=replayed_to, held=held)


def _from_connector(value: Mapping[str, object]) -> StreamOffset:
    """``{"telemetry": {"0": 250, "1": 70}}``: the JVM connector's, so that its queries continue where they were."""
    hub, positions = next(iter(value.items()), ("", None))
    is_one = len(value) == 1 and hub
    if not is_one or not isinstance(positions, dict) or not all(map(_is_count, positions.values())):
        raise _foreign()
    return StreamOffset(entries={str(key): Entry.at(end) for key, end in positions.items()}, connectors_hub=hub)


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _foreign() -> ConfigError:
    return ConfigError(
        "the query's checkpoint folder holds offsets of another kind of source. Give the query a "
        "checkpointLocation of its own."
    )
