"""The simulator finds no fault in the code as it is, and the same seed gives the same run."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import pytest

from hubline.testing import memory_hub
from hubline.testing.simulation.__main__ import main
from hubline.testing.simulation.own_seeds import run_seed
from hubline.testing.simulation.scenario import Scenario

SEEDS_COUNT = 120
"""Enough to meet every kind of fault many times, and to stay under half a minute. `make simulate` runs more."""

SINK_SEEDS_COUNT = 30
"""With a database in each, which takes twice as long."""

CHUNK = 15


@pytest.mark.parametrize("first", range(0, SEEDS_COUNT, CHUNK))
def test_no_seed_breaks_a_law(first: int) -> None:
    for seed in range(first, first + CHUNK):
        report = run_seed(seed)
        assert report.violations == [], (
            f"seed {seed}: python -m hubline.testing.simulation.__main__ --seed {seed} --trace"
        )


@pytest.mark.parametrize("first", range(0, SINK_SEEDS_COUNT, CHUNK))
def test_no_seed_writes_an_event_twice_or_never(first: int) -> None:
    for seed in range(first, first + CHUNK):
        report = run_seed(seed, into_sink=True)
        assert report.violations == [], (
            f"seed {seed}: python -m hubline.testing.simulation.__main__ --sink --seed {seed} --trace"
        )


def test_the_seeds_inject_every_kind_of_fault() -> None:
    kinds = {kind for seed in range(SEEDS_COUNT) for _, kind in Scenario.draw(seed).faults}

    assert kinds == {
        "crash",
        "crash_restart",
        "grow",
        "join",
        "operator_reset",
        "pause",
        "stop",
        "store_clock_jump",
        "store_outage",
    }


def test_the_same_seed_gives_the_same_run_byte_for_byte() -> None:
    """In another process too, whose hashes are salted differently."""
    script = "from hubline.testing.simulation.own_seeds import run_seed; print(run_seed(7).digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": salt},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for salt in ("1", "2")
    }

    assert digests == {run_seed(7).digest}


def test_a_seed_does_not_depend_on_the_seeds_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a bound of memory counts the bytes of offsets, which name the hub: the first one of a process, or a
    later one."""
    digests = set()
    for number in (0, 12_345):
        monkeypatch.setattr(memory_hub, "_incarnations", itertools.count(number))
        digests.add(run_seed(74, into_sink=True).digest)

    assert len(digests) == 1


def test_the_command_tells_seeds_per_second_and_faults(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3"]) == 0

    out = capsys.readouterr().out
    assert "3 seeds, no violation" in out
    assert "seeds/s" in out
    assert "faults injected" in out


def test_one_seed_replays_alone_with_its_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "7", "--trace"]) == 0

    assert "claimed" in capsys.readouterr().out
