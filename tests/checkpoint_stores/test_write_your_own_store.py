"""The page about a store of one's own: its files run as they stand there, and its suite passes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hubline.cli.app import main

PAGE = Path(__file__).parents[2] / "docs/how-to/process/write-your-own-store.md"
FILE = re.compile(r'^```python title="([a-z_]+\.py)"\n(.*?)^```$', re.DOTALL | re.MULTILINE)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a reader stands who has made the page's files."""
    monkeypatch.chdir(tmp_path)
    for name, code in FILE.findall(PAGE.read_text()):
        (tmp_path / name).write_text(code)
    return tmp_path


def test_the_processors_share_the_hub(folder: Path) -> None:
    assert main(["hub", "create", "local:./data/telemetry", "--partitions", "4"]) == 0
    assert main(["send", "local:./data/telemetry", "--generate", "1000"]) == 0
    command = [sys.executable, "-W", "error", "app.py"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.stdout, ran.returncode) == ("1000 events\n", 0), ran.stderr
    assert "Traceback" not in ran.stderr


def test_the_suite_is_one_line_and_passes(folder: Path) -> None:
    suite = (folder / "test_my_store.py").read_text()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_store.py"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)

    assert len([line for line in suite.splitlines() if line.startswith("Test")]) == 1
    assert ran.returncode == 0, ran.stdout
    passed, skipped = (int(number) for number in re.findall(r"(\d+) (?:passed|skipped)", ran.stdout))
    assert passed > 3 * skipped > 0


def test_the_suite_finds_a_store_that_does_not_compare(folder: Path) -> None:
    store = (folder / "my_store.py").read_text()
    comparison = 'if stored.get("etag") == claim.get("etag"):'
    assert comparison in store
    (folder / "my_store.py").write_text(store.replace(comparison, "if True:"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_store.py"]
    ran = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)

    assert ran.returncode == 1
    assert "FAILED test_my_store.py::TestMyStore::test_a_claim_with_an_old_version_is_lost" in ran.stdout
