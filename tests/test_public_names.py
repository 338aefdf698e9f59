"""The public names: sorted, each one there, typed, and loaded when it is asked for."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import hubline


def test_public_names_are_sorted_and_all_there() -> None:
    assert hubline.__all__ == sorted(hubline.__all__)
    assert all(getattr(hubline, name) is getattr(hubline, name) for name in hubline.__all__)
    assert set(hubline.__all__) <= set(dir(hubline))


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(str(hubline.__file__)).read_text())
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    seen = {alias.name: node.module for node in imports for alias in node.names if "." in str(node.module)}
    assert sorted(seen) == hubline.__all__
    for name, module in seen.items():
        assert getattr(hubline, name) is getattr(sys.modules[str(module)], name)


def test_errors_are_there_without_another_import() -> None:
    program = "import hubline; hubline.errors.ConfigError"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Procesor'"):
        _ = hubline.Procesor  # type: ignore[attr-defined]


def test_processors_servers_and_planning_processes_of_spark_start_without_pandas() -> None:
    """Arrow imports it for the first column that is made of Python values."""
    modules = "hubline.processor, hubline.emulator.server, hubline.adapters, hubline.spark.source.stream_reader"
    program = f"import {modules}, sys; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_importing_the_package_loads_neither_arrow_nor_asyncio() -> None:
    program = "import hubline, sys; sys.exit(', '.join({'pyarrow', 'numpy', 'asyncio'} & set(sys.modules)) or None)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
