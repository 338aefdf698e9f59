"""Code and texts use plain words, the same as everybody else's in this field: none of hubline's former dialect."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUFFIXES = {".py", ".md", ".sql", ".svg", ".toml"}

WORDS = {
    "anew": "again, or re-created",
    "askers?": "requester, or the consumer that requested it",
    "goodbye": "close",
    "lots?": "batch, chunk, or many",
    "mend(s|ed|ing)?": "fix",
    "relinquish(e[sd]|ing)?": "release",
    "shall": "must, or should",
    "shel(f|ves)": "repository, or cache",
    "surrender(s|ed|ing)?": "release",
    "told": "reported, given, or listed",
    "whoever": "the role: the caller, the owner, the user",
}
"""Each word as a pattern, and what to write instead. Parts of names count as words."""

UNWANTED = re.compile(rf"(?<![a-z])(?:{'|'.join(WORDS)})(?![a-z])", re.IGNORECASE)

LETTER = re.compile(r"(?P<dead>dead[\W_]*)?(?<![a-z])(?P<letter>letters?)(?![a-z])|deadletters?", re.IGNORECASE)
"""A letter is a dead letter. Between the two words there may be the end of a line, or of a string."""

ALLOWED = re.compile(
    r"hubline-letter-"  # the properties of an event in a hub of dead letters: written to the wire
    r"|(lower-case|capital) letters|letters, digits|letter or digit"  # of the alphabet
)

ITSELF = Path(__file__)


def files() -> Iterator[Path]:
    yield from (ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile"))
    for folder in ("src/hubline", "docs", "examples", "tests", "benchmarks"):
        found = (file for file in (ROOT / folder).rglob("*") if file.suffix in SUFFIXES)
        yield from sorted(file for file in found if file != ITSELF)


def name_of(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()


def unwanted(text: str) -> Iterator[str]:
    """Each unwanted word, with its line."""
    text = ALLOWED.sub(lambda match: "." * len(match[0]), text)
    found = [match.span() for match in UNWANTED.finditer(text)]
    found += [match.span("letter") for match in LETTER.finditer(text) if match["letter"] and not match["dead"]]
    for begin, end in sorted(found):
        line = text.count("\n", 0, begin) + 1
        yield f"line {line}: {text[begin:end]}"


@pytest.mark.parametrize("file", list(files()), ids=name_of)
def test_words_are_plain(file: Path) -> None:
    assert list(unwanted(html.unescape(file.read_text()))) == []


@pytest.mark.parametrize(
    "text",
    ["It was told.", "_Lot", "made_anew", "SHELF = 1", "a letter", "the_letters", "letter_of", "undead\n# x letters",
     "relinquishing", "ASKER", "surrendered"],
)  # fmt: skip
def test_an_unwanted_word_is_found_in_texts_and_names(text: str) -> None:
    assert list(unwanted(text))


@pytest.mark.parametrize(
    "text",
    ["a lottery", "untold", "amend", "a dead letter", "dead_letters", "DeadLetter", "dead\n    # letters",
     "DEAD_LETTER", "hubline-letter-error", "deadLetters", "dead-letter", "newsletter"],
)  # fmt: skip
def test_other_words_are_not(text: str) -> None:
    assert not list(unwanted(text))
