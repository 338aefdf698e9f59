"""Packages of npm, installed once a machine, each set in a folder of its own."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from pathlib import Path


class NodeMissing(Exception):
    """Node and npm are not on this machine."""


def node_modules(name: str, *packages: str) -> Path:
    """The folder of the packages' modules, under this name in the cache. Raises NodeMissing."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        raise NodeMissing("node and npm are not on this machine")
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "hubline" / name
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # workers of a test run come here at the same time
        if not (cache / "installed").exists():
            command = [npm, "install", "--no-save", "--no-audit", "--no-fund", "--prefix", str(cache)]
            subprocess.run([*command, *packages], check=True, capture_output=True)
            (cache / "installed").touch()
    return cache / "node_modules"


def event_hubs_sdk() -> Path:
    """Of the official client for JavaScript. Raises NodeMissing."""
    return node_modules("event-hubs-6.0.4", "@azure/event-hubs@6.0.4")
