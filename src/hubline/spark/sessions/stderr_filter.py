"""What Java and the Python processes below it print, without the chatter of its start and tracebacks of closed pipes.

Stopping a query, and planning one, closes the pipe to a Python process that Spark needs no longer. The process ends, as
it should, and its parent prints a traceback of the broken pipe: noise that people take for a fault. At its start, Java
tells how it logs and which parts of it are young, whatever its options are. All else is passed on.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator
from typing import Final

_START: Final = b"Traceback (most recent call last):\n"
_CLOSED_PIPE: Final = re.compile(rb"(?:BrokenPipeError|ConnectionResetError): |EOFError$")
_CHAINED: Final = (b"\n", b"During handling of the above exception, another exception occurred:\n")
_CHATTER: Final = re.compile(
    rb"WARNING: Using incubator modules: |Using Spark's default log4j profile: |Setting (?:default|Spark) log level to "
    rb"|To adjust logging level use |\S+ \S+ WARN NativeCodeLoader: Unable to load native-hadoop library "
)
# A line that Java logs: it may come in the middle of what another process prints.
_LOGGED: Final = re.compile(rb"\d\d/\d\d/\d\d \d\d:\d\d:\d\d [A-Z]+ ")
# What Spark ends by closing its pipe: the parent of all workers, and the process that plans a stream.
_PARTIES: Final = (b"pyspark/daemon.py", b"pyspark/sql/streaming/python_streaming_source_runner.py")
# A traceback that continues for longer is none of these.
_LINES_MAX: Final = 20
_CHUNK_BYTES: Final = 65536


def pass_on(source: int, target: int) -> threading.Thread:
    """Copies what comes from one file descriptor to the other, in a thread of its own, until it ends; closes the first.

    Not by Python's own files: a thread that holds their lock when the process ends is a fatal error.
    """
    thread = threading.Thread(target=_copy, args=(source, target), name="hubline-java-errors", daemon=True)
    thread.start()
    return thread


def _copy(source: int, target: int) -> None:
    quiet = StderrFilter()
    while chunk := os.read(source, _CHUNK_BYTES):
        _write(target, b"".join(quiet.passed(chunk)))
    _write(target, quiet.rest())
    os.close(source)


def _write(target: int, data: bytes) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more; Java must be able to print all the same
        while data:
            data = data[os.write(target, data) :]


class StderrFilter:
    """Takes bytes as they come, and gives what is to be shown of them: all but what may turn out as noise."""

    def __init__(self) -> None:
        self._held: list[bytes] = []
        self._begun = b""
        self._is_after_noise = False

    def passed(self, chunk: bytes) -> Iterator[bytes]:
        *lines, self._begun = (self._begun + chunk).split(b"\n")
        for line in lines:
            yield from self._line(line + b"\n")
        if not self._held:
            # A progress bar continues without a new line; a traceback may begin after it. Any other line is waited for.
            _, bar, last = self._begun.rpartition(b"\r")
            shown = len(self._begun) if bar and not _START.startswith(last) else len(self._begun) - len(last)
            yield self._begun[:shown]
            self._begun = self._begun[shown:]

    def rest(self) -> bytes:
        return b"".join([*self._held, self._begun])

    def _line(self, line: bytes) -> Iterator[bytes]:
        if not self._held and line.endswith(_START):
            yield line.removesuffix(_START)
            self._held = [_START]
        elif not self._held and self._is_after_noise and line in _CHAINED:
            pass  # the next traceback tells of the same
        elif _CHATTER.match(line):
            pass
        elif not self._held:
            self._is_after_noise = False
            yield line
        elif _LOGGED.match(line):
            yield line
        elif (line.startswith(b" ") or line == _START) and len(self._held) < _LINES_MAX:
            self._held.append(line)
        elif _CLOSED_PIPE.match(line) and any(party in held for held in self._held for party in _PARTIES):
            # Several processes print at once: as many tracebacks end as have begun.
            self._held.remove(_START)
            self._held = self._held if _START in self._held else []
            self._is_after_noise = True
        else:
            yield from self._released()
            yield line

    def _released(self) -> list[bytes]:
        released, self._held = self._held, []
        return released
