"""Text that stands elsewhere: `env:NAME` and `file:PATH`, and paths of files."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from hubline.errors import ConfigError
from hubline.secrets import Secret, shown

# A signed address is about 600 characters; an attacker's should not cost memory or fill a log.
ADDRESS_LENGTH_MAX: Final = 8192


def parse_secret(what: str, text: str) -> Secret:
    """What the environment variable or the file holds that ``env:NAME`` or ``file:PATH`` names."""
    return Secret(resolve(what, text)[1])


# What all addresses share ------------------------------------------------------------------------------------------


def resolve(what: str, text: str) -> tuple[str, str]:
    """Follows ``env:NAME`` and ``file:PATH``, once; returns how to name the address in errors, and its text."""
    refuse_unprintable(what, text)
    scheme, _, rest = text.partition(":")
    if scheme == "env":
        what, text = f"{what} (from the environment variable {shown(rest)})", _from_environment(what, rest)
    elif scheme == "file":
        what, text = f"{what} (from the file {shown(rest)})", _from_file(what, rest)
    else:
        return what, text
    text = text.strip()
    refuse_unprintable(what, text)
    return what, text


def refuse_unprintable(what: str, text: str) -> None:
    if not text.strip():
        raise ConfigError(f"the {what} is empty. Give one.")
    if len(text) > ADDRESS_LENGTH_MAX:
        raise ConfigError(f"the {what} has {len(text):,} characters. Use at most {ADDRESS_LENGTH_MAX:,}.")
    for place, character in enumerate(text, start=1):
        if not character.isprintable():
            raise ConfigError(f"the {what} has a control character ({character!a}) at place {place}. Remove it.")


def _from_environment(what: str, name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ConfigError(
            f"{what}: {shown(name)} is not the name of an environment variable. Write env:NAME, with "
            "letters, digits and '_'."
        )
    text = os.environ.get(name)
    if text is None:
        raise ConfigError(f"{what}: the environment variable {shown(name)} is not set. Set it, or correct the name.")
    return text


def _from_file(what: str, name: str) -> str:
    if not name:
        raise ConfigError(f"{what}: file: has no path. Write file:PATH, the path of a file that holds the address.")
    path = parse_path(what, name)
    try:
        with path.open("rb") as file:
            content = file.read(ADDRESS_LENGTH_MAX + 1)
        problem = None
    except OSError as error:
        content, problem = b"", error.strerror
    if problem is not None:
        raise ConfigError(
            f"{what}: the file {shown(name)} cannot be read: {problem}. Correct the path, or allow reading the file."
        )
    text = _decoded(content)
    if text is None:
        raise ConfigError(f"{what}: the file {shown(name)} is not UTF-8 text. Save it as UTF-8.")
    return text


def _decoded(content: bytes) -> str | None:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None  # the exception holds the content


def parse_path(what: str, path: str) -> Path:
    """The absolute path, ``~`` expanded and links followed, so that one place has one name."""
    absolute = expanded(path)
    if absolute is None:
        raise ConfigError(f"{what}: the path {shown(path)} cannot be resolved. Check '~' and symbolic links.")
    return absolute


def expanded(path: str) -> Path | None:
    try:
        return Path(path).expanduser().resolve()
    except (RuntimeError, OSError, ValueError):  # an unknown user after ~, links in a circle, or a null byte
        return None
