"""``hubline dlq redrive``: reprocesses dead letters, or sends their events to a hub."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final

import typer

from hubline.cli.arguments import DryRunOption, JsonOption, PartitionsOption, option
from hubline.cli.dlq.flags import (
    DeleteOption,
    ErrorTextOption,
    ErrorTypeOption,
    Flags,
    IdsArgument,
    OfGroupOption,
    OfHubOption,
    SinceOption,
    SinkOption,
    UntilOption,
    total,
    using_dead_letters,
)
from hubline.cli.dlq.view import NONE_FOUND, counted_by_error
from hubline.cli.exit_codes import ExitCode, say
from hubline.cli.output import escaped, print_json, progress, stderr_console
from hubline.cli.session import using_hub
from hubline.errors import ConfigError
from hubline.monitoring.lag import CLI_GROUP
from hubline.text import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from hubline.dead_letters.handler_redrive import HandlerRedrive
    from hubline.dead_letters.redrive import Progress, Redrive
    from hubline.dead_letters.repository import DeadLetterCount
    from hubline.model.dead_letters import DeadLetterSelection
    from hubline.model.keys import PartitionKey

REASON_SHOWN_LENGTH_MAX: Final = 300
"""Enough for a line; --json and show have the whole reason."""


def redrive(
    sink: SinkOption,
    id: IdsArgument = None,  # noqa: A002 (the argument's name)
    processor: Annotated[
        str | None,
        option(
            "--processor", "Reprocess the events with this processor: a name in a Python file.", metavar="FILE:NAME"
        ),
    ] = None,
    to_hub: Annotated[str | None, option("--to-hub", "Send the events to this hub instead.", metavar="HUB")] = None,
    hub: OfHubOption = None,
    group: OfGroupOption = None,
    partition: PartitionsOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    error_type: ErrorTypeOption = None,
    error_text: ErrorTextOption = None,
    limit: Annotated[int | None, option("--limit", "Redrive at most N dead letters.", min=1, metavar="N")] = None,
    delete: DeleteOption = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Reprocess waiting dead letters, or send their events to a hub.

    The oldest event of each partition comes first. --processor imports your Python file and calls the handler of its
    processor. The new rows and the state of the dead letter commit in one transaction, so each row is written exactly
    once. If an event fails again, it stays a dead letter, with its new error. --to-hub sends each event at least once,
    always with the same event ID.

    If the sink does not keep the bodies, the command reads them from --hub. If the hub no longer has an event, the
    command reports it and keeps the dead letter.

    \b
    Examples:
      hubline dlq redrive --sink sqlite:///orders.db --processor app.py:processor
      hubline dlq redrive 3/1741 --sink env:DATABASE --processor app.py:processor
      hubline dlq redrive --sink env:DATABASE --to-hub env:HUB --dry-run
    """
    if (processor is None) == (to_hub is None):
        raise ConfigError(
            "redrive needs exactly one of --processor and --to-hub. Add --processor FILE:NAME to reprocess the events, "
            "or --to-hub HUB to send them."
        )
    flags = Flags(hub, group, partition, since, until, error_type, error_text, ids=id)
    job = _Job(sink, flags, processor, to_hub, limit, delete)
    asyncio.run(_redrive(job, _Report(json=json), dry_run=dry_run))


@dataclass(frozen=True, slots=True)
class _Job:
    """Which dead letters to redrive, and how."""

    sink: str
    flags: Flags
    processor: str | None
    to_hub: str | None
    limit: int | None
    delete: bool

    def count_of(self, counts: Sequence[DeadLetterCount]) -> int:
        waiting = total(counts)
        return waiting if self.limit is None else min(waiting, self.limit)


@dataclass(slots=True)
class _Report:
    """The outcomes so far: printed one by one, with the totals at the end."""

    json: bool
    outcomes: Counter[str] = field(default_factory=Counter)
    busy: list[PartitionKey] = field(default_factory=list)

    def add(self, done: Progress) -> None:
        from hubline.model.dead_letters import DeadLetterId

        if done.is_busy:
            self.busy.append(done.key)
        for each in done.dead_letters:
            self.outcomes[each.outcome] += 1
            if self.json:
                print_json(
                    {
                        "id": str(DeadLetterId.of(each.dead_letter)),
                        "outcome": each.outcome,
                        "reason": each.reason or None,
                    }
                )
            elif each.reason:
                say(
                    f"{DeadLetterId.of(each.dead_letter)} {each.outcome}: "
                    f"{escaped(each.reason[:REASON_SHOWN_LENGTH_MAX])}"
                )

    def end(self) -> None:
        """Prints the totals. Ends the command with an exit code if dead letters are left."""
        from hubline.dead_letters.redrive import Outcome

        others = ", ".join(f"{self.outcomes[kind]:,} {kind}" for kind in Outcome if kind != "redriven")
        say(f"redriven {counted(self.outcomes[Outcome.REDRIVEN], 'dead letter')}; {others}")
        for key in self.busy:
            say(f"skipped {key}, because another redrive is working on it. Run this command again later.")
        if self.outcomes.total() > self.outcomes[Outcome.REDRIVEN]:
            raise typer.Exit(ExitCode.FAILED)
        if self.busy:
            raise typer.Exit(ExitCode.UNAVAILABLE)


