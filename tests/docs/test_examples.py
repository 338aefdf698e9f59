"""The code in the README and the first tutorial runs as it stands there, as a newcomer would run it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hubline.cli.app import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs/tutorials/first-processor.md"]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# Spark's own workers may print one as a session stops, when Java no longer listens, and be cut off in the middle of it.
TRACE = re.compile(r'^Traceback \(most recent call last\):\n  File "(?!.*/pyspark/daemon\.py)', re.MULTILINE)
SECONDS_MAX = 150.0  # Spark takes ten to start and to plan, and a busy machine many more


# Each in a namespace of its own, as if it stood alone, but in one process: its Java takes longer to start than they do.
ONE_AFTER_THE_OTHER = """
import runpy
import sys
for file in sys.argv[1:]:
    print(file, flush=True)
    runpy.run_path(file, run_name="__main__")["spark"].stop()
"""


def blocks() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for number, code in enumerate(BLOCK.findall(page.read_text())):
            yield f"{page.stem}-{number}", code


def is_of_spark(code: str) -> bool:
    return "hubline.spark.session(" in code


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a reader would stand after the pages' first commands."""
    monkeypatch.chdir(tmp_path)
    assert main(["hub", "create", "local:./data/telemetry", "--partitions", "4"]) == 0
    assert main(["hub", "create", "local:./data/dead"]) == 0
    assert main(["hub", "create", "local:./data/results", "--partitions", "4"]) == 0
    assert main(["send", "local:./data/telemetry", "--generate", "1000", "--keys", "20"]) == 0
    return tmp_path


def test_the_examples_of_spark_run(folder: Path) -> None:
    files = []
    for name, code in blocks():
        if is_of_spark(code):
            files.append(f"{name}.py")
            (folder / files[-1]).write_text(code)
    command = [sys.executable, "-W", "error", "-c", ONE_AFTER_THE_OTHER, *files]
    ran = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS_MAX, check=False
    )
    said = ran.stdout.decode()

    assert files
    assert ran.returncode == 0, said
    assert not TRACE.search(said), said


@pytest.mark.parametrize("code", [pytest.param(code, id=name) for name, code in blocks() if not is_of_spark(code)])
def test_the_example_runs(code: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = folder / "example.py"
    script.write_text(code)
    said = folder / "said.txt"
    with said.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", str(script)], cwd=folder, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            if "processor.run" in code:  # run(), or run_async()
                if 'checkpoint_policy="never"' in code:
                    wait_until_said(process, said, r"(?m)^partition \d: \d+ events$")
                else:
                    wait_until_handled(process, re.findall(r'group="([\w-]+)"', code)[0], capsys)
                process.send_signal(signal.SIGTERM)
            process.wait(SECONDS_MAX)
        finally:
            process.kill()
            process.wait()

    assert process.returncode == 0, said.read_text()
    assert "Traceback" not in said.read_text()


def wait_until_said(process: subprocess.Popen[bytes], said: Path, pattern: str) -> None:
    """Only the program knows how far it is."""
    deadline = time.monotonic() + SECONDS_MAX
    while not re.search(pattern, said.read_text()):
        assert time.monotonic() < deadline and process.poll() is None, said.read_text()  # noqa: PT018
        time.sleep(0.1)


def wait_until_handled(process: subprocess.Popen[bytes], group: str, capsys: pytest.CaptureFixture[str]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        main(["status", "local:./data/telemetry", "--store", "sqlite:///state.db", "--group", group, "--json"])
        shown = capsys.readouterr().out
        if shown and json.loads(shown)["lagEvents"] == 0:  # of the whole group: a partition may be done sooner
            return
        time.sleep(0.1)
    pytest.fail(f"the example did not handle everything: {Path('said.txt').read_text()}")
