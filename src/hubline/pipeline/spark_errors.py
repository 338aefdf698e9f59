"""What Spark says in a hundred lines, in one: what went wrong in the innermost Python or Java, and no secret.

Spark wraps what it hears of. An error of a task, of a planning process or of a ``foreachBatch`` arrives as the text of
a Python traceback, in the message of a Java exception, with stack traces and the query's plan around it; and one such
text may hold another.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from hubline.secrets import redact
from hubline.tracebacks import Frame, frames_in, users_place

LENGTH_MAX: Final = 600
"""Longer than any sentence of ours; shorter than a plan that Spark quotes."""

_TRACEBACK: Final = "Traceback (most recent call last):"
# An error of a group of tasks is drawn as a tree.
_BRANCH: Final = re.compile(r"^\s+(?:\|\s)+")
# What Python writes below a traceback: the type, with its module, and what it says.
_RAISED: Final = re.compile(r"^(?:[A-Za-z_]\w*\.)*(?P<type>[A-Z]\w*)(?:: ?(?P<says>.*))?$")
# What Java writes of an exception whose type Python does not know.
_CALLED: Final = re.compile(r"^An error occurred while calling \S+$")
_THROWN: Final = re.compile(r"^(?:: |Caused by: )?(?:[a-z][\w$]*\.)+(?P<type>[A-Z][\w$]*): (?P<says>.+)$")
# What Spark puts around a message: which task it was, the name of the error, and its state in SQL.
_TASK: Final = re.compile(r"^Job aborted due to stage failure: .*?\((?:TID|\S+ executor) [^()]*\)(?: \([^()]*\))*: ")
_NAME: Final = re.compile(r"^\[[A-Z][A-Z0-9_.]+\] ")
_STATE: Final = re.compile(r"\.? SQLSTATE: \w{5}\b.*$")

_NOT_INSTALLED: Final = "ModuleNotFoundError: No module named 'hubline'"
_INSTALL: Final = (
    "hubline is not installed for the Python that Spark runs. Install it there, or name another Python by "
    "PYSPARK_PYTHON."
)


def summarize_spark_error(error: BaseException) -> str:
    """One line about an error that came from Spark, or from anything else."""
    lines = _lines(error)
    raised = _innermost(lines)
    text = (raised.text if raised else _first(lines)) or type(error).__name__
    if text.startswith(_NOT_INSTALLED):
        return _INSTALL
    return redact(text)[:LENGTH_MAX]


def summarize_failure(error: BaseException) -> str:
    """The same, after the line of the user's own code where it was raised: `/app/telemetry.py:9: ValueError: ...`."""
    raised = _innermost(_lines(error))
    place = users_place(raised.frames) if raised else None
    return f"{place}: {summarize_spark_error(error)}" if place else summarize_spark_error(error)


@dataclass(frozen=True, slots=True)
class _Raised:
    """What Python raised: its type and text, and the frames that it passed."""

    text: str
    frames: list[Frame]


def _lines(error: BaseException) -> list[str]:
    return [_BRANCH.sub("", line) for line in str(error).splitlines()]


def _innermost(lines: list[str]) -> _Raised | None:
    """What the innermost Python raised: below the last traceback that has such a line."""
    for start in reversed([number for number, line in enumerate(lines) if line.endswith(_TRACEBACK)]):
        below = [line for line in lines[start + 1 :] if line.strip()]
        found = next(((number, match) for number, line in enumerate(below) if (match := _RAISED.match(line))), None)
        if found is None:
            continue
        number, match = found
        # Some begin what they say with an empty line.
        says = match["says"] or (below[number + 1].strip() if match["says"] == "" and below[number + 1 :] else "")
        text = f"{match['type']}: {_bare(says)}" if says else match["type"]
        return _Raised(text, frames_in("\n".join(below[:number])))
    return None


def _first(lines: list[str]) -> str | None:
    """The first line that says something."""
    said = [line.strip() for line in lines if line.strip() and not _CALLED.match(line.strip())]
    if not said:
        return None
    thrown = _THROWN.match(said[0])
    return _bare(thrown["says"] if thrown else said[0])


def _bare(text: str) -> str:
    text = _TASK.sub("", text)
    if thrown := _THROWN.match(text):
        text = f"{thrown['type']}: {thrown['says']}"
    return _STATE.sub("", _NAME.sub("", text)).rstrip(".;: ")
