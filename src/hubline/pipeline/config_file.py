"""The places file as it was written, with the line of each of its keys: errors point there."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from hubline.errors import Problem
from hubline.pipeline.definition import Where
from hubline.pipeline.secrets import secret_at, secrets_in, without_secrets

# A file of places is a page; one of this size is something else.
FILE_BYTES_MAX: Final = 1024 * 1024

_HEADER: Final = re.compile(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY: Final = re.compile(
    r"\s*((?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*'))*)\s*="
)
_PART: Final = re.compile(r"\"([^\"]*)\"|'([^']*)'|([A-Za-z0-9_-]+)")

Path_ = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TomlFile:
    """A parsed file. ``lines`` has the line of each table and key; ``overridden`` the keys that --set gave instead."""

    file: str
    data: Mapping[str, Any]
    lines: Mapping[Path_, int]
    overridden: frozenset[Path_] = frozenset()
    is_toml: bool = True
    """Whether it could be parsed: of a file that could not, nobody knows what is in it."""

    def where(self, *path: str) -> Where:
        """The line of the key, or of the first one in it, or of the nearest table around it."""
        for given in self.overridden:
            if path[: len(given)] == given or (given[: len(path)] == path and path not in self.lines):
                return Where(f"--set {'.'.join(path if len(path) > len(given) else given)}", 0)
        for length in range(len(path), 0, -1):
            around = path[:length]
            if around in self.lines:
                return Where(self.file, self.lines[around])
            if within := [line for known, line in self.lines.items() if known[:length] == around]:
                return Where(self.file, min(within))
        return Where(self.file, 1)


def read_toml(path: Path, settings: Mapping[str, str]) -> tuple[TomlFile, list[Problem]]:
    """The file with the settings of --set in it, and what is wrong with either."""
    text, problems = _text(path)
    problems += secrets_in(text, str(path))
    data: dict[str, Any] = {}
    is_toml = True
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        is_toml = False
        problems.append(_syntax(str(path), text, str(error)))
    file = TomlFile(str(path), data, dict(_lines(text)), is_toml=is_toml)
    problems += _named_secrets(file, {problem.line for problem in problems})
    overridden = set()
    for key, value in settings.items():
        if found := _set(data, key, value):
            problems.append(found)
        else:
            overridden.add(_path(key))
    return replace(file, overridden=frozenset(overridden)), problems


def leaves(table: Mapping[str, Any], path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """All values, also those of tables within tables, each with its keys."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name), value


def _named_secrets(file: TomlFile, told: set[int]) -> Iterator[Problem]:
    for path, value in leaves(file.data):
        line = file.where(*path).line
        if line not in told and (found := secret_at(path, value, (file.file, line))):
            yield found


def _text(path: Path) -> tuple[str, list[Problem]]:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
        if len(content) > FILE_BYTES_MAX:
            return "", [Problem(str(path), 1, f"the file is larger than {FILE_BYTES_MAX:,} bytes", "is it another?")]
        return content.decode("utf-8-sig"), []
    except FileNotFoundError:
        fix = "create it, with a table [places.NAME] for each place, or name another with --places"
        return "", [Problem(str(path), 0, "there is no such file of places", fix)]
    except UnicodeDecodeError:
        return "", [Problem(str(path), 1, "the file is not UTF-8 text", "save it as UTF-8")]
    except OSError as error:
        return "", [
            Problem(str(path), 0, f"the file cannot be read ({error.strerror})", "check the path and its rights")
        ]


def _syntax(file: str, text: str, message: str) -> Problem:
    what = f"the line is not TOML ({message.split(' (at ')[0]})"
    if match := re.search(r"\(at line (\d+), column \d+\)", message):
        return Problem(file, int(match[1]), what, 'write KEY = "VALUE"')
    last = len(text.rstrip().splitlines())  # the end of the file came too early
    return Problem(file, max(last, 1), what, 'write KEY = "VALUE", and close quotes and brackets')


def _set(data: dict[str, Any], key: str, value: str) -> Problem | None:
    """Puts a setting of the command line into what the file says."""
    shown = f"--set {without_secrets(key)}"
    *tables, last = path = _path(key)
    named = secret_at(path, _value(value), (shown, 0))
    if found := [*secrets_in(key, shown), *secrets_in(value, shown), *([named] if named else [])]:
        return Problem(shown, 0, found[0].message, "every user can list command lines; say env:NAME or file:PATH")
    if not tables or not all(path):
        return Problem(shown, 0, "is no setting", "write for instance --set places.raw.hub=local:./data/raw")
    for name in tables:
        inner = data.setdefault(name, {})
        if not isinstance(inner, dict):
            return Problem(shown, 0, f"{name} is no table in the file", "check the key")
        data = inner
    data[last] = _value(value)
    return None


def _path(key: str) -> Path_:
    """The keys of a setting. One of Spark has dots in its name: run.spark.KEY."""
    parts = tuple(key.split("."))
    return (*parts[:2], ".".join(parts[2:])) if parts[:2] == ("run", "spark") and parts[2:] else parts


def _value(text: str) -> Any:
    """As TOML has it where it is a number, a truth value or a list; else as text."""
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
    return value if isinstance(value, bool | int | float | list) else text


def _lines(text: str) -> Iterator[tuple[Path_, int]]:
    table: Path_ = ()
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _HEADER.match(line):
            table = _parts(header[1])
            yield table, number
        elif key := _KEY.match(line):
            yield (*table, *_parts(key[1])), number


def _parts(dotted: str) -> Path_:
    return tuple(a or b or c for a, b, c in _PART.findall(dotted))
