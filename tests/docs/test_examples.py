"""The code in the README and the how-to pages runs as it stands there, as a newcomer would run it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hubline.cli import main

ROOT = Path(__file__).parents[2]
# Their programs need a server: tests/endpoint, tests/eventhubs, tests/sinks and tests/stores run them.
SERVED = (
    "event-hubs-on-your-laptop",
    "connect-to-azure",
    "share-with-the-official-sdks",
    "exactly-once-into-postgresql",
    "keep-partitions-in-place",
)
PAGES = [ROOT / "README.md", *sorted(page for page in (ROOT / "docs/how-to").glob("*.md") if page.stem not in SERVED)]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SECONDS_MAX = 150.0  # Spark takes ten to start and to plan, and a busy machine many more


def examples() -> Iterator[object]:
    for page in PAGES:
        for number, code in enumerate(BLOCK.findall(page.read_text())):
            yield pytest.param(code, id=f"{page.stem}-{number}")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a reader would stand after the pages' first commands."""
    monkeypatch.chdir(tmp_path)
    assert main(["hub", "create", "local:./data/telemetry", "--partitions", "4"]) == 0
    assert main(["hub", "create", "local:./data/dead"]) == 0
    assert main(["hub", "create", "local:./data/results", "--partitions", "4"]) == 0
    assert main(["send", "local:./data/telemetry", "--generate", "1000", "--keys", "20"]) == 0
    return tmp_path


@pytest.mark.parametrize("code", list(examples()))
def test_the_example_runs(code: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = folder / "example.py"
    script.write_text(code)
    said = folder / "said.txt"
    with said.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", str(script)], cwd=folder, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            if "processor.run()" in code:
                wait_until_handled(process, re.findall(r'group="([\w-]+)"', code)[0], capsys)
                process.send_signal(signal.SIGTERM)
            process.wait(SECONDS_MAX)
        finally:
            process.kill()
            process.wait()

    assert process.returncode == 0, said.read_text()
    assert "Traceback" not in said.read_text()


def wait_until_handled(process: subprocess.Popen[bytes], group: str, capsys: pytest.CaptureFixture[str]) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline and process.poll() is None:
        main(["status", "local:./data/telemetry", "--store", "sqlite:///state.db", "--group", group, "--json"])
        if '"lagEvents":0' in capsys.readouterr().out:
            return
        time.sleep(0.1)
    pytest.fail(f"the example did not handle everything: {Path('said.txt').read_text()}")
