"""``python -m benchmarks [NAME ...] [--json] [--list]``: every module of this package may register benchmarks."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import benchmarks
from benchmarks.harness import main

for module in pkgutil.iter_modules(benchmarks.__path__):
    if module.name != "__main__":
        importlib.import_module(f"benchmarks.{module.name}")

sys.exit(main())
