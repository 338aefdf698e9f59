"""Where an error was raised: the user's line first, hubline's frames folded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import hubline.retry
from hubline.tracebacks import format_failure, format_frames, frames_in, frames_of, place_of

THIS = __file__
HUBLINE = Path(hubline.retry.__file__).parent


def raised(function: Any, *arguments: object) -> Exception:
    try:
        function(*arguments)
    except Exception as error:  # noqa: BLE001 - any error is what is looked at
        return error
    pytest.fail("it did not raise")


def parse(text: str) -> object:
    return json.loads(text)


def handle(text: str) -> object:
    return parse(text)


def line_of(text: str) -> int:
    return Path(THIS).read_text().splitlines().index(text) + 1


PARSE = line_of("    return json.loads(text)")
HANDLE = line_of("    return parse(text)")


def test_the_users_innermost_line_comes_first_then_what_it_called_and_who_called_it() -> None:
    head, first, inner, *callers = format_failure(raised(handle, "{")).splitlines()

    assert head.startswith("json.decoder.JSONDecodeError: Expecting property name")
    assert first == f'  File "{THIS}", line {PARSE}, in parse'
    assert inner.startswith('    raised in File "')
    assert "json/decoder.py" in inner
    assert callers[0] == f'    called by File "{THIS}", line {HANDLE}, in handle'
    assert callers[-1].endswith(" frames not shown)")
    assert place_of(raised(handle, "{")) == f"{THIS}:{PARSE}"


def test_frames_of_hubline_are_counted_and_not_shown_wherever_it_is_installed() -> None:
    text = f"""Traceback (most recent call last):
  File "/opt/venv/lib/python3.12/site-packages/hubline/processor/handlers/handler.py", line 91, in call
    return await function()
  File "{HUBLINE}/processor/processor.py", line 9, in call
  File "/home/me/hubline/app.py", line 7, in parse
    return int(text)
"""
    assert format_frames(frames_in(text)) == [
        '  File "/home/me/hubline/app.py", line 7, in parse',
        "    (2 frames of hubline not shown)",
    ]


def test_an_error_that_never_passed_the_users_code_shows_its_innermost_frame() -> None:
    text = f'  File "{HUBLINE}/retry.py", line 1, in a\n  File "{HUBLINE}/secrets.py", line 2, in b\n'

    assert format_frames(frames_in(text)) == [
        f'  File "{HUBLINE}/secrets.py", line 2, in b',
        "    (1 frame of hubline not shown)",
    ]


def test_the_errors_that_caused_it_follow_also_the_first_of_a_group() -> None:
    def outer() -> None:
        try:
            parse("{")
        except ValueError as error:
            raise ExceptionGroup("two", [KeyError("a")]) from error

    def outermost() -> None:
        try:
            outer()
        except ExceptionGroup as group:
            raise RuntimeError("no") from group

    lines = format_failure(raised(outermost)).splitlines()

    assert lines[0] == "RuntimeError: no"
    assert "  caused by ExceptionGroup: two (1 sub-exception)" in lines
    assert "  caused by KeyError: 'a'" in lines


def test_a_runaway_recursion_and_an_error_without_a_text_stay_short() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError

    def dig(depth: int) -> None:
        if depth == 0:
            raise Mute
        dig(depth - 1)

    lines = format_failure(raised(dig, 100)).splitlines()

    assert lines[0].endswith("Mute: (its text cannot be made: ValueError)")
    assert len(lines) == 13
    assert lines[-1] == "    (91 frames not shown)"


def test_an_error_that_was_never_raised_has_no_frames() -> None:
    assert frames_of(ValueError("x")) == []
    assert format_failure(ValueError("x")) == "ValueError: x"
    assert place_of(ValueError("x")) == "unknown"
