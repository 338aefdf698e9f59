"""The databases that a Python process of Spark keeps open between its tasks.

A sink is pickled with every task, and its connections stay behind. Each process has one of its own for all sinks that
are equal, so that a task finds connections where another one left them. What nobody has used for a while is closed. A
process that is killed leaves nothing behind: its sockets close, and the server ends what was not committed.
"""

from __future__ import annotations

import atexit
from contextlib import AbstractContextManager
from typing import Final

from hubline.concurrency import IdleCache
from hubline.sinks import SqlSink

IDLE_SECONDS: Final = 60.0
"""A database that nobody uses for so long is closed: longer than most triggers, and as long as Spark keeps a worker."""

_sinks: IdleCache[SqlSink, SqlSink] = IdleCache(
    lambda sink: sink.close(), idle_seconds=IDLE_SECONDS, open=lambda sink: sink
)
atexit.register(_sinks.close)


def shared_sink(sink: SqlSink) -> AbstractContextManager[SqlSink]:
    """This process's own sink that is equal to the one given. From any thread."""
    return _sinks.use(sink)
