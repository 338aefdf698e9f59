"""Secrets: a type that never shows one, the shapes and names by which one is known, and `redact` for any text.

A shape has two expressions. `written` finds the secret that a person wrote into a file, and accuses nobody of a
placeholder or of a look-up in the environment. `hidden` is for texts of programs (errors, plans, logs): it hides too
much rather than too little. It holds in Java as in Python, since Spark hides by the same expressions.
"""

from __future__ import annotations

import hmac
import re
import reprlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

from hubline.errors import Problem


class Secret:
    """Text that must not be shown: `repr`, `str` and formatting give `***`, only `reveal` the text."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "Secret('***')"

    def __str__(self) -> str:
        return "***"

    def __format__(self, spec: str) -> str:
        return format("***", spec)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._text.encode(), other._text.encode())

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __bool__(self) -> bool:
        return bool(self._text)


# Shapes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shape:
    """What a secret looks like. Both expressions ignore case."""

    what: str
    written: str
    hidden: str


_KEY: Final = r"[A-Za-z0-9+/%_-]{8,}"
# To the end of a value. Base64 has no quotes, commas, semicolons or spaces.
_END: Final = r"""[^;&,\s"'`)\]}]"""

_NAME: Final = "(?:password|passwd|pwd|secret|token)"
# Bounded, and from the first dash on: tables have long rows of them.
_FLAG: Final = rf"(?<!-)--[a-z-]{{0,40}}{_NAME}"

SHAPES: Final = (
    Shape(
        "a shared access key",
        rf"SharedAccessKey\s*=\s*{_KEY}",
        rf"(?:SharedAccessKey|SharedSecretValue)\s*=\s*{_END}+",
    ),
    # A signature has blanks in it: SharedAccessSignature sr=...&sig=...&se=...&skn=...
    Shape(
        "a shared access signature",
        r"SharedAccessSignature\s*[= ]\s*s[a-z]{1,2}=",
        r"""SharedAccessSignature(?:\s*=\s*|\s+)[^;,"'`)\]}]+""",
    ),
    Shape("a signature", rf"[?&;\"']sig={_KEY}", rf"(?<![A-Za-z0-9])sig={_END}+"),
    # Of Entra: base64 of a JSON object, which begins with {", and two or more parts behind it. In a text, the last ones
    # may be cut off. The first is bounded: texts may have many beginnings, and no end.
    Shape(
        "a token",
        rf"\beyJ{_KEY}(?:\.{_KEY}){{2}}",
        r"(?:(?<![A-Za-z0-9])|(?<=%[0-9A-F]{2}))(?-i:eyJ)[A-Za-z0-9_-]{8,4000}+(?:\.[A-Za-z0-9_-]++){1,4}",
    ),
    Shape("an account key", rf"AccountKey\s*=\s*{_KEY}", rf"AccountKey\s*=\s*{_END}+"),
    # Not where it only says what stands there: postgresql://USER:PASSWORD@HOST/NAME.
    Shape(
        "a password in a URL",
        r"[a-z][a-z0-9+.-]*://[^\s/@:\"'`{}]*:(?!(?-i:PASSWORD)@|\.\.\.@|\*+@|<)[^\s/@\"'`{}]+@",
        r"(?<=://)[^\s/@:\"'`]*:[^\s\"'`]*@",
    ),
    # DB_PASSWORD = "...", options["password"] = "..."; not one that is looked up, password = os.environ["PASSWORD"],
    # nor a column: {"password": "string"}.
    Shape(
        "a password",
        r"[?&;]password=[^\s&;\"'{}]{3,}|password[\"'\]]*\s*=\s*(?:\"(?!env:|file:)[^\"'{}]{3,}\""
        r"|'(?!env:|file:)[^\"'{}]{3,}')",
        # As an assignment, in JSON (also within a string of JSON), in YAML, as a flag.
        rf"""(?:{_NAME}["'\]]*\s*=|{_NAME}\\?["']\s*:|(?:client[-_]?secret|[a-z]_token)\s*:|{_FLAG}\s)\s*"""
        rf"""(?:'[^']*'|"[^"]*"|\\"[^"]*"|{_END}+)""",
    ),
)

HIDDEN_NAMES: Final = (
    r"secret|password|token|access[.]?key",  # Spark's own default
    r"passwd|credential|signature|shared[-._]?access|account[-._]?key|connection[-._]?string|api[-._]?key",
    r"://[^/@\s]*:[^\s]*@",
    r"[?&;]sig=",
)
"""Settings, options and environment variables whose value is hidden whole: by their name, or by what it holds."""

# Not what is only about a secret: secret.file, token.provider.type, accessKeyId, secrets that Kubernetes keeps.
_ABOUT: Final = (
    "file|path|provider|class|type|name|id|ur[il]|endpoint|column|enabled|interval|timeout|expir|length|size"
    "|mechanism|service|bit|keyref"
)
_NAMES: Final = (
    r"^(?!.*[-._](?:file|path)$).*(?:account[-._]?key(?!provider)"
    r"|(?:passw(?:or)?d|pwd|secret(?!s[-._])|token(?!s|iz)|(?:access|api|private)[-._]?key|connection[-._]?string)"
    rf"(?!{_ABOUT}|[-._](?:{_ABOUT})(?:[-._]|$)))"
)


def any_of(*expressions: str) -> str:
    """One expression for several, for Java as for Python, that ignores case."""
    return "(?i:" + "|".join(expressions) + ")"


# Texts -------------------------------------------------------------------------------------------------------------


def redact(text: str) -> str:
    """The text with `***` in place of everything in it that looks like a secret."""
    return _hidden().sub("***", text)


def secrets_in(text: str, file: str) -> list[Problem]:
    """One problem for each line of a file that a person wrote which seems to hold a secret."""
    return [Problem(file, line, f"the line holds {what}", KEEP_ELSEWHERE) for line, what in _found(text)]


def names_secret(name: str) -> bool:
    """Whether what a setting or an option of this name holds is a secret, whatever it looks like."""
    return _names().search(name) is not None


KEEP_ELSEWHERE: Final = "keep it in an environment variable or a file of its own, and write env:NAME or file:PATH here"
NOT_SHOWN: Final = "(not shown, it may hold a secret)"
_SHOWN_LENGTH_MAX: Final = 40
_FILE_ADDRESS: Final = re.compile(r"sqlite:///[\w./-]{1,200}")
"""An address in which no secret can be."""


def may_hold_secret(text: str) -> bool:
    """Whether it looks like an address or connection string in the wrong place, which no message repeats."""
    return re.search(r"://|[=;@]|sharedaccess|password", text, re.IGNORECASE) is not None


def shown(text: str) -> str:
    """Text from a person, safe for terminal and log: escaped, cut, and left out where it may hold a secret."""
    if may_hold_secret(text):
        return NOT_SHOWN
    if len(text) > _SHOWN_LENGTH_MAX:
        return ascii(text[:_SHOWN_LENGTH_MAX]) + "..."
    return ascii(text)


def shown_value(value: object) -> str:
    """What a person gave where something else is expected, as `shown` has text. Of an object, its class alone."""
    if isinstance(value, str):
        text = ascii(value) if _FILE_ADDRESS.fullmatch(value) else shown(value)
        return f"text {text}" if text == NOT_SHOWN else text
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is not None and not isinstance(value, bool | int | float | bytes | list | tuple | dict | set):
        return f"an object of class {type(value).__name__}"
    text = ascii(reprlib.repr(value))[1:-1] if isinstance(value, list | tuple | dict | set) else ascii(value)
    if may_hold_secret(text):
        return f"a {type(value).__name__} {NOT_SHOWN}"
    return text if len(text) <= _SHOWN_LENGTH_MAX else f"{text[:_SHOWN_LENGTH_MAX]}..."


def _found(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.splitlines(), start=1):
        for what, shape in _written():
            if shape.search(line):
                yield number, what
                break


# Compiled when they are needed: every import of hubline comes by here.


@cache
def _written() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((shape.what, re.compile(shape.written, re.IGNORECASE)) for shape in SHAPES)


@cache
def _hidden() -> re.Pattern[str]:
    return re.compile(any_of(*(shape.hidden for shape in SHAPES)))


@cache
def _names() -> re.Pattern[str]:
    return re.compile(_NAMES, re.IGNORECASE)
