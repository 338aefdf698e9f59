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
"""The same, for words that tests and benchmarks still have. A space stands also for the end of a line."""

FURTHER_FOLDERS = ("src", "examples", "docs", "README", "CHANGELOG", "CONTRIBUTING", "SECURITY")
"""Where `FURTHER_WORDS` count."""

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


PLACES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "Makefile",
          "src/hubline", "docs", "examples", "tests", "benchmarks")  # fmt: skip


def files_of(place: Path) -> list[Path]:
    found = (file for file in place.rglob("*") if file.suffix in SUFFIXES) if place.is_dir() else [place]
    return sorted(file for file in found if file != ITSELF)


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


@pytest.mark.parametrize("place", PLACES)
def test_words_are_plain(place: str) -> None:
    words = ALL_UNWANTED if place.startswith(FURTHER_FOLDERS) else UNWANTED
    files = files_of(ROOT / place)
    assert files
    found = {name_of(file): list(unwanted(html.unescape(file.read_text()), words)) for file in files}
    assert {name: words for name, words in found.items() if words} == {}


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
