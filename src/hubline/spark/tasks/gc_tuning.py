"""What garbage collection leaves alone in Spark's Python workers."""

from __future__ import annotations

import functools
import gc
import os
import sys
from typing import Final

_WORKERS_PROGRAMS: Final = ("pyspark.daemon", "hubline.spark.tasks.worker_daemon")


def freeze_loaded_modules() -> None:
    """In a worker: what is loaded by now is looked through no more. Costs nothing where nothing was loaded since.

    Spark's workers collect garbage after whatever they did, a task or a plan, through all modules: some 45 ms, which is
    longer than a tiny task, on the cores that plan the next batch. What is loaded stays anyhow.
    """
    program = getattr(sys.modules["__main__"], "__spec__", None)
    if program is not None and program.name in _WORKERS_PROGRAMS:
        _freeze(os.getpid(), len(sys.modules))


@functools.cache
def _freeze(_process_id: int, _modules_count: int) -> None:
    gc.freeze()
