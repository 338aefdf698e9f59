"""The command line as real processes: signals, pipes and terminals."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from hubline.cli.exit_codes import ExitCode
from tests.cli.conftest import append

HUBLINE = (sys.executable, "-c", "import sys; from hubline.cli.app import main; sys.exit(main())")
# Far longer than anything takes: a bound on waiting, not a measure.
PATIENCE_SECONDS = 60
# Longer than ending takes on a busy machine.
INTERRUPT_SECONDS = 15


@contextmanager
def started(*args: str, **streams: object) -> Iterator[subprocess.Popen[bytes]]:
    """A process that does not outlive the test."""
    process = subprocess.Popen([*HUBLINE, *args], **streams)  # type: ignore[call-overload]
    try:
        yield process
    finally:
        process.kill()
        process.wait(PATIENCE_SECONDS)
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream:
                stream.close()


class Terminal:
    """The person's end of a pseudo-terminal."""

    def __init__(self) -> None:
        self._own, self.other = pty.openpty()
        self.shown = b""

    def close(self) -> None:
        os.close(self._own)
        os.close(self.other)

    def type(self, text: bytes) -> None:
        os.write(self._own, text)

    def wait_for(self, text: bytes) -> None:
        """Reads what appears until the text is among it."""
        self._read_until(lambda: text in self.shown)

    def wait_for_end(self, process: subprocess.Popen[bytes]) -> int:
        """The exit code. Reads on meanwhile: a process that cannot write does not end."""
        self._read_until(lambda: process.poll() is not None)
        return int(process.returncode)

    def interrupt(self, process: subprocess.Popen[bytes]) -> int:
        """Ctrl-C, and the exit code. Pressed again if nothing happens: a signal that comes just before a process begins
        to wait for its input is seen only after that, in Python as elsewhere."""
        pressed_at = float("-inf")

        def is_over() -> bool:
            nonlocal pressed_at
            if process.poll() is None and time.monotonic() > pressed_at + INTERRUPT_SECONDS:
                pressed_at = time.monotonic()
                process.send_signal(signal.SIGINT)
            return process.poll() is not None

        self._read_until(is_over)
        return int(process.returncode)

    def _read_until(self, is_over: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE_SECONDS
        while not is_over():
            assert time.monotonic() < until, f"shown so far: {self.shown!r}"
            if select.select([self._own], [], [], 0.05)[0]:
                self.shown += os.read(self._own, 65536)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    opened = Terminal()
    yield opened
    opened.close()


PIPES = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


def test_interrupted_tail_ends_without_a_word(hub: str) -> None:
    append(hub, "0", "here")
    with started("tail", hub, "--position", "earliest", **PIPES) as tail:
        assert tail.stdout is not None
        assert b"here" in tail.stdout.readline()
        tail.send_signal(signal.SIGINT)
        out, err = tail.communicate(timeout=PATIENCE_SECONDS)
        assert (tail.returncode, out, err) == (ExitCode.INTERRUPTED, b"", b"")


def test_following_shows_what_arrives_later(hub: str) -> None:
    append(hub, "0", "first")
    with started("tail", hub, "--position", "earliest", **PIPES) as tail:
        assert tail.stdout is not None
        assert b"first" in tail.stdout.readline()
        append(hub, "2", "second")
        assert b"second" in tail.stdout.readline()


def test_reader_of_a_pipe_may_go_away(hub: str) -> None:
    append(hub, "0", *("x" * 1000 for _ in range(2000)))
    with started("tail", hub, "--no-follow", **PIPES) as tail:
        assert tail.stdout is not None
        assert tail.stderr is not None
        tail.stdout.readline()
        tail.stdout.close()
        assert tail.wait(PATIENCE_SECONDS) == ExitCode.PIPE_CLOSED
        assert tail.stderr.read() == b""


def test_reader_that_never_reads_is_fine_too(hub: str) -> None:
    with started("hub", "show", hub, **PIPES) as show:
        assert show.stdout is not None
        assert show.stderr is not None
        show.stdout.close()
        assert show.wait(PATIENCE_SECONDS) == ExitCode.PIPE_CLOSED
        assert show.stderr.read() == b""


def test_lines_typed_slowly_are_sent_at_once(hub: str) -> None:
    with (
        started("tail", hub, "--position", "earliest", **PIPES) as tail,
        started("send", hub, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as send,
    ):
        assert tail.stdout is not None
        assert send.stdin is not None
        for line in (b"one\n", b"two\n"):
            send.stdin.write(line)
            send.stdin.flush()
            assert line.strip() in tail.stdout.readline()
        _, err = send.communicate(timeout=PATIENCE_SECONDS)
        assert send.returncode == 0
        assert b"sent 2 events" in err


def test_interrupted_send_tells_how_much_was_sent(hub: str) -> None:
    with started("send", hub, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as send:
        assert send.stdin is not None
        send.stdin.write(b"one\nhalf a line")
        send.stdin.flush()
        with started("tail", hub, "--position", "earliest", "--limit", "1", **PIPES) as tail:
            tail.communicate(timeout=PATIENCE_SECONDS)
        send.send_signal(signal.SIGINT)
        assert send.wait(PATIENCE_SECONDS) == ExitCode.INTERRUPTED
        assert send.stderr is not None
        assert send.stderr.read() == b"sent 1 event, then stopped\n"


@pytest.mark.parametrize(("answer", "code"), [(b"y\n", ExitCode.OK), (b"n\n", ExitCode.NOT_CONFIRMED)])
def test_question_on_a_terminal_is_answered_by_hand(
    hub: str, terminal: Terminal, answer: bytes, code: ExitCode
) -> None:
    tty = {"stdin": terminal.other, "stdout": terminal.other, "stderr": terminal.other}
    with started("hub", "delete", hub, **tty) as delete:
        terminal.wait_for(b"Delete local:")
        terminal.type(answer)
        terminal.wait_for(b"deleted local:" if code is ExitCode.OK else b"Nothing was changed")
        assert terminal.wait_for_end(delete) == code


def test_interrupted_question_changes_nothing(hub: str, terminal: Terminal) -> None:
    tty = {"stdin": terminal.other, "stdout": terminal.other, "stderr": terminal.other}
    with started("hub", "delete", hub, **tty) as delete:
        terminal.wait_for(b"[y/N]")
        assert terminal.interrupt(delete) == ExitCode.INTERRUPTED
        assert b"Traceback" not in terminal.shown


def in_terminal(terminal: Terminal) -> dict[str, object]:
    return {
        "stdin": subprocess.DEVNULL,
        "stdout": terminal.other,
        "stderr": terminal.other,
        "env": {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"},
    }


def test_progress_bar_is_drawn_on_a_terminal_only(hub: str, terminal: Terminal) -> None:
    with started("send", hub, "--generate", "30", "--rate", "50", **in_terminal(terminal)) as send:
        terminal.wait_for(b"/30")
        terminal.wait_for(b"sent 30 events")
        assert terminal.wait_for_end(send) == 0
    with started("send", hub, "--generate", "30", **PIPES) as send:
        out, err = send.communicate(timeout=PATIENCE_SECONDS)
        assert out == b""
        assert err.startswith(b"sent 30 events")


def test_events_are_coloured_on_a_terminal_and_harmless(hub: str, terminal: Terminal) -> None:
    append(hub, "0", "[bold]body[/bold] \x1b]0;title\x07")
    with started("tail", hub, "--no-follow", **in_terminal(terminal)) as tail:
        terminal.wait_for(b"[bold]body[/bold] \\x1b]0;title\\x07")
        assert terminal.wait_for_end(tail) == 0
        assert b"\x1b[36m" in terminal.shown


def test_watching_on_a_terminal_shows_an_outage_and_goes_on(terminal: Terminal) -> None:
    nobody = (
        "Endpoint=sb://localhost:9;SharedAccessKeyName=k;SharedAccessKey=k;EntityPath=h;UseDevelopmentEmulator=true"
    )
    args = ("status", nobody, "--store", "memory:", "--watch", "--interval", "10ms")
    with started(*args, **in_terminal(terminal)) as status:
        terminal.wait_for(b"cannot be reached")
        terminal.shown = b""
        terminal.wait_for(b"cannot be reached")
        status.send_signal(signal.SIGINT)
        assert terminal.wait_for_end(status) == ExitCode.INTERRUPTED
        assert b"Traceback" not in terminal.shown


def test_watching_on_a_terminal_ends_quietly(hub: str, terminal: Terminal) -> None:
    args = ("status", hub, "--store", "memory:", "--watch", "--interval", "10ms")
    with started(*args, **in_terminal(terminal)) as status:
        terminal.wait_for(b"no members")
        terminal.shown = b""
        terminal.wait_for(b"no members")  # drawn again
        status.send_signal(signal.SIGINT)
        assert terminal.wait_for_end(status) == ExitCode.INTERRUPTED
        assert b"Traceback" not in terminal.shown
