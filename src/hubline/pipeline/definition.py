"""A pipeline as its author writes it: stages, and what is said of each. Nothing is opened or started here.

    pipeline = hubline.Pipeline("telemetry")

    @pipeline.stage(source="raw", to="clean", group="ingest")
    def ingest(events):
        return events.where("body is not null")

Stages name places (hubs, tables, files), and a TOML file says what those are: so the same pipeline runs on a laptop and
in production. A decorator gives the function back as it is, so that it can be tested by itself. What is wrong with a
stage is found when the whole pipeline is checked, and told together with all else.
"""

from __future__ import annotations

import enum
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

from hubline.addresses.names import DEFAULT_GROUP, validate_hub_name
from hubline.coordination.strategies import Balanced, Fixed, Greedy
from hubline.errors import ConfigError
from hubline.model.positions import OnDataLoss

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

Function = TypeVar("Function", bound=Callable[..., Any])

Sharing: TypeAlias = Balanced | Greedy | Fixed | Literal["all"] | str
"""How the runners of a pipeline share a stage's partitions; as text ``all``, ``balanced``, ``greedy``, ``fixed:N``."""

DEFAULT_BATCH_COUNT_MAX: Final = 1_000_000
"""Some seconds of work: few enough for a stop to wait for, and for a batch that is cut short to be done again."""
DEFAULT_BATCH_WAIT: Final = "200ms"
"""An idle stage asks its hub five times a second, and not a hundred times; a busy one does not wait at all."""


class StageKind(enum.StrEnum):
    """What a stage's function is given, and gives."""

    FRAME = "frame"
    """A DataFrame, and gives one: called once, when the stage starts."""
    BATCHES = "batches"
    """An Arrow table of the events that a task has at hand, and gives a table of rows: called in tasks."""
    EVENTS = "events"
    """One event, and gives one row as a dictionary, or None: called in tasks."""


class Checkpoints(enum.StrEnum):
    """When a stage's progress is written to the store."""

    EACH_BATCH = "each batch"
    """After each batch (the default)."""
    BY_HAND = "by hand"
    """Never by the stage: every start reads on from the stored checkpoint, which ``hubline checkpoints set`` moves."""
    NONE = "none"
    """Never: every start begins at ``start``."""


class DropRepeats(enum.StrEnum):
    """How a table knows events that an earlier stage published twice, by their ids. They are left out."""

    AUTO = "auto"
    """``shuffled`` where a stage of the same pipeline writes what this one reads, else ``none`` (the default)."""
    ORDERED = "ordered"
    """By the highest id of each origin: at little cost, and only where the stages before keep events of a partition, or
    of a key, in their order."""
    SHUFFLED = "shuffled"
    """By all ids of seven days: whatever the stages before do."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Where:
    """A line of a file, for people."""

    file: str
    line: int


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage as it was written, not yet checked: texts are still texts, and places are names."""

    name: str
    kind: StageKind
    function: Callable[..., Any]
    where: Where
    sources: tuple[str, ...]
    to: str
    group: str = DEFAULT_GROUP
    ownership: Sharing = "greedy"
    start: str = "earliest"
    max_batch_size: int = DEFAULT_BATCH_COUNT_MAX
    trigger_interval: str = DEFAULT_BATCH_WAIT
    checkpoint: str = Checkpoints.EACH_BATCH
    lookback: str | None = None
    on_data_loss: OnDataLoss = "fail"
    dead_letters: str | None = None
    drop_duplicates: str = DropRepeats.AUTO
    mode: str = "append"
    identity: bool = True
    schema: str | None = None

    @property
    def tables(self) -> tuple[str, ...]:
        """The places that the function takes as static tables: its parameters after the streams."""
        if self.kind is not StageKind.FRAME:
            return ()
        try:
            parameters = list(inspect.signature(self.function).parameters.values())[len(self.sources) :]
        except (TypeError, ValueError):
            return ()  # no function: the checks tell
        return tuple(each.name for each in parameters if each.default is each.empty and each.kind in _NAMED)


