"""The options of a stage: their names, types, defaults and checks, once for decorators, planning and the TOML file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, TypeAlias, TypedDict, get_args

from hubline.addresses.choices import choice_of
from hubline.addresses.did_you_mean import nearest_or_all
from hubline.addresses.names import DEFAULT_GROUP, validate_group_name
from hubline.addresses.values import parse_duration, parse_position
from hubline.coordination.strategies import Balanced, Fixed, Greedy, load_balancing_text, parse_load_balancing
from hubline.errors import ConfigError
from hubline.model.duplicates import DropDuplicates
from hubline.model.positions import OnDataLoss, Position

LoadBalancing: TypeAlias = Balanced | Greedy | Fixed | Literal["all", "balanced", "greedy"] | str
"""How instances share the partitions: an object, or as text `all`, `balanced`, `greedy`, `fixed:N`, `fixed:N:LEASE`."""

CheckpointMode: TypeAlias = Literal["every_batch", "manual", "never"]
"""When a stage writes its checkpoints: after each batch; only you do (`hubline checkpoints set`); never."""

DuplicatePolicy: TypeAlias = Literal["auto", DropDuplicates]
"""How a table knows events that an earlier stage published twice, by their ids."""

OutputMode: TypeAlias = Literal["append", "update", "complete"]
"""Spark's output mode."""

DEFAULT_MAX_BATCH_SIZE: Final = 1_000_000
"""Some seconds of work: few enough for a stop to wait for, and for a batch that is cut short to be done again."""
DEFAULT_TRIGGER_INTERVAL_MS: Final = 200
"""An idle stage asks its hub five times a second, and not a hundred times; a busy one does not wait at all."""

# A batch of a day is not a stream any more; and Spark keeps triggers in milliseconds.
MAX_TRIGGER_INTERVAL_SECONDS: Final = 86_400.0
MAX_EVENTS: Final = 2**53


class StageOptions(TypedDict, total=False):
    """What every decorator of a pipeline takes. `Pipeline.stage` explains each; the reference has a table of them."""

    consumer_group: str
    load_balancing: LoadBalancing
    starting_position: str | Position
    max_batch_size: int
    trigger_interval: str
    checkpoint: CheckpointMode
    lookback: str | None
    on_data_loss: OnDataLoss
    dead_letters: str | None
    drop_duplicates: DuplicatePolicy
    event_ids: bool
    name: str | None


class FrameStageOptions(StageOptions, total=False):
    """What `Pipeline.stage` takes beside the options of every stage."""

    output_mode: OutputMode


@dataclass(frozen=True, slots=True)
class CheckedOptions:
    """The options of a stage as they are used. Durations are texts where Spark's source takes them as such."""

    consumer_group: str = DEFAULT_GROUP
    load_balancing: str = "greedy"
    starting_position: str = "earliest"
    max_batch_size: int = DEFAULT_MAX_BATCH_SIZE
    trigger_interval: int = DEFAULT_TRIGGER_INTERVAL_MS
    """In milliseconds."""
    checkpoint: CheckpointMode = "every_batch"
    lookback: str | None = None
    on_data_loss: OnDataLoss = "fail"
    dead_letters: str | None = None
    drop_duplicates: DuplicatePolicy = "auto"
    event_ids: bool = True
    name: str | None = None
    output_mode: OutputMode = "append"


CONFIG_KEYS: Final = tuple(name for name in StageOptions.__annotations__ if name not in ("event_ids", "name"))
"""The options that a table [stages.NAME] may change: those that depend on where a pipeline runs, not on its code."""

_OPTIONAL: Final = ("lookback", "dead_letters", "name")


def check_option(name: str, value: object) -> Any:
    """The option as `CheckedOptions` has it. Raises ConfigError without the option's name."""
    if value is None:
        if name in _OPTIONAL:
            return None
        raise ConfigError("it must not be None: leave it out to use the default")
    return _CHECKS[name](value)


def option_problems(options: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """The name of each option that is wrong, and what is wrong with it."""
    for name, value in options.items():
        try:
            check_option(name, value)
        except (ConfigError, TypeError, ValueError) as error:
            yield name, str(error)


def check_names(kind: str, given: Mapping[str, object], known: Mapping[str, object]) -> None:
    """Raises ConfigError with the nearest right name where a decorator has no such option."""
    for name in given:
        if name not in known:
            raise ConfigError(f"{kind} has no option {name}: {nearest_or_all(name, known)}")


# Single options ----------------------------------------------------------------------------------------------------


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ConfigError(f"it must be text in quotes, not {type(value).__name__}")
    return value


def _consumer_group(value: object) -> str:
    return validate_group_name(_text(value))


def _load_balancing(value: object) -> str:
    """As Spark's source takes it."""
    strategy = parse_load_balancing(value)  # type: ignore[arg-type]
    if isinstance(strategy, Balanced | Greedy) and strategy.max_partitions is not None:
        raise ConfigError("max_partitions is for processors: a stage takes Balanced(), Greedy() or Fixed(n)")
    return load_balancing_text(strategy)


def _starting_position(value: object) -> str:
    """As Spark's source takes it."""
    if isinstance(value, str):
        parse_position(value)
        return value
    if not isinstance(value, Position):
        raise ConfigError("write for instance starting_position='earliest', 'latest' or 'time:-24h'")
    return str(value)


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_EVENTS:
        raise ConfigError("it must be a whole number, 1 or more")
    return value


def _trigger_interval(value: object) -> int:
    seconds = parse_duration(_text(value)).total_seconds()
    if seconds > MAX_TRIGGER_INTERVAL_SECONDS:
        raise ConfigError(f"it must be at most {MAX_TRIGGER_INTERVAL_SECONDS:g}s")
    return round(seconds * 1000)


def _lookback(value: object) -> str:
    text = _text(value)
    if parse_duration(text).total_seconds() <= 0:
        raise ConfigError("it must be longer than 0 seconds")
    return text


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"it must be True or False, not {type(value).__name__}")
    return value


def _choice(choices: Any) -> Callable[[object], str]:
    return partial(choice_of, choices=get_args(choices))


_CHECKS: Final[Mapping[str, Callable[[object], Any]]] = {
    "consumer_group": _consumer_group,
    "load_balancing": _load_balancing,
    "starting_position": _starting_position,
    "max_batch_size": _count,
    "trigger_interval": _trigger_interval,
    "checkpoint": _choice(CheckpointMode),
    "lookback": _lookback,
    "on_data_loss": _choice(OnDataLoss),
    "dead_letters": _text,
    "drop_duplicates": _choice(DuplicatePolicy),
    "event_ids": _truth,
    "name": _text,
    "output_mode": _choice(OutputMode),
}
