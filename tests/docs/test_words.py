"""Code and texts use plain words, the same as everybody else's in this field: none of hubline's former dialect."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
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

FURTHER_WORDS = {
    "as ever": "as usual",
    "comes? again|coming again": "is replayed, or is repeated",
    "embedded hubs?": "local hub",
    "even(s|ed|ing)? out": "balance",
    "everybody": "all, or the others",
    "for ever": "forever",
    "goes on|going on|went on": "continue",
    "hand-overs?": "handover",
    "in good order": "cleanly",
    "lapse[sd]": "expire",
    "leases? (that |has |have |had )?r[ua]ns? out": "expire",
    "living (consumer|instance|member|owner|processor)s?|the living": "active",
    "not heard of": "expired, or has not renewed",
    "now and then": "at times, or at intervals",
    "promises?": "guarantee",
    "repetitions?": "duplicate, or retry",
    "set(s|ting)? back": "move back (a checkpoint)",
    "shar(e|es|ed|ing) out": "divide, or rebalance",
    "spark's folders?|state folders?": "checkpoint folder",
    "surroundings": "environment",
    "tried again": "retry",
    "twins?": "the environment variable",
    "verbs?": "command",
}
"""The same, for words that are in the documentation and the tests still. A space stands also for the end of a line."""

FURTHER_FOLDERS = ("src", "examples")
"""Where `FURTHER_WORDS` count. Add "docs" here when its pages are without them."""

GAP = r'(?:\s|#|"\s*f?")+'
"""Between the words of a phrase: also the end of a line of comments, or of a string that continues on the next line."""


def pattern(words: Iterable[str]) -> re.Pattern[str]:
    return re.compile(rf"(?<![a-z])(?:{'|'.join(words)})(?![a-z])".replace(" ", GAP), re.IGNORECASE)


UNWANTED = pattern(WORDS)
ALL_UNWANTED = pattern({**WORDS, **FURTHER_WORDS})

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


def unwanted(text: str, words: re.Pattern[str] = ALL_UNWANTED) -> Iterator[str]:
    """Each unwanted word, with its line."""
    text = ALLOWED.sub(lambda match: "." * len(match[0]), text)
    found = [match.span() for match in words.finditer(text)]
    found += [match.span("letter") for match in LETTER.finditer(text) if match["letter"] and not match["dead"]]
    for begin, end in sorted(found):
        line = text.count("\n", 0, begin) + 1
        yield f"line {line}: {text[begin:end]}"


@pytest.mark.parametrize("file", list(files()), ids=name_of)
def test_words_are_plain(file: Path) -> None:
    words = ALL_UNWANTED if name_of(file).startswith(FURTHER_FOLDERS) else UNWANTED
    assert list(unwanted(html.unescape(file.read_text()), words)) == []


@pytest.mark.parametrize(
    "text",
    ["It was told.", "_Lot", "made_anew", "SHELF = 1", "a letter", "the_letters", "letter_of", "undead\n# x letters",
     "relinquishing", "ASKER", "surrendered", "a hand-over", "the lease ran out", "as\n    # ever",
     '"it is set "\n    f"back"', "Spark's folder"],
)  # fmt: skip
def test_an_unwanted_word_is_found_in_texts_and_names(text: str) -> None:
    assert list(unwanted(text))


@pytest.mark.parametrize(
    "text",
    ["a lottery", "untold", "amend", "a dead letter", "dead_letters", "DeadLetter", "dead\n    # letters",
     "DEAD_LETTER", "hubline-letter-error", "deadLetters", "dead-letter", "newsletter", "handover", "to hand over",
     "shared_out()", "try again", "links go on a connection", "was promised", "collapsed", "living_members"],
)  # fmt: skip
def test_other_words_are_not(text: str) -> None:
    assert not list(unwanted(text))
