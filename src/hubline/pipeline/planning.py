"""A pipeline that was put together with its places and checked on paper: what will run, what it promises."""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from hubline.addresses.choices import choice_of
from hubline.addresses.names import validate_group_name
from hubline.addresses.store_address import MemoryAddress, StoreAddress, parse_store
from hubline.addresses.values import parse_duration, parse_position
from hubline.coordination.strategies import Balanced, Fixed, Greedy, load_balancing_text, parse_load_balancing
from hubline.errors import ConfigError, Problem
from hubline.model.positions import ON_DATA_LOSS, OnDataLoss, Position, PositionKind
from hubline.pipeline.datasets import (
    FLEETING_FORMATS,
    STAGE_KEYS,
    FormatPlace,
    HubPlace,
    Place,
    Places,
    RunSettings,
    TablePlace,
    anywhere,
    nearest,
)
from hubline.pipeline.definition import (
    Checkpoints,
    DropRepeats,
    Pipeline,
    Sharing,
    Stage,
    StageKind,
    Where,
    in_topological_order,
)
from hubline.pipeline.secrets import without_secrets
from hubline.secrets import may_hold_secret

Value = TypeVar("Value")
Choice = TypeVar("Choice", bound=enum.StrEnum)

MODES: Final = ("append", "update", "complete")
# A batch of a day is no stream any more; and Spark keeps triggers in milliseconds.
BATCH_WAIT_SECONDS_MAX: Final = 86_400.0
EVENTS_MAX: Final = 2**53
_STAGE_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,62}")


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A stage with its places. ``store`` keeps its progress; None where nobody does."""

    stage: Stage
    sources: tuple[HubPlace, ...]
    target: Place
    tables: Mapping[str, Place]
    letters: HubPlace | None
    group: str
    ownership: str
    start: str
    events_max: int
    batch_wait_ms: int
    checkpoint: Checkpoints
    lookback: str | None
    on_data_loss: OnDataLoss
    repeats: DropRepeats
    store: str | None
    folder: str
    is_read_in_order: bool = False
    """Whether a stage that reads what this one writes counts on the order of ids."""

    @property
    def name(self) -> str:
        return self.stage.name

    @property
    def where(self) -> Where:
        return self.stage.where

    @property
    def outputs(self) -> set[str]:
        """The places that it writes, by identity: dead letters are events of a hub like others."""
        return {place.identity for place in (self.target, self.letters) if place is not None}

    @property
    def is_new_each_run(self) -> bool:
        """Whether Spark's folder of the last run is of no use."""
        return self.is_new_each_start or self.checkpoint is not Checkpoints.EACH_BATCH

    @property
    def is_new_each_start(self) -> bool:
        """Whether Spark's folder is of no use even where a run starts the stage again, after a failure.

        What is on a screen or in memory Spark does not go on with: it refuses a folder that was used.
        """
        is_fleeting = isinstance(self.target, FormatPlace) and self.target.format in FLEETING_FORMATS
        return self.lookback is not None or is_fleeting


@dataclass(frozen=True, slots=True)
class Plan:
    """What will run. ``levels`` are the names of stages, those that feed others first."""

    name: str
    file: Path
    stages: tuple[PlannedStage, ...]
    levels: tuple[tuple[str, ...], ...]
    run: RunSettings
    default_store: Path | None
    """The file of the store that is made where the places name none."""
    store_where: Where
    state_where: Where


def planned(pipeline: Pipeline, places: Places) -> tuple[Plan, list[Problem]]:
    """The pipeline with its places, and all that is wrong with it on paper. Opens and connects to nothing."""
    planning = _Planning(pipeline, places)
    planning.check_names()
    stages = [found for stage in pipeline.stages if (found := planning.stage(stage)) is not None]
    stages = [_with_repeats(stage, stages) for stage in stages]
    stages = [replace(stage, is_read_in_order=_is_read_in_order(stage, stages)) for stage in stages]
    planning.check_checkpoints(stages)
    planning.check_ids(stages)
    levels = planning.levels(stages)
    store, state = (places.file.where("run", key) for key in ("store", "state"))
    plan = Plan(pipeline.name, pipeline.file, tuple(stages), levels, places.run, planning.default_store, store, state)
    return plan, planning.problems


