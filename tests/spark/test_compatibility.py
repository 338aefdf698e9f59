"""Which Spark it works with, and that nothing else needs one."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest

from hubline.spark.compatibility import require_pyspark, require_version


def test_hubline_itself_does_not_load_spark() -> None:
    program = "import hubline, hubline.cli, sys; sys.exit('pyspark' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_without_spark_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)

    with pytest.raises(ImportError, match=r"pip install 'hubline\[spark\]'"):
        require_pyspark()


@pytest.mark.parametrize("version", ["3.5.6", "4.0.1", "4.1.0.dev3"])
def test_a_spark_that_is_too_old_is_named_with_the_one_that_is_needed(version: str) -> None:
    with pytest.raises(ImportError, match=rf"needs Spark 4\.2 or later, and pyspark {version}"):
        require_version(version)


@pytest.mark.parametrize("version", ["4.2.0", "4.3.0", "5.0.0", "10.1"])
def test_later_ones_will_do(version: str) -> None:
    require_version(version)
