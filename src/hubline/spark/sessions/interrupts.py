"""Ctrl-C while Spark starts: Java is ended, and nothing is left behind."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from hubline.spark._jvm.session import StartingJava
from hubline.spark.sessions.launch import STANDARD_ERROR

_ENDED: Final = b"interrupted: stopping Spark's Java process, which was starting\n"
_PUT_OFF: Final = b"interrupted: stopping as soon as Spark's Java process can be stopped; again, to stop at once\n"


@contextmanager
def interruptible(java: StartingJava | None) -> Iterator[None]:
    """An interrupt within it ends the Java that is being started, and comes through when that has ended.

    By itself it would leave Java running forever: Spark would remove the file by which Java says where it listens. And
    a call to Java that is interrupted prints more than anybody wants to read.

    Where there is no Java to end (it ran before), or where an interrupt would not end the caller (it has a handler that
    takes notes), it is put off to the end of this, some seconds at most. A second one is not.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    if before[signal.SIGTERM] is not signal.default_int_handler:  # it interrupts only where a program wants that
        del before[signal.SIGTERM]
    ended = java if before[signal.SIGINT] is signal.default_int_handler else None
    asked: list[int] = []

    def on_interrupt(number: int, _: object) -> None:
        if asked:
            signal.signal(number, before[signal.Signals(number)])
            signal.raise_signal(number)
        asked.append(number)
        # Not by a file of Python's, whose lock the interrupted code may hold.
        os.write(STANDARD_ERROR, _PUT_OFF if ended is None else _ENDED)
        if ended is not None:
            logging.disable()  # of every call that fails now
            ended.end()

    log_level = logging.root.manager.disable
    for number in before:
        signal.signal(number, on_interrupt)
    try:
        yield
    except Exception:
        if not asked or ended is None:
            raise
    finally:
        logging.disable(log_level)
        for number, handler in before.items():
            if signal.getsignal(number) is on_interrupt:  # and not what Spark has put there for its jobs
                signal.signal(number, handler)
    if asked:
        if ended is not None:
            ended.forget()
        signal.raise_signal(asked[0])
