"""The wheel works as a user installs it: in an environment of its own, outside of the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SPARK_READ = """
import hubline.spark

if __name__ == "__main__":
    spark = hubline.spark.session("wheel", master="local[1]")
    events = spark.read.format("eventhubs").option("hub", "local:./data/telemetry").load()
    print("events:", events.count())
    spark.stop()
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    left_out = shutil.ignore_patterns("*.egg-info", "__pycache__", "libhubline.*")
    for name in ("src", "build_tools"):
        shutil.copytree(ROOT / name, source / name, ignore=left_out)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    run(
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(folder),
        str(source),
        cwd=folder,
    )
    (built,) = folder.glob("hubline-*.whl")
    return built


def run(*command: str, cwd: Path, expected: int = 0) -> str:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HUBLINE", "SPARK"))
    }
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == expected, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.timeout(900)
def test_the_wheel_runs_the_demo_and_reads_a_hub_from_spark(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", "env", cwd=tmp_path)
    tools = tmp_path / "env/bin"
    pip = (str(tools / "python"), "-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check")
    pinned = ("-c", str(ROOT / "constraints.txt"))

    run(*pip, *pinned, str(wheel), cwd=tmp_path)
    assert run(str(tools / "hubline"), "--version", cwd=tmp_path).startswith("hubline 0.")
    has_compiler = any(shutil.which(name) for name in ("cc", "gcc", "clang"))
    assert ("py3-none-any" not in wheel.name) == has_compiler
    loaded = "from hubline.amqp.core.library import core; print(core() is not None)"
    assert run(str(tools / "python"), "-c", loaded, cwd=tmp_path).endswith(f"{has_compiler}\n")
    assert "lost" in run(str(tools / "hubline"), "demo", cwd=tmp_path)
    assert "hubline[websocket]" in run(
        str(tools / "python"),
        "-c",
        'from hubline.adapters import open_hub; open_hub("Endpoint=sb://x;SharedAccessKeyName=k;SharedAccessKey=eA==;EntityPath=h;Transport=websocket")',
        cwd=tmp_path,
        expected=1,
    )
    assert "hubline[postgres]" in run(
        str(tools / "python"),
        "-c",
        'from hubline.adapters import open_store; print(repr(open_store("postgresql://localhost/x")))',
        cwd=tmp_path,
        expected=1,
    )

    assert "hubline[spark]" in run(str(tools / "hubline"), "init", "orders", cwd=tmp_path)
    assert "hubline[spark]" in run(str(tools / "hubline"), "run", "orders/orders.py", cwd=tmp_path, expected=2)
    assert "environment.locks" in run(str(tools / "hubline"), "doctor", "--environment", cwd=tmp_path)

    run(*pip, *pinned, f"{wheel}[spark,java]", cwd=tmp_path)
    run(str(tools / "hubline"), "hub", "create", "local:./data/telemetry", cwd=tmp_path)
    run(str(tools / "hubline"), "send", "local:./data/telemetry", "--generate", "1000", cwd=tmp_path)
    (tmp_path / "read.py").write_text(SPARK_READ)
    assert "events: 1000" in run(str(tools / "python"), "read.py", cwd=tmp_path)
