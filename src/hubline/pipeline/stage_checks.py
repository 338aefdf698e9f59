"""What can be wrong with stages on paper: functions, options that contradict each other, what stages share."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from hubline.addresses.store_address import parse_store
from hubline.coordination.strategies import Fixed, parse_load_balancing
from hubline.pipeline.datasets import Dataset, FormatDataset, HubDataset, TableDataset
from hubline.pipeline.definition import Stage, StageKind
from hubline.pipeline.graph import StageGraph
from hubline.pipeline.plan import PlannedStage
from hubline.pipeline.stage_options import CheckedOptions

Found: TypeAlias = tuple[tuple[str, ...], str, str]
"""The options to blame, none where the decorator is; what is wrong; and the fix."""

_VARIABLE: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def function_problem(stage: Stage) -> tuple[str, str]:
    """What keeps the stage's function from being called as a stage calls it, and the fix; empty if nothing does."""
    try:
        parameters = list(inspect.signature(stage.function).parameters.values())
    except (TypeError, ValueError):
        return "cannot be called", "give a plain function"
    if inspect.iscoroutinefunction(stage.function):
        return "is async", "write def, without async"
    if inspect.isgeneratorfunction(stage.function):
        return "is a generator", "write return, not yield"
    given = len(stage.sources)
    positional = [each for each in parameters if each.kind is not each.KEYWORD_ONLY]
    takes_all = any(each.kind is each.VAR_POSITIONAL for each in positional)
    if len(positional) < given and not takes_all:
        return (
            f"takes {len(positional)} parameters, and is given {given}",
            "add a parameter for the events of each source, before all others",
        )
    extra = [each for each in parameters[given:] if each.default is each.empty and each.kind not in _VARIABLE]
    if stage.kind is not StageKind.FRAME and extra:
        events = "one event" if stage.kind is StageKind.EVENTS else "one table of events"
        return f"takes more than {events}", "use @pipeline.stage for joins"
    return "", ""


def contradictions(stage: Stage, sink: Dataset, options: CheckedOptions) -> Iterator[Found]:
    """The options that contradict each other or the sink."""
    is_automatic = options.checkpoint == "every_batch"
    if isinstance(sink, TableDataset) and not is_automatic:
        yield (
            ("checkpoint",),
            f"checkpoint={options.checkpoint!r} does not go with a table",
            "leave it out: rows and checkpoint are written in one transaction, which makes each row exact",
        )
    if options.lookback is not None and not is_automatic:
        message = "lookback needs checkpoints, which say what was published before"
        yield ("checkpoint", "lookback"), message, "leave checkpoint out"
    if not options.has_owners and options.load_balancing not in ("all", "greedy"):
        message = f"load_balancing={options.load_balancing!r} does not go with checkpoint={options.checkpoint!r}"
        fix = (
            "leave checkpoint or load_balancing out, or use Fixed(n), which keeps partitions in place, "
            "with checkpoint='never'"
        )
        yield ("load_balancing", "checkpoint"), message, fix
    if options.drop_duplicates in ("ordered", "any_order") and not isinstance(sink, TableDataset):
        yield ("drop_duplicates",), "drop_duplicates is for tables, which remember ids", "leave it out"
    if options.output_mode == "complete" and not isinstance(sink, FormatDataset):
        message = "output_mode='complete' writes everything again with each batch"
        yield ("output_mode",), message, "use output_mode='update'"
    if options.output_mode == "update" and isinstance(sink, TableDataset) and not sink.upsert_key:
        message = "output_mode='update' replaces rows, and the table has no key"
        yield ("output_mode",), message, f'add upsert_key = ["..."] to [datasets.{sink.name}]'
    if stage.kind is not StageKind.FRAME and len(stage.sources) > 1:
        yield (), "a handler takes the events of one source", "use @pipeline.stage for several"
    is_counted = isinstance(sink, FormatDataset) and sink.counted_folder is not None and options.dead_letters is None
    if options.queries > 1:
        yield from _contradictions_of_queries(sink, options, is_counted=is_counted)
    if is_counted and (options.lookback is not None or not is_automatic):
        yield (
            ("checkpoint", "lookback"),
            (
                "files remember batches by number, and this stage counts from 0 at each start, so its rows "
                "would be left out"
            ),
            "leave checkpoint and lookback out, or write to another dataset",
        )
    if stage.kind is not StageKind.FRAME and not (isinstance(stage.schema, str) and stage.schema):
        yield (), "a handler needs the columns that it returns", "add schema='id long, celsius double'"


def _contradictions_of_queries(sink: Dataset, options: CheckedOptions, *, is_counted: bool) -> Iterator[Found]:
    queries = f"queries={options.queries}"
    strategy = parse_load_balancing(options.load_balancing)
    if isinstance(strategy, Fixed) and strategy.count % options.queries:
        yield (
            ("queries", "load_balancing"),
            f"{queries} cannot share the {strategy.count} partitions of Fixed({strategy.count}) evenly, and some "
            "would be read by nobody",
            "let the count be a multiple of queries",
        )
    if is_counted:
        message = f"{queries} would each count the batches of one folder of files, and rows would be left out"
        yield ("queries",), message, "leave queries out, or write to a table or a hub"
    if isinstance(sink, FormatDataset) and sink.format == "memory":
        yield ("queries",), f"{queries} cannot write one table in memory", "leave queries out"


def shared_groups(stages: Sequence[PlannedStage]) -> Iterator[tuple[PlannedStage, str]]:
    """Stages that own the same partitions as one before them, or write the same checkpoint, and what is wrong."""
    known: dict[tuple[str, str, str], PlannedStage] = {}
    for stage in stages:
        if stage.store is None or not stage.options.has_owners:
            continue
        group, store = stage.options.consumer_group, parse_store(stage.store)
        for source in stage.sources:
            if (other := known.setdefault((source.identity, group, str(store)), stage)) is not stage:
                yield (
                    stage,
                    f"the stages {other.name} and {stage.name} have the same owners and checkpoints: consumer "
                    f"group {group} of {source} in {store}",
                )


def shared_ids(stages: Sequence[PlannedStage], rows: StageGraph) -> Iterator[tuple[PlannedStage, str]]:
    """Stages that publish the same events to one hub as one before them: with the same ids, one would be dropped."""
    publishing = [stage for stage in stages if isinstance(stage.sink, HubDataset) and stage.options.event_ids]
    for index, stage in enumerate(publishing):
        for other in publishing[:index]:
            is_shared = rows.origins(stage.name) & rows.origins(other.name)
            if stage.sink.identity == other.sink.identity and is_shared:
                yield (
                    stage,
                    (
                        f"the stages {other.name} and {stage.name} publish events made of the same source events to "
                        f"{stage.sink}, with the same IDs, so a reader would drop one of them as a duplicate"
                    ),
                )
