"""How many tasks a batch is cut into."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hubline.spark.options import Options

TASKS_VARIABLE: Final = "HUBLINE_SPARK_TASKS"
"""The cores that tasks run on. ``hubline.spark.session`` sets it; Spark does not tell its planning processes."""


def task_count(options: Options) -> int:
    """At most so many tasks: the option, what the session knows, or as many as this machine has cores."""
    if options.max_tasks is not None:
        return options.max_tasks
    given = os.environ.get(TASKS_VARIABLE, "")
    return int(given) if given.isdecimal() and int(given) else os.cpu_count() or 1
