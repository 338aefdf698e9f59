"""``python -m hubline.testing.simulation.__main__``: many seeds, or one again with its trace."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter

from hubline.testing.simulation.own_seeds import run_seed
from hubline.testing.simulation.scenario import Scenario
from hubline.testing.simulation.simulator import Report

PROGRESS_SECONDS = 5.0
"""How often a long run says where it is."""


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    logger = logging.getLogger("hubline")
    level = logger.level
    logger.setLevel(logging.INFO if options.trace else logging.CRITICAL)
    try:
        return _simulate(options)
    finally:
        logger.setLevel(level)  # a caller in the same process keeps its own level


def _simulate(options: argparse.Namespace) -> int:
    seeds = [options.seed] if options.seed is not None else range(options.first, options.first + options.seeds)
    reports: list[Report] = []
    said_at, started_at = time.monotonic(), time.process_time()
    for seed in seeds:
        report = run_seed(seed, into_sink=options.sink)
        reports.append(report)
        if options.trace:
            sys.stdout.write("\n".join([str(Scenario.draw(seed, into_sink=options.sink)), *report.trace, ""]))
        if report.violations:
            _print_failure(report, into_sink=options.sink)
            return 1
        report.trace.clear()
        if time.monotonic() - said_at > PROGRESS_SECONDS:
            said_at = time.monotonic()
            sys.stderr.write(f"  {len(reports)} of {len(seeds)} seeds\n")
    _print_summary(reports, time.process_time() - started_at)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hubline.testing.simulation.__main__",
        description="Runs the production processor in virtual time with faults drawn from seeds.",
        epilog="examples: --seeds 1000     --first 5000 --seeds 200     --seed 4711 --trace",
    )
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds (1000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--seed", type=int, help="this one seed alone")
    parser.add_argument("--sink", action="store_true", help="write into a SQL sink, exactly once")
    parser.add_argument("--trace", action="store_true", help="print everything that happened")
    return parser


def _print_failure(report: Report, *, into_sink: bool) -> None:
    lines = [f"seed {report.seed} FAILED", *(f"  {violation}" for violation in report.violations)]
    lines += ["the last things that happened:", *(f"  {line}" for line in report.trace[-25:])]
    flags = " --sink" if into_sink else ""
    lines.append(
        f"run it again alone: python -m hubline.testing.simulation.__main__ --seed {report.seed} --trace{flags}"
    )
    sys.stdout.write("\n".join(lines) + "\n")


def _print_summary(reports: list[Report], seconds: float) -> None:
    faults = sum((report.faults for report in reports), Counter[str]())
    events = sum(report.events_count for report in reports)
    repeats = sum(report.repeats_count for report in reports)
    lines = [
        f"{len(reports)} seeds, no violation: {len(reports) / seconds:.1f} seeds/s of processor time",
        f"{events:,} events handled, {repeats:,} of them more than once; {faults.total():,} faults injected:",
        *(f"  {kind:18} {count:>9,}" for kind, count in sorted(faults.items())),
    ]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
