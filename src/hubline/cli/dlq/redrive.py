"""``hubline dlq redrive``: letters run again through their handler, or sent to a hub again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Final

import typer

from hubline.cli.arguments import JsonOption, PartitionsOption, option
from hubline.cli.checkpoints.copy import DryRunOption
from hubline.cli.dlq.flags import (
    DeleteOption,
    ErrorTextOption,
    ErrorTypeOption,
    Flags,
    LettersArgument,
    OfGroupOption,
    OfHubOption,
    SinceOption,
    SinkOption,
    UntilOption,
    total,
    using_shelf,
)
from hubline.cli.dlq.view import counted_by_error
from hubline.cli.exit_codes import ExitCode, say
from hubline.cli.output import counted, escaped, print_json, progress, stderr_console
from hubline.cli.session import using_hub
from hubline.errors import ConfigError
from hubline.monitoring.lag import CLI_GROUP

if TYPE_CHECKING:
    from collections.abc import Callable

    from hubline.dead_letters.handler_redrive import HandlerRedrive
    from hubline.dead_letters.redrive import Progress, Redrive
    from hubline.dead_letters.repository import DeadLetterCount
    from hubline.model.dead_letters import DeadLetterSelection
    from hubline.model.keys import PartitionKey

REASON_SHOWN_LENGTH_MAX: Final = 300
"""A line for people; --json and show have all of it."""


def redrive(
    sink: SinkOption,
    letter: LettersArgument = None,
    with_: Annotated[
        str | None,
        option("--with", "Run the events again through this processor: a name in a file.", metavar="FILE:NAME"),
    ] = None,
    to: Annotated[
        str | None, option("--to", "Send the events to this hub again.", verb="redrive", metavar="HUB")
    ] = None,
    hub: OfHubOption = None,
    group: OfGroupOption = None,
    partition: PartitionsOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    error_type: ErrorTypeOption = None,
    error_text: ErrorTextOption = None,
    limit: Annotated[int | None, option("--limit", "Redrive at most so many.", min=1, metavar="N")] = None,
    delete: DeleteOption = False,
    dry_run: DryRunOption = False,
    json: JsonOption = False,
) -> None:
    """Redrive letters that wait, the oldest of each partition first.

    --with runs them through the handler of a processor, which is a name in a Python file of yours: the file is run, as
    Python would import it. What succeeds is settled in the transaction that has its rows: once, whenever this dies.
    What fails again stays, with its new error. --to sends them to a hub: at least once, each time with the same id.

    Bodies that are not kept are read from --hub. A letter whose event is gone there is named, and stays.

    \b
    Examples:
      hubline dlq redrive --sink sqlite:///orders.db --with app.py:processor
      hubline dlq redrive 3/1741 --sink env:DATABASE --with app.py:processor --dry-run
      hubline dlq redrive --sink env:DATABASE --to env:HUB --error-type TimeoutError --limit 1000
    """
    if (with_ is None) == (to is None):
        raise ConfigError("say how, by one of: --with FILE:NAME for the handler of a processor, or --to HUB")
    flags = Flags(hub, group, partition, since, until, error_type, error_text, letters=letter)
    job = _Job(sink, flags, with_, to, limit, delete)
    asyncio.run(_redrive(job, _Report(json=json), dry_run=dry_run))


@dataclass(frozen=True, slots=True)
class _Job:
    """What to redrive, and how."""

    sink: str
    flags: Flags
    with_: str | None
    to: str | None
    limit: int | None
    delete: bool

    def count_of(self, counts: Sequence[DeadLetterCount]) -> int:
        waiting = total(counts)
        return waiting if self.limit is None else min(waiting, self.limit)


@dataclass(slots=True)
class _Report:
    """What became of the letters so far: printed as it happens, and summed up at the end."""

    json: bool
    outcomes: Counter[str] = field(default_factory=Counter)
    busy: list[PartitionKey] = field(default_factory=list)

    def add(self, done: Progress) -> None:
        from hubline.model.dead_letters import DeadLetterId

        if done.is_busy:
            self.busy.append(done.key)
        for each in done.letters:
            self.outcomes[each.outcome] += 1
            if self.json:
                print_json(
                    {
                        "letter": str(DeadLetterId.of(each.letter)),
                        "outcome": each.outcome,
                        "reason": each.reason or None,
                    }
                )
            elif each.reason:
                say(f"{DeadLetterId.of(each.letter)} {each.outcome}: {escaped(each.reason[:REASON_SHOWN_LENGTH_MAX])}")

    def end(self) -> None:
        """Says what happened. Ends with a code of its own where letters are left."""
        from hubline.dead_letters.redrive import Outcome

        others = ", ".join(f"{self.outcomes[kind]:,} {kind}" for kind in Outcome if kind != "redriven")
        say(f"redriven {counted(self.outcomes[Outcome.REDRIVEN], 'letter')}; {others}")
        for key in self.busy:
            say(f"left to another redrive, which is at them: the letters of {key}")
        if self.outcomes.total() > self.outcomes[Outcome.REDRIVEN]:
            raise typer.Exit(ExitCode.FAILED)
        if self.busy:
            raise typer.Exit(ExitCode.UNAVAILABLE)


async def _redrive(job: _Job, report: _Report, *, dry_run: bool) -> None:
    async with _prepared(job) as (prepared, choice), using_shelf(job.sink) as shelf:
        counts = await shelf.count(choice)
        if not counts:
            say("no such letters")
            return
        stderr_console().print(counted_by_error(counts))
        if dry_run:
            say(f"would redrive {counted(job.count_of(counts), 'letter')}; nothing was changed")
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
            advance(len(done.letters))
    except BaseException:
        # Each lot is whole: what is told of was done, and nothing of the lot that failed was.
        say(f"{counted(report.outcomes['redriven'], 'letter')} had been redriven by then; doing it again is fine")
        raise


@asynccontextmanager
async def _prepared(job: _Job) -> AsyncIterator[tuple[Redrive, DeadLetterSelection]]:
    """The redrive, with all that it needs open; and which letters it is about."""
    prepare = _by_handler if job.with_ is not None else _by_hub
    async with prepare(job) as prepared:
        yield prepared


@asynccontextmanager
async def _by_hub(job: _Job) -> AsyncIterator[tuple[Redrive, DeadLetterSelection]]:
    from hubline.dead_letters.redrive import EventLookup, Redrive
    from hubline.dead_letters.resend import Republisher
    from hubline.sinks.sql_sink.sink import SqlSink

    assert job.to is not None  # noqa: S101 (checked before)
    choice = job.flags.choice()
    sink = SqlSink(job.sink)
    # Where the letters come from is the target itself, unless another hub is named.
    async with using_hub(job.to) as target, using_hub(job.flags.hub or job.to) as source:
        await target.describe()  # a hub that is missing is told at once
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

    assert job.with_ is not None  # noqa: S101 (checked before)
    rerun = HandlerRedrive.of(load_processor(job.with_))
    choice = job.flags.choice()
    _check_same(job, choice, rerun)
    prepared = rerun.redrive(choice, body_group=CLI_GROUP, removes=job.delete)
    try:
        yield prepared, prepared.choice
    finally:
        rerun.sink.close()
        await rerun.wiring.hub.close()


def _check_same(job: _Job, choice: DeadLetterSelection, rerun: HandlerRedrive) -> None:
    """The processor says which letters are its own. Flags that say something else are a mistake."""
    from hubline.dead_letters.repository import sql_address

    group = rerun.group
    if choice.hub is not None and (choice.namespace, choice.hub) != (group.namespace, group.hub):
        raise ConfigError(
            f"--hub is {choice.namespace}/{choice.hub}, and the processor's is {group.namespace}/{group.hub}"
        )
    if choice.group is not None and choice.group != group.group:
        raise ConfigError(f"--group is {choice.group}, and the processor's is {group.group}")
    if (sink := sql_address(job.sink)) != rerun.address:
        raise ConfigError(f"--sink is {sink}, and the processor's is {rerun.address}: give the same address in both")
