"""The templates of a link's messages: kept while they are of use, and looked for in all messages.

A template is first learned as a fixed-width one. Only where few messages are like that is a variable-width one looked
for.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Final

import numpy as np
import numpy.typing as npt

from hubline.amqp.events.byte_rows import Octets, Positions
from hubline.amqp.events.template_learner import learn
from hubline.amqp.events.templates import Match, Template

# The templates of a link that are remembered, and that one call looks for.
TEMPLATES_MAX: Final = 16
LEARNED_MAX: Final = 8

# A fixed-width template saves more than it costs where one in so many messages that it is looked for in is found.
FIXED_WIDTH_ONE_IN: Final = 4
# Fewer say nothing.
FIXED_WIDTH_TRIED_MIN: Final = 64
# Variable-width templates are forgotten after so many calls: messages that were of all lengths may have become alike.
VARIABLE_WIDTH_CALLS_MAX: Final = 64


class KnownTemplates:
    """The templates seen on a link. ``accepts`` says which are of use."""

    def __init__(self, accepts: Callable[[Template], bool]) -> None:
        self._accepts = accepts
        self._fixed_width: list[Template] = []  # those first of which the last call found most
        self._variable_width: list[Template] = []  # the latest first
        self._calls_count = 0

    def find(self, data: Octets, starts: Positions, ends: Positions) -> tuple[list[Match], list[int]]:
        """All messages: those that are laid out as some template says, and the indexes of the others."""
        search = _Search(data, starts, ends)
        self._look_for_fixed_width(search)
        self._look_for_variable_width(search)
        for _ in range(LEARNED_MAX):
            if not len(search.left):
                break
            self._learn(search)
        del self._fixed_width[TEMPLATES_MAX:], self._variable_width[TEMPLATES_MAX:]
        return search.matches, search.others + search.left.tolist()

    def _look_for_fixed_width(self, search: _Search) -> None:
        kept: list[tuple[int, Template]] = []
        for template in self._fixed_width:
            tried_count = len(search.left)
            found_count = search.look_for(template)
            if _is_common(found_count, tried_count):
                kept.append((found_count, template))
        self._fixed_width = [template for _, template in sorted(kept, key=itemgetter(0), reverse=True)]

    def _look_for_variable_width(self, search: _Search) -> None:
        self._calls_count += 1
        if self._calls_count % VARIABLE_WIDTH_CALLS_MAX == 0:
            self._variable_width.clear()
        for template in tuple(self._variable_width):
            if search.look_for(template):
                self._variable_width.remove(template)
                self._variable_width.insert(0, template)

    def _learn(self, search: _Search) -> None:
        """Learns from a message that is left, and finds at least that one, or passes it over."""
        index, tried_count, found_count = search.typical(), len(search.left), 0
        message = search.message(index)
        fixed_width = self._learned(message, is_fixed_width=True)
        if fixed_width is not None:
            found_count = search.look_for(fixed_width)
            if _is_common(found_count, tried_count):
                self._fixed_width.append(fixed_width)
                return
        variable_width = self._learned(message, is_fixed_width=False)
        if variable_width is not None and search.look_for(variable_width):
            self._variable_width.insert(0, variable_width)
        elif not found_count:
            search.pass_over(index)

    def _learned(self, message: bytes, *, is_fixed_width: bool) -> Template | None:
        template = learn(message, is_fixed_width=is_fixed_width)
        return template if template is not None and self._accepts(template) else None


def _is_common(found_count: int, tried_count: int) -> bool:
    return tried_count < FIXED_WIDTH_TRIED_MIN or found_count * FIXED_WIDTH_ONE_IN >= tried_count


class _Search:
    """Messages, of which fewer and fewer are left to be found."""

    def __init__(self, data: Octets, starts: Positions, ends: Positions) -> None:
        self._data, self._starts, self._ends = data, starts, ends
        self.left: npt.NDArray[np.int64] = np.arange(len(starts))
        self.matches: list[Match] = []
        self.others: list[int] = []

    def typical(self) -> int:
        """The index of a message that is left: the first of those of the length that most have."""
        lengths = (self._ends - self._starts)[self.left]
        _, firsts, counts = np.unique(lengths, return_index=True, return_counts=True)
        return int(self.left[firsts[counts.argmax()]])

    def message(self, index: int) -> bytes:
        return self._data[self._starts[index] : self._ends[index]].tobytes()

    def pass_over(self, index: int) -> None:
        self.others.append(index)
        self.left = self.left[self.left != index]

    def look_for(self, template: Template) -> int:
        """How many are laid out like this."""
        if not len(self.left):
            return 0
        is_whole = len(self.left) == len(self._starts)
        starts, ends = (bound if is_whole else bound[self.left] for bound in (self._starts, self._ends))
        match = template.find(self._data, starts, ends)
        if match is None:
            return 0
        found = match.indexes
        match.indexes = self.left[found]
        self.matches.append(match)
        is_left = np.ones(len(self.left), np.bool_)
        is_left[found] = False
        self.left = self.left[is_left]
        return len(match)