async def _redrive(job: _Job, report: _Report, *, dry_run: bool) -> None:
    async with _prepared(job) as (prepared, choice), using_dead_letters(job.sink) as repository:
        counts = await repository.count(choice)
        if not counts:
            say(NONE_FOUND)
            return
        stderr_console().print(counted_by_error(counts))
        if dry_run:
            say(f"would redrive {counted(job.count_of(counts), 'dead letter')}; nothing was changed")
            return
        with progress("redriving", job.count_of(counts)) as advance:
            await _run(prepared, counts, job.limit, report, advance)
    report.end()


async def _run(
    prepared: Redrive,
    counts: Sequence[DeadLetterCount],
    limit: int | None,
    report: _Report,
    advance: Callable[[int], None],
) -> None:
    try:
        async for done in prepared.run(counts, limit=limit):
            report.add(done)
            advance(len(done.dead_letters))
    except BaseException:
        # A batch is one transaction: the batches that were reported are done, and nothing of the failed one is.
        say(
            f"redriven {counted(report.outcomes['redriven'], 'dead letter')}, then stopped. You can repeat the command."
        )
        raise


@asynccontextmanager
async def _prepared(job: _Job) -> AsyncIterator[tuple[Redrive, DeadLetterSelection]]:
    """The redrive, with its hubs and connections open, and the selection of dead letters."""
    prepare = _by_handler if job.processor is not None else _by_hub
    async with prepare(job) as prepared:
        yield prepared


@asynccontextmanager
async def _by_hub(job: _Job) -> AsyncIterator[tuple[Redrive, DeadLetterSelection]]:
    from hubline.dead_letters.event_lookup import EventLookup
    from hubline.dead_letters.redrive import Redrive
    from hubline.dead_letters.resend import Republisher
    from hubline.sinks.sql_sink.sink import SqlSink

    assert job.to_hub is not None  # noqa: S101 (checked before)
    choice = job.flags.choice()
    sink = SqlSink(job.sink)
    # Events are read from the target itself, unless another hub is named.
    async with using_hub(job.to_hub) as target, using_hub(job.flags.hub or job.to_hub) as source:
        await target.describe()  # a missing hub is reported at once
        sender = await target.open_sender()
        try:
            work = Republisher(target, sender)
            yield Redrive(sink, choice, work, EventLookup(source, CLI_GROUP), removes=job.delete), choice
        finally:
            await sender.close()
            sink.close()


@asynccontextmanager
async def _by_handler(job: _Job) -> AsyncIterator[tuple[Redrive, DeadLetterSelection]]:
    from hubline.cli.dlq.load_processor import load_processor
    from hubline.dead_letters.handler_redrive import HandlerRedrive

    assert job.processor is not None  # noqa: S101 (checked before)
    rerun = HandlerRedrive.of(load_processor(job.processor))
    choice = job.flags.choice()
    _check_same(job, choice, rerun)
    prepared = rerun.redrive(choice, body_group=CLI_GROUP, removes=job.delete)
    try:
        yield prepared, prepared.selection
    finally:
        rerun.sink.close()
        await rerun.dependencies.hub.close()


def _check_same(job: _Job, choice: DeadLetterSelection, rerun: HandlerRedrive) -> None:
    """The processor has its own hub, group and sink. Options that name others are a mistake."""
    from hubline.dead_letters.repository import sql_address

    group = rerun.group
    if choice.hub is not None and (choice.namespace, choice.hub) != (group.namespace, group.hub):
        raise ConfigError(
            f"--hub is {choice.namespace}/{choice.hub}, but the processor reads {group.namespace}/{group.hub}. "
            "Leave --hub out."
        )
    if choice.group is not None and choice.group != group.group:
        raise ConfigError(
            f"--group is {choice.group}, but the group of the processor is {group.group}. Leave --group out."
        )
    if (sink := sql_address(job.sink)) != rerun.address:
        raise ConfigError(
            f"--sink is {sink}, but the sink of the processor is {rerun.address}. Use the same address in both."
        )
