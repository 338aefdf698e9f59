"""What garbage collection leaves alone in Spark's Python workers."""

from __future__ import annotations

import functools
import gc
import os
import sys

from pyspark import TaskContext


def spare_modules() -> None:
    """In a worker: what is loaded by now is looked through no more. Costs nothing where nothing was loaded since.

    Spark's workers collect garbage after every task, through all modules: some 45 ms, which is longer than a tiny task,
    on the cores that plan the next batch. What is loaded stays anyhow.
    """
    if TaskContext.get() is not None:
        _freeze(os.getpid(), len(sys.modules))


@functools.cache
def _freeze(_process_id: int, _modules_count: int) -> None:
    gc.freeze()