def _with_repeats(stage: PlannedStage, stages: Sequence[PlannedStage]) -> PlannedStage:
    """Decides what ``auto`` is: only ids that a stage of ours gave are sure to be there, and to be ids."""
    if stage.repeats is not DropRepeats.AUTO:
        return stage
    read = {source.identity for source in stage.sources}
    is_fed = any(each.target.identity in read and each.stage.identity for each in stages)
    return replace(stage, repeats=DropRepeats.SHUFFLED if is_fed else DropRepeats.NONE)


def _is_read_in_order(stage: PlannedStage, stages: Sequence[PlannedStage]) -> bool:
    """Whether a stage after it counts on the order of ids, which stages in between hand on."""
    reached: list[PlannedStage] = []
    waiting = [stage]
    while waiting:
        target = waiting.pop().target.identity
        after = [each for each in stages if target in {source.identity for source in each.sources}]
        waiting += [each for each in after if each not in reached and each.stage.identity]
        reached += after
    return any(each.repeats is DropRepeats.ORDERED for each in reached)


def is_remote(folder: str) -> bool:
    """Whether a folder is one of a cluster's file system (``abfss://...``), and not of this machine."""
    return "://" in folder


def local_folder(folder: str) -> Path | None:
    """The whole path of a folder; None where it is not of this machine."""
    return None if is_remote(folder) else Path(folder).expanduser().resolve()


