"""The errors that calls of Spark raise."""

from __future__ import annotations

from typing import Final

from py4j.protocol import Py4JJavaError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

SPARK_ERRORS: Final = (PySparkException, Py4JJavaError)
"""What Spark raises: an error that PySpark has a type for, or any other exception of Java's."""

JAVA_GONE: Final = (Py4JNetworkError, ConnectionError)
"""What every call of Spark raises once its Java process has ended."""
