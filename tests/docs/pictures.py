"""``make pictures``: the pictures of the docs, each from a real run."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from tests.docs.player import ROOT, Player, SparkShell

IMAGES = ROOT / "docs/images"
WIDTH = 100
# A picture asks no other server for its font.
FORMAT = re.sub(r"@font-face \{\{.*?\}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL).replace("Fira Code", "monospace")


def draw(name: str, title: str, lines: Sequence[str]) -> None:
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    for line in lines:
        console.print(Text(line, style="bold" if line.startswith("$ ") else ""), no_wrap=True, overflow="ellipsis")
    console.save_svg(str(IMAGES / f"{name}.svg"), title=title, code_format=FORMAT, unique_id=name)


def demo() -> None:
    ran = subprocess.run(
        [sys.executable, "examples/telemetry/demo.py"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    story, _, _ = ran.stdout.partition("\nWhat to try next")
    draw("demo", "make demo", ["$ make demo", *story.splitlines()])


def quickstart() -> None:
    """From the first run of the handler to its row."""

    def no_spark() -> SparkShell:
        raise AssertionError

    with tempfile.TemporaryDirectory() as folder:
        (played := Path(folder) / "played").mkdir()
        player = Player(ROOT / "docs/quickstart.md", played, Path(folder), spark=no_spark)
        player.play()
    lines = [line for command, printed in player.outputs for line in (f"$ {command.text}", *printed)]
    first, last = lines.index("$ python app.py"), lines.index("$ hubline dlq show 1/3 --sink sqlite:///readings.db")
    draw("quickstart", "Quickstart", lines[first:last])


if __name__ == "__main__":
    quickstart()
    demo()
