"""How stages feed each other, by the datasets that they read and write."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Final

_EMPTY: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class StageGraph:
    """The datasets of each stage, by the stage's name. Datasets are known by their identity: two names may be one."""

    reads: Mapping[str, frozenset[str]]
    writes: Mapping[str, frozenset[str]]

    def levels(self) -> tuple[tuple[str, ...], ...]:
        """Stages in levels, each after those that write what it reads. Raises `CycleError`."""
        sorter = TopologicalSorter({name: self._feeders(name) for name in self.reads})
        sorter.prepare()
        levels = []
        while sorter.is_active():
            ready = sorter.get_ready()
            sorter.done(*ready)
            levels.append(tuple(name for name in self.reads if name in ready))
        return tuple(levels)

    def cycle(self) -> tuple[str, ...]:
        """The stages of one cycle, the first of them again at the end; nothing where there is none."""
        try:
            self.levels()
        except CycleError as error:
            ring: Sequence[str] = error.args[1][:-1]
            first = min(range(len(ring)), key=lambda at: tuple(self.reads).index(ring[at]))
            return (*ring[first:], *ring[:first], ring[first])
        return ()

    def fed_by(self, name: str) -> tuple[str, ...]:
        """The stages that read what this one writes."""
        return tuple(other for other, read in self.reads.items() if read & self.writes.get(name, _EMPTY))

    def origins(self, name: str) -> frozenset[str]:
        """The datasets that the events of a stage may first have come from."""
        found: set[str] = set()
        seen = {name}
        ahead = [name]
        while ahead:
            at = ahead.pop()
            found |= self.reads[at]
            new = [other for other in self._feeders(at) if other not in seen]
            seen.update(new)
            ahead += new
        return frozenset(found)

    def _feeders(self, name: str) -> Iterator[str]:
        return (other for other, written in self.writes.items() if written & self.reads[name])
