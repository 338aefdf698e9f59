"""Secrets that stand in a file for everybody to read: found by their shape or their name, and never repeated."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from hubline.errors import Problem

_FIX: Final = "keep it in an environment variable or a file of its own, and write env:NAME or file:PATH here"

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
    # DB_PASSWORD = "...", options["password"] = "..."; not one that is looked up, password = os.environ["PASSWORD"],
    # nor a column: {"password": "string"}.
    ("a password", re.compile(r"password[\"'\]]*\s*=\s*([\"'])(?!env:|file:)[^\"'{}]{3,}\1", re.IGNORECASE)),
)

# Not what is only about a secret: secret.file, token.provider.type, accessKeyId, secrets that Kubernetes keeps.
_ABOUT: Final = (
    "file|path|provider|class|type|name|id|ur[il]|endpoint|column|enabled|interval|timeout|expir|length|size"
    "|mechanism|service|bit|keyref"
)
_NAME: Final = re.compile(
    r"^(?!.*[-._](?:file|path)$).*(?:account[-._]?key(?!provider)"
    r"|(?:passw(?:or)?d|pwd|secret(?!s[-._])|token(?!s|iz)|(?:access|api|private)[-._]?key|connection[-._]?string)"
    rf"(?!{_ABOUT}|[-._](?:{_ABOUT})(?:[-._]|$)))",
    re.IGNORECASE,
)


def secrets_in(text: str, file: str) -> list[Problem]:
    """One problem for each line that seems to hold a secret."""
    return list(_found(text, file))


def names_secret(name: str) -> bool:
    """Whether what a setting or an option of this name holds is a secret, whatever it looks like."""
    return _NAME.search(name) is not None


def secret_at(path: Sequence[str], value: object, where: tuple[str, int]) -> Problem | None:
    """The problem with a value whose key names a secret, unless it only says where that is kept.

    The first two keys are names that people choose, of a dataset or a stage; of [spark], the first is.
    """
    is_kept_elsewhere = isinstance(value, bool) or not value or str(value).startswith(("env:", "file:"))
    if is_kept_elsewhere or not names_secret(".".join(path[1 if path[0] == "spark" else 2 :]) or path[-1]):
        return None
    return Problem(*where, "there is a secret in it, by the name of its key", _FIX)


def without_secrets(text: str) -> str:
    """The text of an error, or a remark in its place where it seems to quote a secret."""
    return "its text is not shown, it may hold a secret" if secrets_in(text, "") else text


def _found(text: str, file: str) -> Iterator[Problem]:
    for number, line in enumerate(text.splitlines(), start=1):
        for what, shape in _SHAPES:
            if shape.search(line):
                yield Problem(file, number, f"there is {what} in it", _FIX)
                break
