"""Secrets that stand in a file for everybody to read: found by their shape, and never repeated."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from hubline.errors import Problem

_MEND: Final = "keep it in an environment variable or a file of its own, and write env:NAME or file:PATH here"

_SHAPES: Final = (
    ("a shared access key", re.compile(r"SharedAccessKey\s*=\s*[A-Za-z0-9+/%_-]{8,}", re.IGNORECASE)),
    ("a shared access signature", re.compile(r"SharedAccessSignature\s*[= ]\s*s[a-z]{1,2}=", re.IGNORECASE)),
    ("a signature", re.compile(r"[?&;\"']sig=[A-Za-z0-9+/%_-]{8,}")),
    ("an account key", re.compile(r"AccountKey\s*=\s*[A-Za-z0-9+/%_-]{8,}", re.IGNORECASE)),
    # Not where it only says what stands there: postgresql://USER:PASSWORD@HOST/NAME.
    (
        "a password in a URL",
        re.compile(
            r"[a-z][a-z0-9+.-]*://[^\s/@:\"'`{}]*:(?!(?-i:PASSWORD)@|\.\.\.@|\*+@|<)[^\s/@\"'`{}]+@", re.IGNORECASE
        ),
    ),
    ("a password", re.compile(r"[?&;]password=[^\s&;\"'{}]{3,}", re.IGNORECASE)),
    # Not one that is looked up: password = os.environ["PASSWORD"].
    ("a password", re.compile(r"\bpassword\s*=\s*([\"'])(?!env:|file:)[^\"'{}]{3,}\1", re.IGNORECASE)),
)


def secrets_in(text: str, file: str) -> list[Problem]:
    """One problem for each line that seems to hold a secret."""
    return list(_found(text, file))


def without_secrets(text: str) -> str:
    """The text of an error, or a remark in its place where it seems to quote a secret."""
    return "its text is not shown, it may hold a secret" if secrets_in(text, "") else text


def _found(text: str, file: str) -> Iterator[Problem]:
    for number, line in enumerate(text.splitlines(), start=1):
        for what, shape in _SHAPES:
            if shape.search(line):
                yield Problem(file, number, f"there is {what} in it", _MEND)
                break