class _Planning:
    """Puts stages and places together, and collects what does not fit."""

    def __init__(self, pipeline: Pipeline, places: Places) -> None:
        self._pipeline = pipeline
        self._places = places
        self.problems: list[Problem] = []
        state = local_folder(places.run.state)
        self.default_store = state / "checkpoints.db" if places.run.store is None and state else None
        self.store = places.run.store or (f"sqlite:///{self.default_store}" if self.default_store else None)

    def check_names(self) -> None:
        pipeline = self._pipeline
        if not pipeline.stages:
            self._wrong(pipeline.where, "the pipeline has no stages", "write functions under @pipeline.stage(...)")
        names = [stage.name for stage in pipeline.stages]
        for stage in pipeline.stages:
            if not _STAGE_NAME.fullmatch(stage.name):
                rule = "use letters, digits, '-' and '_', 63 at most"
                self._wrong(stage.where, f"a stage cannot be named {stage.name[:80]!a}", rule)
        for stage in {stage.name: stage for stage in pipeline.stages if names.count(stage.name) > 1}.values():
            self._wrong(stage.where, f"there are two stages {stage.name}", "give one another name=...")
        for name in self._places.overrides.keys() - set(names):
            where = self._places.file.where("stages", name)
            self._wrong(where, f"there is no stage {name}", nearest(name, names))
        used = {place for stage in pipeline.stages for place in _named_places(self._overridden(stage))}
        for path in self._places.file.overridden:
            if path[0] == "places" and path[1] not in used:
                where = self._places.file.where(*path)
                self._wrong(
                    where,
                    f"no stage uses a place {path[1]}",
                    nearest(path[1], [each for each in used if not may_hold_secret(each)]),
                )

    def stage(self, written: Stage) -> PlannedStage | None:
        """None if a place is missing: then there is nothing more to say about it."""
        stage = self._overridden(written)
        sources = [self._hub(stage, name, "source") for name in stage.sources]
        target = self._place(stage, stage.to, "to")
        tables = {name: self._place(stage, name, "a parameter of the function") for name in self._tables(stage)}
        letters = self._letters(stage, target)
        parsed = self._parsed(stage, target)
        hubs = tuple(hub for hub in sources if hub is not None)
        if target is None or not hubs or len(hubs) != len(sources) or parsed is None:
            return None
        self._check_sources(stage, hubs, target)
        found = {name: place for name, place in tables.items() if place is not None}
        folder = self._folder(stage)
        return replace(parsed, sources=hubs, target=target, tables=found, letters=letters, folder=folder)

    def check_checkpoints(self, stages: Sequence[PlannedStage]) -> None:
        known: dict[tuple[str, str, str], PlannedStage] = {}
        for stage in stages:
            for source in stage.sources:
                if stage.store is None or stage.checkpoint is not Checkpoints.EACH_BATCH:
                    continue
                mark = (source.identity, stage.group, str(parse_store(stage.store)))
                if (other := known.setdefault(mark, stage)) is not stage:
                    self._wrong(
                        stage.where,
                        f"the stages {other.name} and {stage.name} write the same checkpoint: group {stage.group} of "
                        f"{source} in {parse_store(stage.store)}",
                        "give one of them another group=...",
                    )

    def check_ids(self, stages: Sequence[PlannedStage]) -> None:
        """Two stages that publish the same events to one hub would give them the same ids: one would be dropped."""
        publishing = [stage for stage in stages if isinstance(stage.target, HubPlace) and stage.stage.identity]
        for place, stage in enumerate(publishing):
            for other in publishing[:place]:
                is_shared = _origins(stage, stages) & _origins(other, stages)
                if stage.target.identity == other.target.identity and is_shared:
                    self._wrong(
                        stage.where,
                        f"the stages {other.name} and {stage.name} publish what they make of the same events to "
                        f"{stage.target}, with the same ids: one would pass for a repetition of the other",
                        "let one write another hub, or say identity=False",
                    )

    def levels(self, stages: Sequence[PlannedStage]) -> tuple[tuple[str, ...], ...]:
        """By the hubs themselves: two names may stand for one hub."""
        edges = [(stage.name, [source.identity for source in stage.sources], stage.outputs) for stage in stages]
        levels = in_topological_order(edges)
        if levels is not None:
            return tuple(map(tuple, levels))
        rings = [stage for stage in stages if _reaches(stage, stage, stages)]
        names = " -> ".join([*(stage.name for stage in rings), rings[0].name])
        fix = "what one of them writes, dead letters included, comes back to it for ever: let it go somewhere else"
        self._wrong(rings[0].where, f"the stages form a cycle ({names})", fix)
        return ()

    # Places

    def _place(self, stage: Stage, name: str, what: str) -> Place | None:
        place = self._places.by_name.get(name)
        if place is None and self._places.file.is_toml and name not in self._places.broken:
            file = self._places.file.file
            fix = f"{nearest(name, self._places.by_name)} (a place is a table [places.{name}] in {file})"
            if may_hold_secret(name):
                name = "(not shown, it may hold a secret)"
                fix = f"give the place a name, and write its address under [places.NAME] in {file}, as env:VARIABLE"
            self._wrong(stage.where, f"stage {stage.name}: there is no place {name} ({what})", fix)
        return place

    def _hub(self, stage: Stage, name: str, what: str) -> HubPlace | None:
        place = self._place(stage, name, what)
        if place is not None and not isinstance(place, HubPlace):
            fix = "a stage reads a hub; a table or a file can be joined, as a further parameter of the function"
            self._wrong(stage.where, f"stage {stage.name}: {name} is {place}, and no hub", fix)
            return None
        return place

    def _letters(self, stage: Stage, target: Place | None) -> HubPlace | None:
        if stage.dead_letters is None:
            return None
        if isinstance(target, TablePlace):
            if stage.dead_letters != stage.to:
                fix = "leave dead_letters out: they are kept beside the rows, in one transaction with them"
                self._wrong(stage.where, f"stage {stage.name}: dead letters of a table go into its database", fix)
            return None
        return self._hub(stage, stage.dead_letters, "dead_letters")

    def _tables(self, stage: Stage) -> tuple[str, ...]:
        try:
            parameters = list(inspect.signature(stage.function).parameters.values())
        except (TypeError, ValueError):
            self._wrong(stage.where, f"stage {stage.name}: its function cannot be called", "give a plain function")
            return ()
        if inspect.iscoroutinefunction(stage.function):
            self._wrong(stage.where, f"stage {stage.name}: its function is async", "write def, without async")
            return ()
        if inspect.isgeneratorfunction(stage.function):
            self._wrong(stage.where, f"stage {stage.name}: its function is a generator", "write return, and no yield")
            return ()
        given = len(stage.sources)
        positional = [each for each in parameters if each.kind is not each.KEYWORD_ONLY]
        takes_all = any(each.kind is each.VAR_POSITIONAL for each in positional)
        if len(positional) < given and not takes_all:
            what = f"stage {stage.name}: its function takes {len(positional)} parameters, and is given {given}"
            self._wrong(stage.where, what, "the events of each source come first")
            return ()
        extra = [each for each in parameters[given:] if each.default is each.empty and each.kind not in _VARIABLE]
        if stage.kind is not StageKind.FRAME and extra:
            what = f"stage {stage.name}: its function takes more than {stage.kind}"
            self._wrong(stage.where, what, "joins are for @pipeline.stage")
            return ()
        return stage.tables

    def _check_sources(self, stage: Stage, sources: Sequence[HubPlace], target: Place) -> None:
        if len(sources) > 1 and isinstance(target, TablePlace):
            fix = "its checkpoint is one hub's: write to a hub, and store from there"
            self._wrong(stage.where, f"stage {stage.name}: a table takes the rows of one source", fix)
        if len({source.identity for source in sources}) < len(sources):
            fix = "name each hub once, and use its events twice"
            self._wrong(stage.where, f"stage {stage.name}: it reads one hub twice", fix)

    def _folder(self, stage: Stage) -> str:
        state = self._places.run.state
        folder = local_folder(state)
        return f"{state.rstrip('/')}/{stage.name}" if folder is None else str(folder / stage.name)

    # Options

    def _overridden(self, stage: Stage) -> Stage:
        given = self._places.overrides.get(stage.name, {})
        taken = {}
        for name in [key for key in STAGE_KEYS if key in given]:  # unknown ones were told where the file was read
            wanted = int if name == "max_batch_size" else str
            if isinstance(given[name], wanted) and not isinstance(given[name], bool):
                taken[name] = given[name]
            else:
                where = self._places.file.where("stages", stage.name, name)
                self._wrong(where, f"{name} is {'a whole number' if wanted is int else 'text in quotes'}")
        return replace(stage, **taken)

    def _parsed(self, stage: Stage, target: Place | None) -> PlannedStage | None:
        """The stage with its options as they will be used; its places are put in later."""
        before = len(self.problems)
        checkpoint = self._option(stage, "checkpoint", partial(_one_of, Checkpoints))
        ownership = self._option(stage, "ownership", ownership_text)
        group = self._option(stage, "group", validate_group_name)
        start = self._option(stage, "start", start_text)
        count = self._option(stage, "max_batch_size", _count)
        wait = self._option(stage, "trigger_interval", _wait)
        lookback = self._option(stage, "lookback", _lookback)
        invalid = self._option(stage, "on_data_loss", partial(choice_of, choices=ON_DATA_LOSS))
        repeats = self._option(stage, "drop_duplicates", partial(_one_of, DropRepeats))
        self._option(stage, "mode", _mode)
        self._option(stage, "identity", _truth)
        if len(self.problems) > before or checkpoint is None or target is None:
            return None
        store = self._store_of(stage, target, checkpoint)
        for problem in _contradictions(stage, target, checkpoint, str(ownership)):
            self._wrong(stage.where, f"stage {stage.name}: {problem[0]}", problem[1])
        return PlannedStage(
            stage, (), target, {}, None, str(group), str(ownership), str(start), count or 0, wait or 0, checkpoint,
            lookback, invalid or "fail", repeats or DropRepeats.NONE, store, "",
        )  # fmt: skip

    def _store_of(self, stage: Stage, target: Place, checkpoint: Checkpoints) -> str | None:
        if checkpoint is Checkpoints.NONE:
            return None
        if isinstance(target, TablePlace):
            return target.text  # one truth: the rows and their checkpoint commit together
        if self.store is None:
            where = self._places.file.where("run", "state")
            fix = 'add store = "postgresql://..." to [run]: progress is kept there'
            self._wrong(where, f"stage {stage.name} needs a store, as its state is not on this machine", fix)
            return None
        address = self._guarded(lambda: parse_store(self.store or ""))
        if isinstance(address, MemoryAddress):
            where = self._places.file.where("run", "store")
            self._wrong(where, "memory: is one process's own, and Spark runs many", "use sqlite:///PATH")
        return anywhere(self.store) if address is not None else None

    def _guarded(self, parse: Callable[[], StoreAddress]) -> StoreAddress | None:
        try:
            return parse()
        except ConfigError:
            return None  # told where the file was read

    def _option(self, stage: Stage, name: str, parse: Callable[[Any], Value]) -> Value | None:
        value = getattr(stage, name)
        if value is None and name == "lookback":
            return None
        try:
            if value is None:
                raise ConfigError("it cannot be None: leave it out, and the default counts")
            if name in _TEXTS and not isinstance(value, str):
                raise ConfigError(f"it is text in quotes, and not {type(value).__name__}")
            return parse(value)
        except (ConfigError, TypeError, ValueError) as error:
            is_ours = name in self._places.overrides.get(stage.name, {})
            where = self._places.file.where("stages", stage.name, name) if is_ours else stage.where
            self._wrong(where, f"stage {stage.name}: {name}: {without_secrets(str(error))}")
            return None

    def _wrong(self, where: Where, what: str, fix: str = "") -> None:
        self.problems.append(Problem(where.file, where.line, what, fix))


