"""``python -m benchmarks.compare COMMIT [NAME ...]``: benchmarks of another commit and of this one, in turns.

The machine's speed changes within minutes. Measured in turns, in one run, both commits get the same share of it. Both
run with the packages that are installed now; the other commit's code comes from a worktree, which is removed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from rich.console import Console
from rich.table import Table

ROOT: Final = Path(__file__).parent.parent
WORSE: Final = 0.95
"""A smaller part of the other commit's ratio is marked: less than that is chance."""

Key = tuple[str, int]
"""A benchmark's name, and which of its peers: the first, the second ... The words for a peer may have changed."""

Ratios = Mapping[Key, Sequence[float]]
"""Of each round."""


@dataclass(frozen=True, slots=True)
class Change:
    """A benchmark's ratio to its peer, in both commits: medians."""

    key: Key
    before: float
    now: float

    @property
    def factor(self) -> float:
        return self.now / self.before


def changes(before: Ratios, now: Ratios) -> list[Change]:
    """What both commits have, in the order of this one's."""
    return [Change(key, median(before[key]), median(ratios)) for key, ratios in now.items() if key in before]


def measured(folder: Path, name: str) -> Iterator[tuple[Key, float]]:
    """One run of a benchmark of the code in a folder."""
    environment = {**os.environ, "PYTHONPATH": f"{folder / 'src'}{os.pathsep}{folder}"}
    command = [sys.executable, "-m", "benchmarks", "--json", name]
    run = subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    peers: Counter[str] = Counter()
    for line in run.stdout.splitlines():
        result = json.loads(line)
        peers[result["name"]] += 1
        yield (result["name"], peers[result["name"]]), result["ratio"]
    if run.returncode:
        print(f"{name} failed in {folder}, exit code {run.returncode}", file=sys.stderr)


@contextmanager
def worktree(commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "other"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", folder, commit], cwd=ROOT, check=True)
        try:
            yield folder
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", folder], cwd=ROOT, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("commit", help="the commit to compare with")
    parser.add_argument("names", nargs="*", metavar="NAME", help="the benchmarks to run; all, if none is named")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each commit (default: 3)")
    options = parser.parse_intermixed_args()
    listing = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--list"], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True
    )
    ratios: dict[bool, dict[Key, list[float]]] = {True: defaultdict(list), False: defaultdict(list)}
    with worktree(options.commit) as other, Console(stderr=True).status("") as status:
        for number in range(options.rounds):
            for name in options.names or listing.stdout.split():
                for is_now in (number % 2 == 0, number % 2 == 1):  # the second finds a warmer machine
                    status.update(f"round {number + 1}: {name}, {'this commit' if is_now else options.commit}")
                    for key, ratio in measured(ROOT if is_now else other, name):
                        ratios[is_now][key].append(ratio)
    table = Table("benchmark", "of its peers", options.commit, "now", "now / before")
    for change in changes(ratios[False], ratios[True]):
        mark = " (worse)" if change.factor < WORSE else ""
        name, peer = change.key
        table.add_row(name, f"{peer}.", f"{change.before:.2f}", f"{change.now:.2f}", f"{change.factor:.2f}{mark}")
    Console(width=120).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
