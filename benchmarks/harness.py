"""Named benchmarks, and how they are chosen, run and shown.

A benchmark is a function that measures and gives its results. Each result names the peer or the limit that was
measured in the same run: the ratio to it says more than the figure, which depends on the machine.

    @benchmark("local-append")
    def local_append() -> Iterator[Result]:
        yield Result("local-append", 512_000, "events/s", ratio=0.4, against="one Arrow IPC file, synced at the end")
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from rich.console import Console
from rich.table import Table

UNKNOWN_NAME_EXIT_CODE: Final = 2


@dataclass(frozen=True, slots=True)
class Result:
    """A figure: ``value`` in ``unit``, and how many times that of ``against`` it is."""

    name: str
    value: float
    unit: str
    ratio: float
    against: str


Benchmark = Callable[[], Iterable[Result]]

_benchmarks: dict[str, Benchmark] = {}


def benchmark(name: str) -> Callable[[Benchmark], Benchmark]:
    """Registers a benchmark under a name that people type."""

    def register(function: Benchmark) -> Benchmark:
        if name in _benchmarks:
            raise ValueError(f"there are two benchmarks named {name}")
        _benchmarks[name] = function
        return function

    return register


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmarks that are named, or all; returns the exit code."""
    options = _parser().parse_args(arguments)
    if options.list:
        print(*sorted(_benchmarks), sep="\n")
        return 0
    unknown = [name for name in options.names if name not in _benchmarks]
    if unknown:
        known = ", ".join(sorted(_benchmarks))
        print(f"no benchmark is named {', '.join(unknown)}; there are: {known}", file=sys.stderr)
        return UNKNOWN_NAME_EXIT_CODE
    names = options.names or sorted(_benchmarks)
    if options.json:
        _print_json(names)
    else:
        _print_table(names)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Measure hubline, beside a peer or a limit."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="the benchmarks to run; all, if none is named")
    parser.add_argument("--json", action="store_true", help="one JSON object a line: name, value, unit, ratio, against")
    parser.add_argument("--list", action="store_true", help="list the names and run nothing")
    return parser


def _print_json(names: Iterable[str]) -> None:
    for name in names:
        for result in _benchmarks[name]():
            print(json.dumps(asdict(result)), flush=True)


def _print_table(names: Sequence[str]) -> None:
    table = Table("benchmark", "figure", "unit", "ratio", "against")
    for column in (1, 3):
        table.columns[column].justify = "right"
    with Console(stderr=True).status("") as status:
        for name in names:
            status.update(f"measuring {name} ...")
            for result in _benchmarks[name]():
                figure = f"{result.value:,.0f}" if result.value >= 100 else f"{result.value:,.2f}"
                table.add_row(result.name, figure, result.unit, f"{result.ratio:.2f}", result.against)
    Console().print(table)
