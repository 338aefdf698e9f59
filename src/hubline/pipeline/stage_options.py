"""The options of a stage: their names, types, defaults and checks, once for decorators, planning and the TOML file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias, TypedDict

from hubline.addresses.did_you_mean import nearest_or_all
from hubline.addresses.names import DEFAULT_GROUP, validate_group_name
from hubline.addresses.option_checks import check_value
from hubline.addresses.option_kinds import Named, Parsed, Range
from hubline.addresses.values import parse_duration, parse_position
from hubline.coordination.strategies import (
    Balanced,
    Fixed,
    Greedy,
    Strategy,
    StrategyOrText,
    load_balancing_text,
    parse_load_balancing,
)
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

MAX_QUERIES: Final = 64
"""Each has a process that plans its batches: for more, start more instances."""

# A batch of a day is not a stream any more; and Spark keeps triggers in milliseconds.
MAX_TRIGGER_INTERVAL_SECONDS: Final = 86_400.0
MAX_EVENTS: Final = 2**53


class StageOptions(TypedDict, total=False):
    """What every decorator of a pipeline takes. `Pipeline.stage` explains each; the reference has a table of them."""

    consumer_group: str
    load_balancing: LoadBalancing
    queries: int
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
    queries: int = 1
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

    @property
    def has_owners(self) -> bool:
        """Whether instances share the partitions by a store, which keeps who owns what."""
        keeps_places = self.checkpoint == "never" and self.load_balancing.startswith("fixed:")
        return self.checkpoint == "every_batch" or keeps_places


CONFIG_KEYS: Final = tuple(name for name in StageOptions.__annotations__ if name not in ("event_ids", "name"))
"""The options that a table [stages.NAME] may change: those that depend on where a pipeline runs, not on its code."""

_OPTIONAL: Final = ("lookback", "dead_letters", "name")


def check_option(name: str, value: object) -> Any:
    """The option as `CheckedOptions` has it. Raises ConfigError without the option's name."""
    if value is None:
        if name in _OPTIONAL:
            return None
        raise ConfigError("it must not be None. Leave it out to use the default.")
    return check_value(name, _ANNOTATIONS[name], value, subject="it")


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
            raise ConfigError(f"{kind} has no option {name}. {nearest_or_all(name, known)}")


# Single options ----------------------------------------------------------------------------------------------------


def _load_balancing(value: str | Strategy) -> str:
    """As Spark's source takes it."""
    strategy = parse_load_balancing(value)
    if isinstance(strategy, Balanced | Greedy) and strategy.max_partitions is not None:
        raise ConfigError("max_partitions is for processors only. Use Balanced(), Greedy() or Fixed(n) without it.")
    return load_balancing_text(strategy)


def _starting_position(value: str | Position) -> str:
    """As Spark's source takes it."""
    if isinstance(value, str):
        parse_position(value)
    return str(value)


def _trigger_interval(text: str) -> int:
    seconds = parse_duration(text).total_seconds()
    if seconds > MAX_TRIGGER_INTERVAL_SECONDS:
        raise ConfigError(f"it must be at most {MAX_TRIGGER_INTERVAL_SECONDS:g}s.")
    return round(seconds * 1000)


def _lookback(text: str) -> str:
    if parse_duration(text).total_seconds() <= 0:
        raise ConfigError("it must be longer than 0 seconds.")
    return text


_Text: TypeAlias = Annotated[str, Named("text in quotes")]
_Duration: TypeAlias = Annotated[str, Named("a duration in quotes, such as '30s'")]

_ANNOTATIONS: Final[Mapping[str, Any]] = {
    "consumer_group": Annotated[_Text, Parsed(validate_group_name)],
    "load_balancing": Annotated[StrategyOrText, Parsed(_load_balancing)],
    "starting_position": Annotated[
        str | Position,
        Named("a Position, or text such as 'earliest', 'latest' or 'time:-24h'"),
        Parsed(_starting_position),
    ],
    "queries": Annotated[int, Range(least=1, most=MAX_QUERIES)],
    "max_batch_size": Annotated[int, Range(least=1, most=MAX_EVENTS)],
    "checkpoint": CheckpointMode,
    "trigger_interval": Annotated[_Duration, Parsed(_trigger_interval)],
    "lookback": Annotated[_Duration, Parsed(_lookback)],
    "on_data_loss": OnDataLoss,
    "dead_letters": _Text,
    "drop_duplicates": DuplicatePolicy,
    "event_ids": bool,
    "name": _Text,
    "output_mode": OutputMode,
}
"""What each option takes, and what becomes of it."""
