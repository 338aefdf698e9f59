"""Tracebacks of closed pipes are not shown; everything else is, whole and in order."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hubline.spark.sessions.stderr_filter import StderrFilter, pass_on

DAEMON = b'  File "/x/pyspark.zip/pyspark/daemon.py", line 264, in manager\n'
START = b"Traceback (most recent call last):\n"
NOISE = START + DAEMON + b"    code = worker(sock)\n" + b"BrokenPipeError: [Errno 32] Broken pipe\n"


def shown(*chunks: bytes) -> bytes:
    quiet = StderrFilter()
    return b"".join([part for chunk in chunks for part in quiet.passed(chunk)]) + quiet.rest()


@given(st.integers(1, 40))
def test_noise_is_left_out_however_it_is_cut(size: int) -> None:
    text = b"before\n" + NOISE + b"\rprogress" + b"\nafter\n" + NOISE

    assert shown(*(text[at : at + size] for at in range(0, len(text), size))) == b"before\n\rprogress\nafter\n"


@given(st.integers(1, 40))
def test_noise_in_which_java_logs_is_left_out_and_what_java_logs_is_not(size: int) -> None:
    logged = b"26/11/16 13:07:29 WARN ResolveWriteToStream: something\n"
    lines = NOISE.splitlines(keepends=True)
    text = b"".join([lines[0], b'Setting Spark log level to "WARN".\n', *lines[1:3], logged, *lines[3:]])

    assert shown(*(text[at : at + size] for at in range(0, len(text), size))) == logged


@given(st.integers(1, 40))
def test_noise_after_a_progress_bar_and_of_two_at_once_is_left_out(size: int) -> None:
    end = b"BrokenPipeError: [Errno 32] Broken pipe\n"
    text = b"\r[Stage 0]\r     \r" + START + START + DAEMON + DAEMON + end + end + b"\rafter"

    assert shown(*(text[at : at + size] for at in range(0, len(text), size))) == b"\r[Stage 0]\r     \r\rafter"


@given(st.integers(1, 40))
def test_the_end_of_a_process_that_planned_a_stream_is_left_out_with_all_that_it_chains(size: int) -> None:
    planning = b'  File "/x/pyspark.zip/pyspark/sql/streaming/python_streaming_source_runner.py", line 265, in main\n'
    again = b"\nDuring handling of the above exception, another exception occurred:\n\n"
    noise = START + planning + b"EOFError\n" + again + START + planning + b"BrokenPipeError: [Errno 32] Broken pipe\n"
    text = b"before\n" + noise + b"after\n" + again

    assert shown(*(text[at : at + size] for at in range(0, len(text), size))) == b"before\nafter\n" + again


@pytest.mark.parametrize(
    "text",
    [
        START + b'  File "mine.py", line 1\n' + b"EOFError\n",
        START + DAEMON + b"ValueError: x\n",
        START + b'  File "mine.py", line 1\n' + b"BrokenPipeError: [Errno 32] Broken pipe\n",
        START + DAEMON * 50 + b"BrokenPipeError: [Errno 32] Broken pipe\n",
        START + START + b"x\n",
        START + DAEMON,
        b"\xff\xfe no newline",
        b"",
    ],
)
def test_all_else_is_passed_on(text: bytes) -> None:
    assert shown(text) == text
    assert shown(*(bytes([byte]) for byte in text)) == text


def test_a_line_that_goes_on_is_shown_at_once() -> None:
    quiet = StderrFilter()

    assert b"".join(quiet.passed(b"\r[Stage 0:>   ")) == b"\r[Stage 0:>   "
    assert b"".join(quiet.passed(b"Trace")) == b""
    assert b"".join(quiet.passed(b" of something\n")) == b"Trace of something\n"


def test_what_nobody_listens_to_is_taken_all_the_same() -> None:
    (source, writing), (reading, target) = os.pipe(), os.pipe()
    os.close(reading)
    copying = pass_on(source, target)

    for _ in range(100):  # far more than a pipe holds
        os.write(writing, b"x" * 10_000 + b"\n")
    os.close(writing)
    copying.join()
    os.close(target)


def test_one_file_is_copied_to_another_until_it_ends() -> None:
    (source, writing), (reading, target) = os.pipe(), os.pipe()
    copying = pass_on(source, target)
    os.write(writing, b"a\n" + NOISE + b"b")
    os.close(writing)
    copying.join()

    copied = b""
    while len(copied) < 3:
        copied += os.read(reading, 3)
    assert copied == b"a\nb"
    for descriptor in (reading, target):
        os.close(descriptor)


@given(st.integers(1, 40))
def test_what_java_says_of_its_logging_at_its_start_is_left_out_and_what_goes_wrong_is_not(size: int) -> None:
    chatter = (
        b"WARNING: Using incubator modules: jdk.incubator.vector\n"
        b"Using Spark's default log4j profile: org/apache/spark/log4j2-defaults.properties\n"
        b'Setting default log level to "WARN".\n'
        b"To adjust logging level use sc.setLogLevel(newLevel). For SparkR, use setLogLevel(newLevel).\n"
        b"26/11/15 19:30:26 WARN NativeCodeLoader: Unable to load native-hadoop library for your platform...\n"
        b'Setting Spark log level to "ERROR".\n'
    )
    wrong = b"Invalid maximum heap size: -Xmxlots\n26/11/15 19:30:26 WARN Utils: Service could not bind\n"

    text = chatter + wrong + chatter

    assert shown(*(text[at : at + size] for at in range(0, len(text), size))) == wrong
