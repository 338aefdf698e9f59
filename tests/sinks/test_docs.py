"""The programs of "Exactly once into PostgreSQL" run as they stand there."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hubline.cli.app import main
from tests.sinks.conftest import PostgresSinkDatabase

PAGE = Path(__file__).parents[2] / "docs/how-to/process/exactly-once-sql.md"
PROGRAMS = re.findall(r'^```python title="\w+.py"\n(.*?)^```$', PAGE.read_text(), re.DOTALL | re.MULTILINE)
COUNTS = {
    "store": "SELECT count(*) FROM readings",
    "archive": "SELECT count(*) FROM bodies",
    "totals": "SELECT sum(events) FROM totals",
}
EVENTS_COUNT = 400
SECONDS_MAX = 60.0


@pytest.mark.parametrize("program", PROGRAMS, ids=list(COUNTS))
def test_the_program_writes_every_event_once_and_keeps_what_fails(
    program: str, tmp_path: Path, postgres: PostgresSinkDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    events = tmp_path / "events.txt"
    lines = [f'{{"value": {number}}}' if number % 100 else "no JSON" for number in range(EVENTS_COUNT)]
    events.write_text("\n".join(lines) + "\n")
    assert main(["hub", "create", "local:./data/telemetry", "--partitions", "4"]) == 0
    assert main(["send", "local:./data/telemetry", "--file", str(events)]) == 0
    (tmp_path / "program.py").write_text(program)
    group = re.findall(r'group="(\w+)"', program)[0]
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "program.py"], env={**os.environ, "RESULTS_URL": postgres.url}
    )
    try:
        await_end(process, postgres)
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS_MAX) == 0
    finally:
        process.kill()
        process.wait()

    failed = EVENTS_COUNT // 100 if group == "store" else 0
    assert postgres.execute(COUNTS[group]) == [(EVENTS_COUNT - failed,)]
    assert len(postgres.dead_letters()) == failed


def await_end(process: subprocess.Popen[bytes], postgres: PostgresSinkDatabase) -> None:
    deadline = time.monotonic() + SECONDS_MAX
    is_made = "SELECT count(*) FROM pg_class WHERE relname = 'hubline_checkpoint'"
    while time.monotonic() < deadline and process.poll() is None:
        if postgres.execute(is_made) == [(1,)]:
            done = postgres.execute("SELECT sum(sequence_number + 1) FROM hubline_checkpoint")
            if done == [(EVENTS_COUNT,)]:
                return
        time.sleep(0.1)
    pytest.fail("the program did not come to the end")