_NAMED: Final = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Pipeline:
    """Stages that run side by side on Spark, each from a hub to a hub, a table or any place that Spark can write to.

    ``places`` is the TOML file that says what the places are; without it, the one beside the pipeline's own file, with
    the same name.
    """

    def __init__(self, name: str, *, places: Path | str | None = None) -> None:
        self.name = _checked_name(name)
        self.where = _caller()
        self.places = Path(places) if places is not None else None
        self._stages: list[Stage] = []

    def __repr__(self) -> str:
        return f"Pipeline({self.name!r}, {', '.join(stage.name for stage in self._stages) or 'no stages'})"

    @property
    def stages(self) -> tuple[Stage, ...]:
        """In the order in which they were written."""
        return tuple(self._stages)

    @property
    def file(self) -> Path:
        """The file that the pipeline was written in."""
        return Path(self.where.file)

    def stage(
        self,
        *,
        source: str | Sequence[str],
        to: str,
        group: str = DEFAULT_GROUP,
        ownership: Sharing = "greedy",
        start: str = "earliest",
        max_batch_size: int = DEFAULT_BATCH_COUNT_MAX,
        trigger_interval: str = DEFAULT_BATCH_WAIT,
        checkpoint: str = Checkpoints.EACH_BATCH,
        lookback: str | None = None,
        on_data_loss: OnDataLoss = "fail",
        dead_letters: str | None = None,
        drop_duplicates: str = DropRepeats.AUTO,
        mode: str = "append",
        identity: bool = True,
        name: str | None = None,
    ) -> Callable[[Function], Function]:
        """A stage whose function takes the events as a streaming DataFrame and gives what is to be written.

        Its further parameters are places: each is read as a static DataFrame, to join with. Of several sources each is
        a DataFrame of its own.
        """
        settings = {**locals()}
        return self._decorator(StageKind.FRAME, settings)

    def batches(
        self,
        *,
        source: str,
        to: str,
        schema: str,
        group: str = DEFAULT_GROUP,
        ownership: Sharing = "greedy",
        start: str = "earliest",
        max_batch_size: int = DEFAULT_BATCH_COUNT_MAX,
        trigger_interval: str = DEFAULT_BATCH_WAIT,
        checkpoint: str = Checkpoints.EACH_BATCH,
        lookback: str | None = None,
        on_data_loss: OnDataLoss = "fail",
        dead_letters: str | None = None,
        drop_duplicates: str = DropRepeats.AUTO,
        identity: bool = True,
        name: str | None = None,
    ) -> Callable[[Function], Function]:
        """A stage whose function takes events of one partition as a ``pyarrow.Table`` and gives a table of ``schema``.

        Called in tasks, for a few thousand events at a time. Where it gives as many rows as it was given, in their
        order, each keeps the identity of its event; else the table has to have the columns ``partition``,
        ``sequenceNumber`` and ``eventId`` itself. Rows with an ``_error`` are dead letters.
        """
        settings = {**locals()}
        return self._decorator(StageKind.BATCHES, settings)

    def events(
        self,
        *,
        source: str,
        to: str,
        schema: str,
        group: str = DEFAULT_GROUP,
        ownership: Sharing = "greedy",
        start: str = "earliest",
        max_batch_size: int = DEFAULT_BATCH_COUNT_MAX,
        trigger_interval: str = DEFAULT_BATCH_WAIT,
        checkpoint: str = Checkpoints.EACH_BATCH,
        lookback: str | None = None,
        on_data_loss: OnDataLoss = "fail",
        dead_letters: str | None = None,
        drop_duplicates: str = DropRepeats.AUTO,
        identity: bool = True,
        name: str | None = None,
    ) -> Callable[[Function], Function]:
        """A stage whose function takes one :class:`hubline.Event` and gives its row, as a dictionary of ``schema``.

        None leaves the event out. An event whose function raises, or whose row does not fit or has an ``_error``, is a
        dead letter.
        """
        settings = {**locals()}
        return self._decorator(StageKind.EVENTS, settings)

    def run(
        self,
        *,
        stages: Sequence[str] = (),
        master: str | None = None,
        once: bool = False,
        settings: Mapping[str, str] | None = None,
        places: Path | str | None = None,
        spark: SparkSession | None = None,
    ) -> None:
        """Checks everything, and runs until SIGINT or SIGTERM; with ``once``, until all that is there is done.

        As ``hubline run`` does, without its view: for ``python FILE`` and spark-submit. ``settings`` are those of
        ``--set``. A session of your own may be given as ``spark``; it goes on running. Raises PipelineInvalid before
        anything is started, and StageFailed when a stage failed too often.
        """
        if _is_loading:
            raise ConfigError(
                "the file runs its pipeline when it is imported: put that under if __name__ == '__main__':, "
                "and hubline run can import it"
            )
        from hubline.pipeline.checks import checked
        from hubline.pipeline.runner import Request, run

        plan = checked(self, places=places, settings=settings or {}, stages=stages)
        run(plan, Request(master=master, once=once), spark=spark)

    def _decorator(self, kind: StageKind, settings: dict[str, Any]) -> Callable[[Function], Function]:
        where = _caller()
        del settings["self"]
        source, name = settings.pop("source"), settings.pop("name")
        sources = tuple(source) if isinstance(source, Sequence) and not isinstance(source, str) else (source,)
        if not sources or not all(isinstance(place, str) and place for place in (*sources, settings["to"])):
            raise ConfigError("source and to are names of places: write for instance source='raw', to='readings'")
        for option, value in (("dead_letters", settings["dead_letters"]), ("name", name)):
            if value is not None and not isinstance(value, str):
                raise ConfigError(f"{option} is text in quotes, and not {type(value).__name__}")

        def add(function: Function) -> Function:
            named = name or getattr(function, "__name__", "stage")
            self._stages.append(Stage(named, kind, function, where, sources, **settings))
            return function

        return add


def _checked_name(name: str) -> str:
    """It becomes part of folders and of names of queries, as a hub's does."""
    try:
        return validate_hub_name(name)
    except ConfigError as error:
        text = str(error).replace("the hub name", "the pipeline's name")
    raise ConfigError(text)


def _caller() -> Where:
    """The line of the file that called into this module."""
    frame = sys._getframe(1)  # noqa: SLF001 - there is no other way to point at a line of a decorator
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return Where(frame.f_code.co_filename, frame.f_lineno)


_is_loading = False


@contextmanager
def loading() -> Iterator[None]:
    """While a file is imported for its pipeline alone: running it is refused."""
    global _is_loading
    before, _is_loading = _is_loading, True
    try:
        yield
    finally:
        _is_loading = before


def in_topological_order(stages: Iterable[tuple[str, Iterable[str], Iterable[str]]]) -> list[list[str]] | None:
    """Stages in levels, each after those that write what it reads; None where they form a cycle.

    A stage is its name, the places that it reads, and those that it writes.
    """
    waiting = {name: (set(sources), set(outputs)) for name, sources, outputs in stages}
    levels: list[list[str]] = []
    while waiting:
        written = {output for _, outputs in waiting.values() for output in outputs}
        ready = [name for name, (sources, _) in waiting.items() if not sources & written]
        if not ready:
            return None
        levels.append(ready)
        for name in ready:
            del waiting[name]
    return levels
