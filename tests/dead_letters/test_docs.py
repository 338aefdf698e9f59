"""The page about dead letters does what it says, command by command."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest

from hubline.cli.app import main

PAGE = (Path(__file__).parents[2] / "docs/how-to/process/dead-letters.md").read_text()
SECONDS_MAX = 60.0


def test_commands_on_the_page_run_on_what_its_processor_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    main(["hub", "create", "local:./data/telemetry", "--partitions", "1"])
    main(["send", "local:./data/telemetry", "--generate", "1000", "--size", "12"])
    app = tmp_path / "app.py"
    app.write_text(re.findall(r'^```python title="app.py"\n(.*?)^```$', PAGE, re.DOTALL | re.MULTILINE)[0])
    with subprocess.Popen([sys.executable, "-W", "error", str(app)], cwd=tmp_path) as process:
        try:
            await_dead_letters(process, tmp_path)
        finally:
            process.terminate()
            process.wait(SECONDS_MAX)
    assert (counted(tmp_path, "readings"), counted(tmp_path, "hubline_dead_letter")) == (996, 4)

    shell(tmp_path, re.findall(r"^\$ ((?:hubline dlq|sed) .+)$", PAGE, re.MULTILINE))
    assert counted(tmp_path, "readings") == 1000
    assert counted(tmp_path, "hubline_dead_letter") == 0
    assert (tmp_path / "dead-letters.jsonl").exists()


def await_dead_letters(process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        assert time.monotonic() < deadline and process.poll() is None  # noqa: PT018
        with suppress(sqlite3.OperationalError):  # no table yet
            if counted(folder, "readings") + counted(folder, "hubline_dead_letter") == 1000:
                return
        time.sleep(0.1)


def shell(folder: Path, commands: list[str]) -> None:
    assert len(commands) == 11
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-ec", "\n".join(commands)],
        cwd=folder,
        env={"PATH": path, "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX * 2,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def counted(folder: Path, table: str) -> int:
    with closing(sqlite3.connect(folder / "readings.db")) as connection:
        ((count,),) = connection.execute(f"SELECT count(*) FROM {table}")
    return int(count)
