"""The databases that a Python process of Spark keeps open between its tasks.

A sink is pickled with every task, and its connections stay behind. Each process has one of its own for all sinks that
are equal, so that a task finds connections where another one left them. What nobody has used for a while is closed. A
process that is killed leaves nothing behind: its sockets close, and the server ends what was not committed.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from hubline.sinks import SqlSink

IDLE_SECONDS: Final = 60.0
"""A database that nobody uses for so long is closed: longer than most triggers, and as long as Spark keeps a worker."""


@contextmanager
def lent(sink: SqlSink) -> Iterator[SqlSink]:
    """This process's own sink that is equal to the one given. From any thread."""
    sinks = _OpenSinks.of_this_process()
    kept = sinks.borrow(sink)
    try:
        yield kept.sink
    finally:
        sinks.give_back(kept)


class _Kept:
    def __init__(self, sink: SqlSink) -> None:
        self.sink = sink
        self.borrowers_count = 0
        self.closing: threading.Timer | None = None


class _OpenSinks:
    """The open sinks of a process. A forked one gets its own: connections cannot be used from two."""

    current: _OpenSinks | None = None
    _lock: Final = threading.Lock()

    def __init__(self) -> None:
        self.process_id = os.getpid()
        self._kept: dict[SqlSink, _Kept] = {}
        atexit.register(self.close)

    @classmethod
    def of_this_process(cls) -> _OpenSinks:
        with cls._lock:
            if cls.current is None or cls.current.process_id != os.getpid():
                cls.current = cls()
            return cls.current

    def borrow(self, sink: SqlSink) -> _Kept:
        with self._lock:
            kept = self._kept.setdefault(sink, _Kept(sink))
            kept.borrowers_count += 1
            if kept.closing is not None:
                kept.closing.cancel()
                kept.closing = None
            return kept

    def give_back(self, kept: _Kept) -> None:
        with self._lock:
            kept.borrowers_count -= 1
            if not kept.borrowers_count:
                kept.closing = threading.Timer(IDLE_SECONDS, self._close_idle, [kept])
                kept.closing.daemon = True
                kept.closing.start()

    def close(self) -> None:
        """At the end of the process."""
        if self.process_id != os.getpid():
            return
        with self._lock:
            kept, self._kept = list(self._kept.values()), {}
        for each in kept:
            each.sink.close()

    def _close_idle(self, kept: _Kept) -> None:
        with self._lock:
            if kept.borrowers_count:  # somebody was faster
                return
            # Out of the way first: who wants it while it closes opens another.
            self._kept = {key: each for key, each in self._kept.items() if each is not kept}
        kept.sink.close()