_TEXTS: Final = ("group", "trigger_interval", "lookback", "checkpoint", "on_data_loss", "drop_duplicates", "mode")
_VARIABLE: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def _named_places(stage: Stage) -> Iterator[str]:
    yield from (*stage.sources, stage.to, *stage.tables)
    if stage.dead_letters is not None:
        yield stage.dead_letters


def _reaches(stage: PlannedStage, goal: PlannedStage, stages: Sequence[PlannedStage]) -> bool:
    """Whether what a stage writes comes to the goal."""
    seen: set[str] = set()
    ahead = [stage]
    while ahead:
        written = ahead.pop().outputs
        for each in stages:
            if written & {source.identity for source in each.sources} and each.name not in seen:
                if each.name == goal.name:
                    return True
                seen.add(each.name)
                ahead.append(each)
    return False


def _origins(stage: PlannedStage, stages: Sequence[PlannedStage], seen: frozenset[str] = frozenset()) -> set[str]:
    """The hubs that the events of a stage may first have come from."""
    origins = {source.identity for source in stage.sources}
    for each in stages:
        if each.name not in seen and each.target.identity in origins:
            origins |= _origins(each, stages, seen | {stage.name})
    return origins


def _contradictions(stage: Stage, target: Place, checkpoint: Checkpoints, ownership: str) -> Iterator[tuple[str, str]]:
    is_automatic = checkpoint is Checkpoints.EACH_BATCH
    if isinstance(target, TablePlace) and not is_automatic:
        yield (
            f"checkpoint={checkpoint.value!r} does not go with a table",
            "leave it out: rows and checkpoint are one transaction, and that is what makes them exact",
        )
    if stage.lookback is not None and not is_automatic:
        yield "lookback needs checkpoints: they tell what was published before", "leave checkpoint out"
    if not is_automatic and ownership not in ("all", "greedy"):
        yield f"ownership={ownership!r} needs checkpoints, where runners meet", "leave checkpoint or ownership out"
    if stage.drop_duplicates in ("ordered", "shuffled") and not isinstance(target, TablePlace):
        yield "drop_duplicates is for tables, which remember ids", "leave it out"
    if stage.mode == "complete" and not isinstance(target, FormatPlace):
        yield "mode='complete' writes everything again with each batch", "use mode='update'"
    if stage.mode == "update" and isinstance(target, TablePlace) and not target.key:
        yield "mode='update' replaces rows, and the table has no key", f'add key = ["..."] to [places.{target.name}]'
    if stage.kind is not StageKind.FRAME and len(stage.sources) > 1:
        yield "a handler takes the events of one source", "use @pipeline.stage for several"
    is_counted = isinstance(target, FormatPlace) and target.counted_folder is not None and stage.dead_letters is None
    if is_counted and (stage.lookback is not None or not is_automatic):
        yield (
            "files remember batches by number, and this stage counts them anew at each start: they would be left out",
            "leave checkpoint and lookback out, or write to another place",
        )
    if stage.kind is not StageKind.FRAME and not (isinstance(stage.schema, str) and stage.schema):
        yield "a handler needs the columns of what it gives", "add schema='id long, celsius double'"


