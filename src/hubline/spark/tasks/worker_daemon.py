"""The process that Spark's Python workers are forked from, with what all of them load already loaded.

Spark's own loads nothing before it forks, and each worker then takes half a second of processor time to load pandas,
Arrow and Spark's code, and memory for copies of them. Spark names this module by `spark.python.daemon.module`, and
starts it as it starts its own: with the name of the workers' module as its argument.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from typing import Final

import numpy
from pyspark import daemon

_LOADED: Final = (
    "pandas",
    "pyarrow",
    "pyarrow.compute",
    "pyspark.sql.pandas.serializers",
    "hubline.spark.tasks.range_reader",
)


def main() -> None:
    """Loads modules, and forks workers until Spark ends it."""
    for name in (*sys.argv[1:], *_LOADED):
        importlib.import_module(name)
    # Else all workers would draw the same numbers. Python sees to its own, numpy does not.
    os.register_at_fork(after_in_child=numpy.random.seed)
    gc.collect()
    gc.freeze()  # workers look through these no more, and so they share the memory
    daemon.manager()


if __name__ == "__main__":
    main()
