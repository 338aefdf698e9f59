"""A pipeline's TOML file as it was written, with the line of each of its keys: errors point there."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from hubline.addresses.did_you_mean import nearest_or_all
from hubline.addresses.references import parse_path, parse_secret
from hubline.errors import ConfigError, Problem
from hubline.pipeline.definition import Where
from hubline.secrets import (
    KEEP_ELSEWHERE,
    NOT_SHOWN,
    Secret,
    may_hold_secret,
    names_secret,
    redact,
    secrets_in,
    shown_value,
)

# A configuration is a page; a file of this size is something else.
MAX_FILE_BYTES: Final = 1024 * 1024

_HEADER: Final = re.compile(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY: Final = re.compile(
    r"\s*((?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*'))*)\s*="
)
_PART: Final = re.compile(r"\"([^\"]*)\"|'([^']*)'|([A-Za-z0-9_-]+)")

Path_ = tuple[str, ...]
Value = TypeVar("Value")


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


def read_toml(path: Path, overrides: Mapping[str, str]) -> tuple[TomlFile, list[Problem]]:
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
    for key, value in overrides.items():
        if found := _set(data, key, value):
            problems.append(found)
        else:
            overridden.add(_path(key))
    return replace(file, overridden=frozenset(overridden)), problems


class ConfigReader:
    """Reads values of one file, and collects what is wrong instead of stopping at it."""

    def __init__(self, file: TomlFile, problems: list[Problem]) -> None:
        self.file = file
        self.problems = problems

    def table(self, *path: str) -> Mapping[str, Any]:
        """The table; an empty one where there is none."""
        value: Any = self.file.data
        for name in path:
            value = value.get(name, {}) if isinstance(value, dict) else {}
        if isinstance(value, dict):
            return value
        name = ".".join(path)
        self.add_problem(path, f"{name} must be a table", f"write [{name}] and its keys below")
        return {}

    def check_keys(self, path: Path_, table: Mapping[str, Any], known: Iterable[str]) -> None:
        for key in [key for key in table if key not in tuple(known)]:
            name = NOT_SHOWN if may_hold_secret(key) else key
            self.add_problem((*path, key), f"the key {name} is unknown", nearest_or_all(key, known))

    def text(self, path: Path_, table: Mapping[str, Any]) -> str | None:
        value = table.get(path[-1])
        return None if value is None else self.value(path, value, str)

    def value(self, path: Path_, value: object, kind: type[Value]) -> Value | None:
        if isinstance(value, kind) and (kind is bool or not isinstance(value, bool)):
            return value
        wanted = {str: "text in quotes", int: "a whole number", bool: "true or false"}[kind]
        fix = "write it in quotes" if kind is str else "write it without quotes" if isinstance(value, str) else ""
        self.add_problem(path, f"{path[-1]} must be {wanted}, not {shown_value(value)}", fix)
        return None

    def parsed(self, path: Path_, parse: Callable[[], Value]) -> Value | None:
        try:
            return parse()
        except ConfigError as error:
            self.add_problem(path, str(error))
            return None

    def path(self, path: Path_, text: str) -> str | None:
        """The absolute path, if it leads somewhere."""
        is_known = self.parsed(path, lambda: parse_path(path[-1], text)) is not None
        return str(Path(text).expanduser().absolute()) if is_known else None

    def settings(self, path: Path_) -> dict[str, str | Secret]:
        """Settings of Spark's, whose names have dots: those are tables within tables to TOML, and one name to Spark."""
        found: dict[str, str | Secret] = {}
        for parts, value in leaves(self.table(*path)):
            name = ".".join(parts)
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if isinstance(value, list):
                self.add_problem((*path, name), f"{name} is a list", "write one text, for instance with commas in it")
            elif not _is_kept_elsewhere(name, text):
                found[name] = text
            elif (secret := self.parsed((*path, name), partial(parse_secret, name, text))) is not None:
                found[name] = secret
        return found

    def add_problem(self, path: Path_, message: str, fix: str = "") -> None:
        where = self.file.where(*path)
        self.problems.append(Problem(where.file, where.line, message, fix))


