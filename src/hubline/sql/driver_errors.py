"""Errors of database drivers, replaced by what they mean for the caller."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hubline.errors import StoreError

Result = TypeVar("Result")


def call_explained(call: Callable[[], Result], explain: Callable[[Exception], StoreError | None]) -> Result:
    """Calls what uses a driver. A driver's error is replaced by what `explain` makes of it; other errors pass."""
    try:
        return call()
    except Exception as error:
        failure = explain(error)
        if failure is None:
            raise
    # Raised out here: chained to the driver's error, a traceback would print whatever that one holds.
    raise failure
