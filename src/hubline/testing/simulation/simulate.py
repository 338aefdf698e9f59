"""``hubline.testing.simulate``: a program of one's own, in virtual time, with faults drawn from seeds."""

from __future__ import annotations

import inspect
import linecache
import logging
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from hubline.addresses.option_checks import checked
from hubline.addresses.store_address import SqliteAddress
from hubline.addresses.values import parse_starting_position
from hubline.errors import ConfigError
from hubline.model.events import NewEvent
from hubline.processor import Processor
from hubline.testing.simulation.final_checks import Objection, liveness
from hubline.testing.simulation.instance import Instance, SimulatedWorld
from hubline.testing.simulation.scenario import FAULTS, Fault, Scenario
from hubline.testing.simulation.simulator import Program, Report, Simulation, without_garbage_collection
from hubline.testing.simulation.virtual_loop import require_no_loop
from hubline.tracebacks import format_failure, frames_of, text_of, type_of

_EARLIEST: Final = parse_starting_position("earliest")
_MISHAPS_SHOWN: Final = 10
_MISHAP: Final = re.compile(
    r"^\S+ (fault |log: error \S+ (?!StoreUnavailable)|\S+ (is killed|could not start|\w+ failed))"
)
_LINE_END: Final = "\n"
_WEATHER: Final = {
    "latency": "slow calls",
    "fail_before": "failed calls",
    "fail_after": "lost answers",
    "stale_list": "stale lists",
    "store_down": "calls in an outage",
    "hub_unavailable": "failed calls of the hub",
    "sink_fail_before": "failed commits",
    "sink_fail_after": "lost answers of the sink",
    "sink_down": "calls of the sink in an outage",
}
"""What is counted of the network, in plain words. Other faults are called by their kind."""


class SimulationFailed(AssertionError):
    """A seed found a bug. Its text has the line of the user's code, the faults and the call that replays the seed.

    Attributes:
        seed: The seed.
        report: Its run, with the whole trace. The error of the user's code, if there was one, is also `__cause__`.
    """

    def __init__(self, report: Report, replay: str) -> None:
        self.seed = report.seed
        self.report = report
        super().__init__(_text(report, replay))


@checked
def simulate(
    seeds: Iterable[int] = range(100),
    *,
    build: Callable[[Instance], Processor],
    after: Callable[..., object] | None = None,
    event: Callable[[int], NewEvent] = str,
    faults: Sequence[Fault] = FAULTS,
    trace: bool = False,
) -> list[Report]:
    """Runs a program of your own in virtual time, once for each seed, with crashes and whatever else goes wrong.

    A seed decides how many partitions and instances there are, which faults strike and when, what the network does,
    and how fast events come. The same seed gives the same run. These laws always hold: every event is handled, is a
    dead letter, or was checkpointed by its handler; no checkpoint passes an event that no handler was given; a sink has
    every event exactly once; an owner handles nothing after its lease has expired, and moves no checkpoint once the
    partition is another's.

    Args:
        seeds: The seeds to run.
        build: Makes the processor of an instance that starts, of `instance.hub` and `instance.store`. Called at each
            start, also after a crash: what is in variables is gone by then. What survives is in `instance.world`.
        after: Your law. Called at the end of each seed with all events that were published, in the order of each
            partition, and the world; or with the events alone. What it raises fails the seed. By default there is none.
        event: Makes an event of its number, counted from 0. By default its body is the number.
        faults: The kinds of faults to draw from. By default all, which are `hubline.testing.FAULTS`.
        trace: Print everything that happens in each seed.

    Returns:
        What came of each seed.

    Raises:
        SimulationFailed: A law was broken in a seed. The seeds after it are not run.
        ConfigError: An argument is wrong, or `build` made what cannot be simulated.

    Example:
        hubline.testing.simulate(seeds=range(200), build=build, after=check)
    """
    require_no_loop("simulate")
    if not isinstance(seeds, Iterable):
        raise ConfigError(
            f"seeds must be whole numbers, not {seeds!r}. Write range({seeds!r}), or [{seeds!r}] for a single one."
        )
    program = _UsersProgram(build, after, event)
    reports = []
    for seed in seeds:
        report = _run(seed, program, faults)
        if trace:
            sys.stdout.write("\n".join([*report.trace, ""]))
        if report.violations:
            if isinstance(report.error, ConfigError):
                raise report.error
            raise SimulationFailed(report, _replay(seed, build, after, event, faults)) from report.error
        reports.append(report)
    return reports


@without_garbage_collection()
def _run(seed: int, program: Program, faults: Sequence[Fault]) -> Report:
    scenario = Scenario.draw(seed)
    chosen = tuple((second, kind) for second, kind in scenario.faults if kind in faults)
    simulation = Simulation(replace(scenario, faults=chosen), program)
    with _alone(seed, simulation.ledger.note):
        return simulation.run()


