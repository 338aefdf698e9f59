"""``python -m benchmarks [NAME ...] [--json] [--list]``."""

from __future__ import annotations

import sys

from benchmarks import local_hub  # noqa: F401  (registers its benchmarks)
from benchmarks.harness import main

sys.exit(main())