# Single options ----------------------------------------------------------------------------------------------------


def ownership_text(value: Sharing) -> str:
    """As the source takes it."""
    match value:
        case Fixed():
            return load_balancing_text(value)
        case Balanced(partitions_max) | Greedy(partitions_max):
            if partitions_max is not None:
                raise ConfigError("partitions_max is for processors: a stage takes Balanced(), Greedy() or Fixed(n)")
            return "balanced" if isinstance(value, Balanced) else "greedy"
        case "all" | "balanced" | "greedy":
            return value
        case str() if re.fullmatch(r"fixed:[1-9][0-9]{0,5}(:.*)?", value):
            return load_balancing_text(parse_load_balancing(value))
    raise ConfigError("write 'all', hubline.Balanced(), hubline.Greedy() or hubline.Fixed(n); in TOML \"fixed:2\"")


def start_text(value: str | Position) -> str:
    """As the source takes it."""
    if isinstance(value, str):
        parse_position(value)
        return value
    if not isinstance(value, Position):
        raise ConfigError("write for instance start='earliest', 'latest' or 'time:-24h'")
    if value.value is None:
        return f"{value.kind}{':inclusive' if value.kind is PositionKind.LATEST and value.inclusive else ''}"
    kind = "time" if value.kind is PositionKind.ENQUEUED else value.kind
    text = value.value.isoformat() if isinstance(value.value, datetime) else value.value
    return f"{kind}:{text}:{'inclusive' if value.inclusive else 'exclusive'}"


def _one_of(kind: type[Choice], value: str) -> Choice:
    if value not in list(kind):
        raise ConfigError(f"it is {', '.join(map(repr, map(str, kind)))}, and not {value!r}")
    return kind(value)


def _mode(value: str) -> str:
    if value not in MODES:
        raise ConfigError(f"it is {', '.join(MODES)}, and not {value!r}")
    return value


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"it is True or False, and not {type(value).__name__}")
    return value


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= EVENTS_MAX:
        raise ConfigError("it is a whole number, 1 or more")
    return value


def _wait(value: str) -> int:
    seconds = parse_duration(value).total_seconds()
    if seconds > BATCH_WAIT_SECONDS_MAX:
        raise ConfigError(f"it is at most {BATCH_WAIT_SECONDS_MAX:g}s")
    return round(seconds * 1000)


def _lookback(value: str) -> str:
    if parse_duration(value).total_seconds() <= 0:
        raise ConfigError("it has to be longer than 0 seconds")
    return value
