"""Where an error was raised, for people: the line of their own code first, frames of hubline and of libraries folded.

    ValueError: invalid literal for int() with base 10: 'x'
      File "app.py", line 7, in parse
        called by File "app.py", line 12, in handle
        (8 frames of hubline not shown)

Neither values nor lines of source are shown: both may hold secrets.
"""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from hubline.text import counted

_CALLERS_COUNT_MAX: Final = 10
"""Frames of the user's own code that are shown: enough to find the way, and a runaway recursion shows no more."""

_CAUSES_COUNT_MAX: Final = 3
"""Errors that led to an error which are shown."""

_FILES_COUNT_MAX: Final = 256
"""Files of which is remembered whose they are: a handler that fails for every event asks often."""

_FRAME = re.compile(r'^ *File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<function>[^\n]+)$', re.MULTILINE)
_LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python\d|/pyspark\.zip/|/py4j-[^/]*\.zip/|/python/pyspark/")
_PACKAGE = Path(__file__).parent
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")


@dataclass(frozen=True, slots=True)
class Frame:
    """One place that an error passed on its way from where it was raised."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f'File "{self.file}", line {self.line}, in {self.function}'

    @property
    def is_hublines(self) -> bool:
        """Whether the file is one of hubline's, on whichever machine."""
        return _is_hublines(self.file)

    @property
    def is_users(self) -> bool:
        """Whether it is code of the user: not hubline's, and not of a library or of Python itself."""
        return not (_is_hublines(self.file) or _is_librarys(self.file))


def format_failure(error: BaseException) -> str:
    """The error's type and text, and below them where it was raised, as `where_raised` has it."""
    return "\n".join((_head(error), *where_raised(error)))


def where_raised(error: BaseException) -> list[str]:
    """Indented lines without line ends: the error's frames as `format_frames` shows them, then those of its causes."""
    lines = format_frames(frames_of(error))
    cause = _cause(error)
    for _ in range(_CAUSES_COUNT_MAX):
        if cause is None:
            break
        lines += [f"  caused by {_head(cause)}", *format_frames(frames_of(cause))]
        cause = _cause(cause)
    return lines


def format_frames(frames: Sequence[Frame]) -> list[str]:
    """Lines that begin with the innermost frame of the user's code, and count what is left out.

    Args:
        frames: The frames of one error, outermost first, from `frames_of` or `frames_in`.

    Returns:
        Indented lines without line ends. None if there are no frames.
    """
    place = _users_index(frames)
    if place is None:
        return []
    callers = [each for each in reversed(range(place)) if frames[each].is_users][:_CALLERS_COUNT_MAX]
    lines = [f"  {frames[place]}"]
    if frames[place] is not frames[-1]:
        lines.append(f"    raised in {frames[-1]}")
    lines += [f"    called by {frames[each]}" for each in callers]
    shown = {place, len(frames) - 1, *callers}
    left_out = [frame for each, frame in enumerate(frames) if each not in shown]
    if left_out:
        owner = " of hubline" if all(frame.is_hublines for frame in left_out) else ""
        lines.append(f"    ({counted(len(left_out), 'frame')}{owner} not shown)")
    return lines


def place_of(error: BaseException) -> str:
    """The line to look at, as `app.py:7`; "unknown" if the error was never raised."""
    frames = frames_of(error)
    place = _users_index(frames)
    return "unknown" if place is None else f"{frames[place].file}:{frames[place].line}"


def users_place(frames: Sequence[Frame]) -> str | None:
    """The innermost line of the user's own code, as `app.py:7`; None if the error never passed there."""
    users = [frame for frame in frames if frame.is_users]
    return f"{users[-1].file}:{users[-1].line}" if users else None


def frames_of(error: BaseException) -> list[Frame]:
    """The frames of an error, outermost first."""
    return list(_frames(error))


def frames_in(text: str) -> list[Frame]:
    """The frames in the text of a traceback, outermost first: a dead letter's, or one that Python or Spark printed."""
    return [Frame(match["file"], int(match["line"]), match["function"]) for match in _FRAME.finditer(text)]


def type_of(error: BaseException) -> str:
    """The name of an error's type, with its module where Python itself would show it."""
    kind = type(error)
    module = "" if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}."
    return f"{module}{kind.__qualname__}"


def text_of(error: BaseException) -> str:
    """The text of an error, also of one that fails to make its own."""
    try:
        return str(error)
    except Exception as failed:  # noqa: BLE001 - an error of the user's own may have no text, and is shown all the same
        return f"(its text cannot be made: {type(failed).__name__})"


def _frames(error: BaseException) -> Iterator[Frame]:
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        yield Frame(code.co_filename, trace.tb_lineno, code.co_name)
        trace = trace.tb_next


def _users_index(frames: Sequence[Frame]) -> int | None:
    """The innermost frame of the user's own code; of an error that never passed there, the innermost of all."""
    users = [index for index, frame in enumerate(frames) if frame.is_users]
    return users[-1] if users else len(frames) - 1 if frames else None


@lru_cache(maxsize=_FILES_COUNT_MAX)
def _is_hublines(file: str) -> bool:
    _, found, inner = file.replace("\\", "/").rpartition("/hubline/")
    return bool(found) and (_PACKAGE / inner).is_file()


def _is_librarys(file: str) -> bool:
    return file.startswith(("<frozen", _STANDARD_LIBRARY)) or _LIBRARY.search(file) is not None


def _cause(error: BaseException) -> BaseException | None:
    """What led to an error: the first of a group, what it was raised from, or what was being handled."""
    if isinstance(error, BaseExceptionGroup):
        return error.exceptions[0]
    return error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _head(error: BaseException) -> str:
    return f"{type_of(error)}: {text_of(error)}"
