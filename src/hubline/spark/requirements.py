"""Which Spark this works with, said before anything of it is imported."""

from __future__ import annotations

import importlib.util
import re
from typing import Final

VERSION_MIN: Final = (4, 0)
"""The first with Python data sources."""


def require_pyspark() -> None:
    """Raises ImportError with what to do, where pyspark is missing or too old, or pandas is missing."""
    try:
        from pyspark.version import __version__ as found
    except ModuleNotFoundError as error:
        if error.name not in ("pyspark", "pyspark.version"):
            raise
        raise ImportError("hubline.spark needs pyspark, which is not installed: pip install 'hubline[spark]'") from None
    require_version(found)
    # Spark would start each query, and look for it in the first batch.
    if importlib.util.find_spec("pandas") is None:
        raise ImportError("hubline.spark needs pandas, which is not installed: pip install 'hubline[spark]'")


def require_version(found: str) -> None:
    """Raises ImportError if this version of Spark is too old."""
    match = re.match(r"(\d+)\.(\d+)", found)
    if match and (int(match[1]), int(match[2])) < VERSION_MIN:
        wanted = ".".join(map(str, VERSION_MIN))
        raise ImportError(
            f"hubline.spark needs Spark {wanted} or later, and pyspark {found} is installed: before {wanted}, Spark "
            "has no data sources in Python. Upgrade with: pip install 'hubline[spark]'"
        )
