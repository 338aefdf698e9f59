"""The reference pages say what is so: their commands run, their forms are read, their tables are complete."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hubline.addresses.hub_address import parse_hub, parse_transport
from hubline.addresses.store_address import parse_store
from hubline.addresses.values import parse_duration, parse_position, parse_size
from hubline.cli.exit_codes import ExitCode
from tests.cli.test_main import COMMANDS, TYPERS_OWN

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs/reference"
CLI_PAGE = (REFERENCE / "cli.md").read_text()
JSON_PAGE = (REFERENCE / "json.md").read_text()
ADDRESSES_PAGE = (REFERENCE / "addresses.md").read_text()


def section(page: str, title: str) -> str:
    return page.split(f"\n## {title}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize(
    ("title", "parse"),
    [
        ("Hubs", parse_hub),
        ("Transports", parse_transport),
        ("Stores", parse_store),
        ("Positions", parse_position),
        ("Durations", parse_duration),
        ("Sizes", parse_size),
    ],
)
def test_every_form_in_the_tables_is_read(title: str, parse: Callable[[str], object]) -> None:
    forms = re.findall(r"^\| `([^`]+)` \|", section(ADDRESSES_PAGE, title), re.MULTILINE)
    assert len(forms) >= 3
    for form in forms:
        parse(form)


def masked(output: str) -> list[str]:
    """The lines without what differs from run to run: numbers, times, and the width of tables."""
    lines = (re.sub(r"\d[\d.,:TZ-]*|─+", "0", line).split() for line in output.splitlines())
    return [" ".join(words) for words in lines if words]


def test_commands_on_the_page_run_and_print_what_it_shows(tmp_path: Path) -> None:
    block = CLI_PAGE.split("```console\n")[1].split("```")[0]
    commands = re.findall(r"^\$ (.+)$", block, re.MULTILINE)
    assert len(commands) == 10
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    script = "set -e\n" + "\n".join(commands)
    done = subprocess.run(
        ["sh", "-c", script],
        cwd=tmp_path,
        env={"PATH": path, "HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    shown = re.sub(r"^\$ .+\n", "", block, flags=re.MULTILINE)
    assert masked(shown) == masked(done.stdout.replace(str(tmp_path), "/home/me"))


def test_page_has_every_exit_code() -> None:
    codes = re.findall(r"^\| (\d+) \|", CLI_PAGE, re.MULTILINE)
    assert [int(code) for code in codes] == [code.value for code in ExitCode]


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_page_has_every_flag_of_the_verb(path: tuple[str, ...]) -> None:
    text = section(CLI_PAGE, path[0])
    assert " ".join(path) in text
    for parameter in COMMANDS[path].params:
        if parameter.name not in TYPERS_OWN:
            name = max(parameter.opts, key=len)
            assert (name if name.startswith("--") else name.upper()) in text


def json_keys() -> set[str]:
    """The keys that commands print as JSON: of dictionaries that are printed, or made by a function called ...data."""
    found: set[str] = set()
    for file in (ROOT / "src/hubline/cli").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            is_maker = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and "data" in node.name
            is_printed = isinstance(node, ast.Call) and ast.unparse(node.func) == "print_json"
            if is_maker or is_printed:
                dictionaries = [each for each in ast.walk(node) if isinstance(each, ast.Dict)]
                keys = [key for each in dictionaries for key in each.keys if isinstance(key, ast.Constant)]
                found |= {str(key.value) for key in keys}
    return found


def test_json_keys_have_one_style_and_are_on_their_page() -> None:
    keys = json_keys()
    assert len(keys) > 60
    assert [key for key in sorted(keys) if not re.fullmatch(r"[a-z]+([A-Z][a-z]+|64)*", key)] == []
    assert [key for key in sorted(keys) if f"`{key}`" not in JSON_PAGE] == []