def _is_kept_elsewhere(name: str, text: str) -> bool:
    """Whether what Spark gets is in a variable or a file. Where no secret is expected, file: is a path of Spark's."""
    if text.startswith("file:"):
        return names_secret(name) or name.lower() == "url"
    return text.startswith("env:") and name.lower() != "path"


def leaves(table: Mapping[str, Any], path: Path_ = ()) -> Iterator[tuple[Path_, Any]]:
    """All values, also those of tables within tables, each with its keys."""
    for name, value in table.items():
        if isinstance(value, dict):
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name), value


def _named_secrets(file: TomlFile, reported: set[int]) -> Iterator[Problem]:
    for path, value in leaves(file.data):
        where = file.where(*path)
        if where.line not in reported and (found := _named_secret(path, value, where)):
            yield found


def _named_secret(path: Path_, value: object, where: Where) -> Problem | None:
    """The problem with a value whose key names a secret, unless it only says where that is kept.

    The first two keys are names that people choose, of a dataset or a stage; of [spark], the first is.
    """
    is_kept_elsewhere = isinstance(value, bool) or not value or str(value).startswith(("env:", "file:"))
    if is_kept_elsewhere or not names_secret(".".join(path[1 if path[0] == "spark" else 2 :]) or path[-1]):
        return None
    return Problem(where.file, where.line, "the line holds a secret, by the name of its key", KEEP_ELSEWHERE)


def _text(path: Path) -> tuple[str, list[Problem]]:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            return "", [
                Problem(
                    str(path),
                    1,
                    f"the file is larger than {MAX_FILE_BYTES:,} bytes",
                    "check whether it is the right file",
                )
            ]
        return content.decode("utf-8-sig"), []
    except FileNotFoundError:
        fix = "create it with a table [datasets.NAME] for each dataset, or name another file with --config"
        return "", [Problem(str(path), 0, "the file does not exist", fix)]
    except UnicodeDecodeError:
        return "", [Problem(str(path), 1, "the file is not UTF-8 text", "save it as UTF-8")]
    except OSError as error:
        return "", [
            Problem(
                str(path),
                0,
                f"the file cannot be read ({error.strerror})",
                "correct the path, or allow reading the file",
            )
        ]


def _syntax(file: str, text: str, message: str) -> Problem:
    what = f"the line is not TOML ({message.split(' (at ')[0]})"
    if match := re.search(r"\(at line (\d+), column \d+\)", message):
        return Problem(file, int(match[1]), what, 'write KEY = "VALUE"')
    last = len(text.rstrip().splitlines())  # the end of the file came too early
    return Problem(file, max(last, 1), what, 'write KEY = "VALUE", and close quotes and brackets')


def _set(data: dict[str, Any], key: str, value: str) -> Problem | None:
    """Puts a setting of the command line in the place of what the file says."""
    shown = f"--set {redact(key)}"
    *tables, last = path = _path(key)
    named = _named_secret(path, _value(value), Where(shown, 0))
    if found := [*secrets_in(key, shown), *secrets_in(value, shown), *([named] if named else [])]:
        return Problem(
            shown,
            0,
            found[0].message,
            "write env:NAME or file:PATH, because every user of the machine can list command lines",
        )
    if not tables or not all(path):
        return Problem(
            shown,
            0,
            "it is not a key",
            "write --set TABLE.KEY=VALUE, for example --set datasets.raw.hub=local:./data/raw",
        )
    for name in tables:
        inner = data.setdefault(name, {})
        if not isinstance(inner, dict):
            return Problem(shown, 0, f"{name} is not a table in the file", "check the key")
        data = inner
    data[last] = _value(value)
    return None


def _path(key: str) -> Path_:
    """The keys of a setting. One of Spark's has dots in its name: spark.KEY."""
    parts = tuple(key.split("."))
    return ("spark", ".".join(parts[1:])) if parts[0] == "spark" and parts[1:] else parts


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
