"""Spark's parent of Python workers, which says nothing of a pipe that Spark has closed.

Stopping a query in the middle of a task closes the pipe to its worker. The worker ends, as it should, and Spark's
daemon prints a traceback for each: noise that people take for a fault. Everything else is printed as ever.

Nothing may be imported here that starts threads, which do not survive a fork.
"""

from __future__ import annotations

import sys
import traceback
from typing import Any

from pyspark import daemon


class QuietTraceback:
    """The module traceback, but for pipes that are gone."""

    def __getattr__(self, name: str) -> Any:
        return getattr(traceback, name)

    def print_exc(self) -> None:
        if not isinstance(sys.exc_info()[1], BrokenPipeError | ConnectionResetError):
            traceback.print_exc()


if __name__ == "__main__":
    daemon.traceback = QuietTraceback()  # type: ignore[attr-defined, assignment]
    daemon.manager()
