"""``python -m benchmarks [NAME ...] [--json] [--list]``."""

from __future__ import annotations

import sys

from benchmarks import local_hub, stores  # noqa: F401  (they register their benchmarks)
from benchmarks.harness import main

sys.exit(main())
