"""What a handler returns where nothing takes it."""

from __future__ import annotations

from collections.abc import Mapping
from types import GeneratorType

from hubline.errors import SinkMissing


def require_no_rows(returned: object, partition: str) -> None:
    """Raises SinkMissing for what a sink would take for rows: without one they would be lost."""
    if returned is not None and _are_rows(returned):
        raise SinkMissing(
            f"the handler of partition {partition} returned rows ({type(returned).__name__}), and the processor has no "
            "sink to write them to. No checkpoint covers their events. Pass sink=SqlSink(...), or return nothing.",
            partition=partition,
        )


def _are_rows(returned: object) -> bool:
    """Tables of any library that speaks Arrow, dictionaries, lists of these, and what would make them one by one."""
    if isinstance(returned, Mapping | GeneratorType) or hasattr(returned, "__arrow_c_stream__"):
        return True
    return isinstance(returned, list | tuple) and any(isinstance(each, Mapping) for each in returned)