class _UsersProgram(Program):
    def __init__(
        self,
        build: Callable[[Instance], Processor],
        after: Callable[..., object] | None,
        event: Callable[[int], NewEvent],
    ) -> None:
        self._build = build
        self._after = after
        self._event = event
        self._after_takes_world = after is not None and _takes_two(after)

    def build(self, instance: Instance, simulation: Simulation) -> Processor:
        processor = self._build(instance)
        _require_fit(processor, instance)
        simulation.ledger.may_checkpoint = True
        return processor

    def event(self, number: int, rng: random.Random) -> NewEvent:  # noqa: ARG002
        return self._event(number)

    def objections(self, simulation: Simulation) -> Iterator[Objection]:
        return liveness(simulation)

    def after(self, simulation: Simulation) -> None:
        if self._after is not None:
            world: tuple[SimulatedWorld, ...] = (simulation.shared,) if self._after_takes_world else ()
            self._after(simulation.hub.events(), *world)


def _require_fit(processor: object, instance: Instance) -> None:
    if not isinstance(processor, Processor):
        raise ConfigError(f"build returned {type(processor).__name__}. Return the hubline.Processor that it makes.")
    if processor._hub is not instance.hub or processor._store is not instance.store:  # noqa: SLF001
        raise ConfigError(
            "the processor has a hub or a store that is not simulated. Write hubline.Processor(instance.hub, "
            "instance.store, ...), without a lock in load_balancing."
        )
    start = processor._start_positions  # noqa: SLF001
    if start != _EARLIEST:
        raise ConfigError("a simulated processor handles every event. Write starting_position='earliest'.")
    if any(handler.takes_tx for handler in processor._registry.handlers.values()):  # noqa: SLF001
        raise ConfigError("a handler that takes tx cannot be simulated. Return the rows, and let the sink write them.")
    sink = processor._sink  # noqa: SLF001
    if sink is not None and not isinstance(sink.address, SqliteAddress):
        raise ConfigError(f"{sink} cannot be simulated. Let build use a sink on SQLite, such as sqlite:///results.db.")


@contextmanager
def _alone(seed: int, note: Callable[[str], None]) -> Iterator[None]:
    """Within, a handler that uses the module `random` does the same for the same seed; and hubline's log is noted."""
    state, logger, noting = random.getstate(), logging.getLogger("hubline"), _Noting(note)
    level, propagates = logger.level, logger.propagate
    random.seed(seed)
    logger.setLevel(logging.WARNING)
    logger.propagate = False
    logger.addHandler(noting)
    try:
        yield
    finally:
        random.setstate(state)
        logger.setLevel(level)
        logger.propagate = propagates
        logger.removeHandler(noting)


class _Noting(logging.Handler):
    def __init__(self, note: Callable[[str], None]) -> None:
        super().__init__()
        self._note = note

    def emit(self, record: logging.LogRecord) -> None:
        self._note(f"log: {record.getMessage().partition(_LINE_END)[0]}")


def _takes_two(function: Callable[..., object]) -> bool:
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        return False
    return True


# What a failure says


def _text(report: Report, replay: str) -> str:
    found = list(report.violations)
    if report.error is not None:  # the first violation is the same
        found = [*_users_error(report.error), *found[1:]]
    elif report.last_failure is not None:
        found += ["", "the last error of a handler:", *_users_error(report.last_failure)]
    lines = [
        *found,
        "",
        f"seed {report.seed} failed, with {report.events_count} events, and with {_faults(report)}",
        "what went wrong last, each with its second:",
        *(f"  {line}" for line in _mishaps(report)),
        "",
        f"replay it alone: {replay}",
    ]
    return "\n".join(lines)


def _users_error(error: Exception) -> list[str]:
    """The line of the user's code where it came from, as Python shows it, then the error."""
    frames = [frame for frame in frames_of(error) if frame.is_users]
    if not frames:
        return format_failure(error).splitlines()
    source = linecache.getline(frames[-1].file, frames[-1].line).strip()
    return [str(frames[-1]), f"    {source}", f"{type_of(error)}: {text_of(error)}".rstrip(": ")]


def _mishaps(report: Report) -> list[str]:
    """The last lines of the trace that tell of faults, and of what handlers raised."""
    return [line for line in report.trace if _MISHAP.search(line)][-_MISHAPS_SHOWN:]


def _faults(report: Report) -> str:
    counts = sorted(report.faults.items(), key=lambda item: (item[0] in _WEATHER, item[0]))
    return ", ".join(f"{count} {_WEATHER.get(kind, kind)}" for kind, count in counts) or "none"


def _replay(
    seed: int,
    build: Callable[[Instance], Processor],
    after: Callable[..., object] | None,
    event: Callable[[int], NewEvent],
    faults: Sequence[Fault],
) -> str:
    """The call that runs one seed again, as a person would write it."""
    arguments = [f"seeds=[{seed}]", f"build={_name(build)}"]
    if after is not None:
        arguments.append(f"after={_name(after)}")
    if event is not str:
        arguments.append(f"event={_name(event)}")
    if faults is not FAULTS:
        arguments.append(f"faults={list(faults)}")
    return f"simulate({', '.join(arguments)}, trace=True)"


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", function))
