"""A page in headless Chromium, driven over its DevTools protocol."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from websocket import WebSocket, create_connection

NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
FLAGS: Final = (
    "--headless",
    "--no-sandbox",  # root cannot start Chromium without it
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",  # its own requests, for updates and more, too
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
)
# A busy machine takes many times what an idle one does.
SECONDS_MAX: Final = 30.0
POLL_SECONDS: Final = 0.05


class BrowserMissing(Exception):
    """There is no Chromium on this machine."""


class Page:
    """The browser's only page. `requests` has the address of everything that it asked for."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._calls = 0
        self.requests: list[str] = []
        self.call("Network.enable")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)  # the clipboard is for a page in front

    def call(self, method: str, **parameters: Any) -> Any:
        self._calls += 1
        self._socket.send(json.dumps({"id": self._calls, "method": method, "params": parameters}))
        while (answer := json.loads(self._socket.recv())).get("id") != self._calls:
            if answer["method"] == "Network.requestWillBeSent":
                self.requests.append(answer["params"]["request"]["url"])
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)
        self.wait_for("document.readyState == 'complete'")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression, which may do what needs a user's click."""
        result = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True, userGesture=True
        )
        assert "exceptionDetails" not in result, (script, result["exceptionDetails"])
        return result["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """The value of the expression, once it is true."""
        until = time.monotonic() + SECONDS_MAX
        while not (value := self.run(script)):
            assert time.monotonic() < until, f"never true: {script}"
            time.sleep(POLL_SECONDS)
        return value


@contextmanager
def browser_page() -> Iterator[Page]:
    """The page of a new browser. Raises BrowserMissing."""
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        raise BrowserMissing("there is no Chromium on this machine: apt-get install chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        command = [program, *FLAGS, f"--user-data-dir={folder}", "about:blank"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            socket = create_connection(_address(Path(folder), process), timeout=SECONDS_MAX)
            try:
                yield Page(socket)
            finally:
                socket.close()
        finally:
            process.terminate()
            process.wait()


def _address(folder: Path, process: subprocess.Popen[bytes]) -> str:
    """The page's socket. Chromium writes the port to a file once it listens."""
    file = folder / "DevToolsActivePort"
    until = time.monotonic() + SECONDS_MAX
    while not (file.exists() and "\n" in file.read_text()):
        assert process.poll() is None, f"Chromium ended with code {process.returncode}"
        assert time.monotonic() < until, "Chromium did not start"
        time.sleep(POLL_SECONDS)
    port = file.read_text().split()[0]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=SECONDS_MAX) as answer:
        return str(next(each["webSocketDebuggerUrl"] for each in json.load(answer) if each["type"] == "page"))
