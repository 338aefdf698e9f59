"""The page on the endpoint: its programs run as they stand there, against a server started as it says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.emulator.serving import PATIENCE_SECONDS, Server, serving
from tests.emulator.test_javascript_sdk import modules

__all__ = ["modules"]

PAGE = (Path(__file__).parents[2] / "docs/how-to/local/event-hubs-locally.md").read_text()


def programs(language: str) -> list[str]:
    return re.findall(rf"^```{language}[^\n]*\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def page_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    (args,) = re.findall(r"^\$ hubline serve ./data (.*)$", PAGE, re.MULTILINE)
    with serving(tmp_path_factory.mktemp("data"), *args.split(), key=None) as server:
        yield server


@contextmanager
def started(command: list[str], server: Server, **variables: str) -> Iterator[Iterator[str]]:
    """The lines that a program prints, as long as it is let; it is killed when it prints nothing for long."""
    environment = {**os.environ, **variables, "EVENTHUB": server.announced}
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
    )
    assert process.stdout is not None
    timer = threading.Timer(PATIENCE_SECONDS, process.kill)
    timer.start()
    try:
        yield iter(process.stdout)
    finally:
        timer.cancel()
        process.kill()
        process.wait(PATIENCE_SECONDS)
        process.stdout.close()


def lines_until(lines: Iterator[str], text: str) -> list[str]:
    found: list[str] = []
    for line in lines:
        found.append(line)
        if text in line:
            return found
    pytest.fail(f"{text!r} was not printed, but: {''.join(found)}")


def test_python_programs_of_the_page_run(page_server: Server, tmp_path: Path) -> None:
    send, receive = programs("python")
    for code, expected in ((send, "sent to telemetry"), (receive, "reading 2")):
        script = tmp_path / "program.py"
        script.write_text(code)
        with started([sys.executable, str(script)], page_server) as lines:
            lines_until(lines, expected)


def test_javascript_program_of_the_page_runs(page_server: Server, tmp_path: Path, modules: Path) -> None:
    (code,) = programs("javascript")
    script = tmp_path / "program.js"
    script.write_text(code)
    node = shutil.which("node")
    assert node is not None
    with started([node, str(script)], page_server, NODE_PATH=str(modules)) as lines:
        lines_until(lines, "temperature: 21")
