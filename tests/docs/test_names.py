"""What the documentation names is in the code: Python names, commands with their flags, variables, files and links."""

from __future__ import annotations

import functools
import importlib
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from hubline.cli.app import app

ROOT = Path(__file__).parents[2]
# A decision is kept as it was made, with the names of its time.
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted((ROOT / "examples").glob("**/README.md")),
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "adr"),
]
ALL_PAGES = [*PAGES, *sorted((ROOT / "docs/adr").glob("*.md"))]
READERS_OWN = {"app.py", "telemetry.py", "telemetry.toml", "azure.toml"}
"""Files that a reader of a page makes, besides those that it shows."""

PYTHON_NAME = re.compile(r"\bhubline(?:\.(?!md\b)[A-Za-z_]\w*)+")
VARIABLE = re.compile(r"\bHUBLINE_[A-Z_]+")
FILE = re.compile(r"`((?:[a-z_]+/)*[a-z_]+\.(?:py|sql|toml|md))`")
TITLE = re.compile(r'^```\w+ title="([^"]+)"$', re.MULTILINE)
CONSOLE = re.compile(r"^```console(?: .*)?\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)]*))?\)")
IN_TABLE = re.compile(r"`([a-z_]+)`")


@functools.cache
def source() -> str:
    files = (*(ROOT / "src").rglob("*.py"), *(ROOT / "tests/support").rglob("*.py"))
    return "\n".join(file.read_text() for file in files)


def is_python(dotted: str) -> bool:
    """Whether it is a module, or an attribute of one; of a class, a field will do."""
    parts = dotted.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for name in parts[count:]:
            if name in getattr(found, "__annotations__", {}):
                return True
            if not hasattr(found, name):
                return False
            found = getattr(found, name)
        return True
    return False


def missing_python_names(page: Path) -> list[str]:
    return [name for name in sorted(set(PYTHON_NAME.findall(page.read_text()))) if not is_python(name)]


def missing_files(page: Path) -> list[str]:
    text = page.read_text()
    # It may be in a folder, or beside a file, that the page names as well: "`coordination/`: `dispatcher.py` plans".
    package = ROOT / "src/hubline"
    folders = [ROOT, package, page.parent, *(package / named for named in re.findall(r"`((?:[a-z_]+/)+)[^`]*`", text))]
    return [
        name
        for name in sorted(set(FILE.findall(text)) - READERS_OWN - set(TITLE.findall(text)))
        if not any((folder / name).exists() for folder in folders)
    ]


def variables_of_options(command: Any) -> Iterator[str]:
    for child in getattr(command, "commands", {}).values():
        yield from variables_of_options(child)
    yield from (each.envvar for each in command.params if each.envvar)


@functools.cache
def all_commands() -> Any:
    return typer.main.get_command(app)


def variables_that_nothing_reads(page: Path) -> list[str]:
    named = set(VARIABLE.findall(page.read_text())) - set(variables_of_options(all_commands()))
    return [name for name in sorted(named) if name not in source()]


def hubline_commands(text: str) -> Iterator[list[str]]:
    """The words of each call of hubline in console blocks, up to the end of its part of a pipe."""
    for block in CONSOLE.findall(text):
        for line in re.findall(r"^\$ (.+)$", block.replace("\\\n", ""), re.MULTILINE):
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|;&")
            lexer.whitespace_split = True
            words: list[str] = []
            for word in [*lexer, ";"]:
                if set(word) <= set("|;&"):
                    if words[:1] == ["hubline"]:
                        yield words[1:]
                    words = []
                else:
                    words.append(word)


def missing_commands_and_flags(page: Path) -> list[str]:
    missing = []
    for words in hubline_commands(page.read_text()):
        command = all_commands()
        for word in words:
            if hasattr(command, "commands") and not word.startswith("--"):
                if word not in command.commands:
                    missing.append(" ".join(words))
                    break
                command = command.commands[word]
        flags = {flag for parameter in command.params for flag in parameter.opts}
        missing += [word for word in words if word.startswith("--") and word not in flags]
    return missing


def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def broken_links(page: Path) -> list[str]:
    broken = []
    for path, anchor in LINK.findall(page.read_text()):
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(f"{path}#{anchor}" if anchor else path)
    return broken


@pytest.mark.parametrize(
    ("pages", "wrong_in"),
    [
        (PAGES, missing_python_names),
        (PAGES, missing_files),
        (PAGES, variables_that_nothing_reads),
        (PAGES, missing_commands_and_flags),
        (ALL_PAGES, broken_links),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_pages_name_what_is_there(pages: list[Path], wrong_in: Callable[[Path], list[str]]) -> None:
    assert len(pages) > 50
    found = {str(page.relative_to(ROOT)): wrong_in(page) for page in pages}
    assert {page: wrong for page, wrong in found.items() if wrong} == {}


def rows_after(page: str, title: str) -> list[str]:
    """The names in the first column of the table that comes after the title."""
    rows: list[str] = []
    for line in (ROOT / page).read_text().partition(title)[2].splitlines():
        if line.startswith("| `"):
            rows += IN_TABLE.findall(line.split("|")[1])
        elif rows:
            break
    return rows


def test_log_events_of_a_processor_are_those_in_the_table() -> None:
    named = rows_after("docs/reference/processor.md", "## Log events\n")
    files = [
        file
        for room in ("amqp", "processor", "coordination", "hubs")
        for file in (ROOT / "src/hubline" / room).rglob("*.py")
    ]
    texts = [file.read_text() for file in (*files, ROOT / "src/hubline/credentials/entra_tokens.py")]
    logged = {name for text in texts for name in re.findall(r'\blog\.\w+\(\s*"([a-z_]+)[ "]', text)}
    assert len(named) > 10
    assert set(named) == logged
