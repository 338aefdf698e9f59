"""Which Spark it works with, and that nothing else needs one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hubline.spark.requirements import require_version


def test_hubline_itself_does_not_load_spark() -> None:
    program = "import hubline, hubline.cli, sys; sys.exit('pyspark' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_process_that_makes_a_source_does_not_load_arrow() -> None:
    program = "import hubline.spark.source.data_source, sys; sys.exit('pyarrow' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_without_spark_it_is_said_what_to_install() -> None:
    program = "import sys; sys.modules['pyspark'] = None; import hubline.spark"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert (
        "ImportError: hubline.spark needs pyspark, which is not installed: pip install 'hubline[spark]'" in ran.stderr
    )


@pytest.mark.parametrize(("package", "command"), [("pyspark", "plan"), ("pyspark", "run"), ("pandas", "run")])
def test_commands_of_pipelines_say_it_in_one_line(tmp_path: Path, package: str, command: str) -> None:
    program = f"import sys; sys.modules['{package}'] = None; from hubline.cli.app import main; sys.exit(main())"
    args = [sys.executable, "-c", program, command, "telemetry.py"]
    ran = subprocess.run(args, cwd=tmp_path, capture_output=True, text=True, check=False)

    said = f"hubline: hubline.spark needs {package}, which is not installed: pip install 'hubline[spark]'\n"
    assert (ran.returncode, ran.stderr) == (2, said)


@pytest.mark.parametrize("version", ["3.5.6", "2.4.8"])
def test_a_spark_that_is_too_old_is_named_with_the_one_that_is_needed(version: str) -> None:
    with pytest.raises(ImportError, match=rf"needs Spark 4\.0 or later, and pyspark {version}"):
        require_version(version)


@pytest.mark.parametrize("version", ["4.0.0", "4.1.2", "4.3.0", "5.0.0", "10.1"])
def test_later_ones_will_do(version: str) -> None:
    require_version(version)
