"""How a sink knows events that were published twice: the choices, for sinks and for the stages of pipelines."""

from __future__ import annotations

from typing import Literal, TypeAlias

DropDuplicates: TypeAlias = Literal["off", "ordered", "any_order"]
"""How the sink knows events that an earlier stage published twice.

`"off"`: it does not look. `"ordered"`: the ids of an origin partition arrive in order in each partition, so an id that
is not above the highest is a duplicate. `"any_order"`: they arrive in any order, in any partition, and every id is kept
for `duplicate_window_seconds`.
"""
