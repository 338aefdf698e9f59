"""Pages do what they say: each is played in an empty folder, and its outputs are compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from tests.docs.player import ROOT, PageError, SparkShell, are_as_shown, are_in_any_order, name_of, needs_spark, play
from tests.support.npm import NodeMissing, event_hubs_sdk

PAGES = [
    ROOT / "README.md",
    ROOT / "docs/install.md",
    ROOT / "docs/quickstart.md",
    *sorted((ROOT / "docs/tutorials").glob("*.md")),
    *sorted(page for page in (ROOT / "docs/how-to").rglob("*.md") if page.name != "test-your-code.md"),
]
"""All but the page whose tests share the Spark session of tests/pipeline/test_run_stage.py."""


def parameters() -> Iterator[ParameterSet]:
    for page in PAGES:
        group = "spark-shell" if needs_spark(page) else "azurite" if "=container -->" in page.read_text() else page.stem
        yield pytest.param(page, id=name_of(page), marks=pytest.mark.xdist_group(group))


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("page", list(parameters()))
def test_the_page_does_what_it_says(
    page: Path, tmp_path: Path, spark_shell: Callable[[], SparkShell], request: pytest.FixtureRequest
) -> None:
    start = {
        "postgresql": lambda: request.getfixturevalue("postgres_database").reveal(),
        "container": lambda: request.getfixturevalue("container"),
        "event-hubs-for-node": lambda: str(event_hubs_sdk()),
    }
    try:
        play(page, tmp_path / "page", start, spark_shell)
    except NodeMissing as missing:
        pytest.skip(str(missing))


def played(folder: Path, text: str) -> None:
    page = folder / "page.md"
    page.write_text(text)

    def no_spark() -> SparkShell:
        raise AssertionError

    play(page, folder / "played", {}, no_spark)


def test_a_page_is_played_as_a_reader_would(tmp_path: Path) -> None:
    played(
        tmp_path,
        """
```text title="names/first.txt"
one
two
```

```console title="Second terminal"
$ while true; do date +%H:%M:%S; sleep 0.1; done
10:00:00
...
```

```console
$ cd names && export COUNT=2
$ wc -l \\
    < first.txt
2
$ sh -c 'trap "echo ended; exit" INT; echo b; echo a; sleep 60 & wait'
a
b
^C
ended
$ echo "$COUNT lines in $(pwd)"
2 lines in /home/you/telemetry/names
```

<!-- not played: it is not so -->

```console
$ false
```
""",
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```console\n$ echo 41\n42\n```\n", "page.md:3: other output than shown"),
        ("```console\n$ echo 41\n```\n", "page.md:3: other output than shown"),
        ("```console\n$ false\n```\n", "page.md:2: exit code 1 of `false`"),
        ("```python\nx = 1\n```\n", "page.md:2: a Python block needs a title"),
    ],
)
def test_a_difference_fails_with_its_line(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(PageError, match=said):
        played(tmp_path, text)


@pytest.mark.parametrize(
    ("shown", "printed", "is_same"),
    [
        ("at 10:00:00, after 3 s", "at 23:59:59.123, after 12.5 s", True),
        ("2 events, 5/s", "2 events, 1,200/s", True),
        ("996 rows", "995 rows", False),
        ("a  b", "a b", True),
        ("first\n...\nlast", "first\nlast", True),
        ("first\n...\nlast", "first\nmore\nmore\nlast", True),
        ("first\n...\nlast", "last\nfirst", False),
        ("id=...", "id=12", True),
        ("owner=laptop-42-1a2b3c4d", "owner=vm-7-00aa00aa", True),
        ("port localhost:5672", "port localhost:40001", True),
    ],
)
def test_lines_are_compared_by_a_plain_rule(shown: str, printed: str, is_same: bool) -> None:
    assert are_as_shown(shown.splitlines(), printed.splitlines()) is is_same


def test_lines_of_an_interrupted_command_have_no_order() -> None:
    assert are_in_any_order(["a", "b"], ["b", "a"])
    assert are_in_any_order(["a", "..."], ["b", "a"])
    assert not are_in_any_order(["a"], ["b", "a"])
    assert not are_in_any_order(["a", "a"], ["a"])
