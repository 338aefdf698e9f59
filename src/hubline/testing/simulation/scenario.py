"""What a seed stands for: partitions, members, options, and a schedule of faults."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Final, Literal, get_args

from hubline.coordination.strategies import Balanced, Fixed, Greedy, Strategy
from hubline.processor import CheckpointPolicy, LeaseOptions, ProcessorOptions, RetryPolicy
from hubline.testing.simulation.faults import Weather

Fault = Literal["join", "stop", "grow", "crash", "crash_restart", "pause", "store_outage", "store_clock_jump"]
FAULTS: Final[tuple[Fault, ...]] = get_args(Fault)
"""What happens to a group: the first three in all seeds, the others only in those that are not calm."""
_HARMLESS_COUNT = 3
OPERATOR_RESET = "operator_reset"
"""An operator moves a checkpoint back, or removes it. Not a fault: events are wanted again."""

FAULTY_SECONDS = 120.0
"""How long faults are injected: several leases, so that they meet each other's consequences."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is drawn from a seed. Faults are (second, kind) pairs; a calm scenario has none that harm."""

    seed: int
    partitions_count: int
    members_count: int
    strategy: Strategy
    options: ProcessorOptions
    is_calm: bool
    handler_timeout_seconds: float
    handler_failure: float
    events_per_second: float
    weather: Weather
    faults: tuple[tuple[float, str], ...]
    into_sink: bool = False

    @classmethod
    def draw(cls, seed: int, *, into_sink: bool = False) -> Scenario:
        drawn = cls._drawn(seed)
        if not into_sink:
            return drawn
        # What fails is found by the database. However much it is, no partition is to stop for it.
        options = replace(
            drawn.options, max_consecutive_failures=10**9, max_failure_ratio=1.0, on_failure="dead_letter"
        )
        return replace(drawn, into_sink=True, handler_failure=0.0, options=options)

    @classmethod
    def _drawn(cls, seed: int) -> Scenario:
        rng = random.Random(f"scenario {seed}")
        is_calm = rng.random() < 0.2
        partitions_count = rng.randint(1, 10)
        members_count = rng.randint(1, 5)
        return cls(
            seed=seed,
            partitions_count=partitions_count,
            members_count=members_count,
            strategy=_draw_strategy(rng, partitions_count, members_count),
            options=_draw_options(rng, is_calm=is_calm),
            is_calm=is_calm,
            handler_timeout_seconds=rng.choice([0.0, 0.05, 1.0]),
            handler_failure=0.0 if is_calm else rng.choice([0.0, 0.02, 0.2]),
            events_per_second=rng.choice([1.0, 3.0, 10.0]),
            weather=Weather() if is_calm else _draw_weather(rng),
            faults=_draw_faults(rng, is_calm=is_calm),
        )


def _draw_strategy(rng: random.Random, partitions_count: int, members_count: int) -> Strategy:
    kind = rng.choice(["balanced", "greedy", "greedy", "fixed"])
    if kind == "fixed":
        return Fixed(max(1, -(-partitions_count // members_count)))
    return Balanced() if kind == "balanced" else Greedy()


def _draw_options(rng: random.Random, *, is_calm: bool) -> ProcessorOptions:
    lease_seconds = rng.choice([6.0, 12.0, 30.0])
    checkpoints = [
        CheckpointPolicy.every_batch(),
        CheckpointPolicy.every(events=20),
        CheckpointPolicy.every(seconds=3.0),
        CheckpointPolicy.on_renewal(),
    ]
    checkpoint = rng.choice(checkpoints)
    if checkpoint.events == 20:
        # By events alone, the last few would wait for more to come.
        checkpoint = replace(checkpoint, at_renewal=True)
    max_batch_size = rng.choice([1, 7, 50])
    # An event counts 420 bytes at least. One byte holds one event at a time: with larger batches, most of a seed's time
    # would go into that.
    least_bytes = 1 if max_batch_size == 1 else 3_000
    return ProcessorOptions(
        max_batch_size=max_batch_size,
        max_wait_seconds=rng.choice([0.0, 0.0, 0.5]),
        prefetch_bytes=rng.choice([least_bytes, 12_000, 1_000_000]),
        checkpoint_policy=checkpoint,
        lease=LeaseOptions(
            lease_seconds=lease_seconds,
            load_balancing_interval_seconds=lease_seconds / rng.choice([2, 3]),
            # Calm runs guarantee handovers without duplicates: the grace must outlast the slowest batch.
            handover_timeout_seconds=lease_seconds * (1.0 if is_calm else rng.choice([0.2, 1.0])),
        ),
        handler_retry=RetryPolicy(max_attempts=2, initial_backoff_seconds=0.2, max_backoff_seconds=1.0),
        reconnect_backoff=RetryPolicy(initial_backoff_seconds=0.5, max_backoff_seconds=5.0),
        slow_handler_seconds=20.0,
        hub_timeout_seconds=20.0,
        on_failure="stop",
    )


def _draw_weather(rng: random.Random) -> Weather:
    return Weather(
        latency_seconds=rng.choice([0.001, 0.02, 0.2]),
        spike=rng.choice([0.0, 0.01, 0.05]),
        spike_seconds=rng.choice([2.0, 15.0]),
        fail_before=rng.choice([0.0, 0.01, 0.1]),
        fail_after=rng.choice([0.0, 0.01, 0.1]),
        stale=rng.choice([0.0, 0.05, 0.3]),
    )


def _draw_faults(rng: random.Random, *, is_calm: bool) -> tuple[tuple[float, str], ...]:
    harmless, harmful = FAULTS[:_HARMLESS_COUNT], (*FAULTS[_HARMLESS_COUNT:], OPERATOR_RESET)
    kinds: tuple[str, ...] = harmless if is_calm else harmless + 2 * harmful
    count = rng.randint(0, 4) if is_calm else rng.randint(1, 12)
    return tuple(sorted((rng.uniform(1, FAULTY_SECONDS - 5), rng.choice(kinds)) for _ in range(count)))
