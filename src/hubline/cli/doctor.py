"""``hubline doctor``: what is wrong with a hub, a store and how they are used, and how to fix it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final

import typer

from hubline.addresses.names import DEFAULT_GROUP, validate_group_name
from hubline.addresses.values import parse_duration
from hubline.cli.arguments import GroupOption, HubArgument, JsonOption, StoreOption, option
from hubline.cli.exit_codes import ExitCode
from hubline.cli.output import counted, escaped, print_json, stderr_console, stdout_console, timestamp
from hubline.doctor.findings import Finding, Severity, worst

if TYPE_CHECKING:
    from rich.console import RenderableType

# How many partitions of a finding people are shown; --json has them all.
PARTITIONS_SHOWN_MAX: Final = 4

EXIT_CODES: Final = {
    Severity.OK: ExitCode.OK,
    Severity.NOTE: ExitCode.OK,
    Severity.WARNING: ExitCode.WARNED,
    Severity.ERROR: ExitCode.FAILED,
}
_STYLES: Final = {Severity.OK: "green", Severity.NOTE: "cyan", Severity.WARNING: "yellow", Severity.ERROR: "red"}


def doctor(
    hub: HubArgument,
    store: StoreOption,
    group: GroupOption = DEFAULT_GROUP,
    lease: Annotated[
        str | None,
        option(
            "--lease",
            "The lease that the processors are started with. Default: 30s, or what the store's address says.",
            metavar="TIME",
        ),
    ] = None,
    renew: Annotated[
        str | None, option("--renew", "How often they renew it. Default: a third of the lease.", metavar="TIME")
    ] = None,
    grace: Annotated[
        str | None,
        option("--grace", "How long they wait for a partition they asked for. Default: the lease.", metavar="TIME"),
    ] = None,
    sdk_lease: Annotated[
        str,
        option("--sdk-lease", "How long they leave alone what a member with an official SDK owns.", metavar="TIME"),
    ] = "2m",
    time_limit: Annotated[
        str, option("--time-limit", "How long to wait for each answer of hub and store.", metavar="TIME")
    ] = "20s",
    json: JsonOption = False,
) -> None:
    """Examine a hub, a store and a group: say what is wrong, where, and how to fix it.

    Looking disturbs nobody, and changes nothing. Ends with 0 if all is well or merely worth knowing, with 6 if
    there are warnings, and with 1 if there are errors.

    \b
    Examples:
      hubline doctor local:./data/orders --store sqlite:///state.db --group billing
      hubline doctor env:HUB --store env:STORE --lease 2m --renew 30s
      hubline doctor env:HUB --store env:STORE --json | jq 'select(.severity == "error")'
    """
    from hubline.doctor.examination import ExaminationRequest, examine

    order = ExaminationRequest(
        hub=hub,
        store=store,
        group=validate_group_name(group),
        lease_seconds=parse_duration(lease).total_seconds() if lease else None,
        renew_interval_seconds=parse_duration(renew).total_seconds() if renew else 0.0,
        handover_timeout_seconds=parse_duration(grace).total_seconds() if grace else 0.0,
        sdk_lease_seconds=parse_duration(sdk_lease).total_seconds(),
        seconds_max=parse_duration(time_limit).total_seconds(),
    )
    with _progress() as tell:
        findings = asyncio.run(examine(order, tell))
    if json:
        for each in findings:
            print_json(_data(each))
    else:
        stdout_console().print(_view(order.group, findings))
    if code := EXIT_CODES[worst(findings)]:
        raise typer.Exit(code)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Shows on a terminal what is being looked at, and takes it away at the end; elsewhere nothing."""
    console = stderr_console()
    with console.status("looking ...") as status:
        yield lambda message: status.update(f"{escaped(message)} ...")


def _view(group: str, findings: list[Finding]) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    lines = Table.grid(padding=(0, 2))
    for each in findings:
        lines.add_row(Text(each.severity, _STYLES[each.severity]), Text(each.code), Text(_told(each)))
        for told in _partitions_told(each.partitions):
            lines.add_row("", "", Text(told))
        if each.fix:
            lines.add_row("", "", Text(f"→ {escaped(each.fix)}", "dim"))
    counts = Counter(each.severity for each in findings)
    bad = [counted(counts[each], each) for each in (Severity.ERROR, Severity.WARNING, Severity.NOTE) if counts[each]]
    summary = f"group {group}, at {timestamp(datetime.now(UTC))}: {', '.join(bad) or 'all is well'}"
    return Group(Text(summary), "", lines)


def _told(finding: Finding) -> str:
    return escaped(f"{finding.message} ({finding.where})" if finding.where else finding.message)


def _partitions_told(partitions: Mapping[str, str]) -> list[str]:
    shown = list(partitions.items())[:PARTITIONS_SHOWN_MAX]
    rest = len(partitions) - len(shown)
    told = [escaped(f"partition {name}: {message}") for name, message in shown]
    return [*told, f"and {counted(rest, 'more partition')}"] if rest else told


def _data(finding: Finding) -> dict[str, object]:
    return {
        "severity": finding.severity.value,
        "code": finding.code,
        "message": finding.message,
        "where": finding.where or None,
        "fix": finding.fix or None,
        "partitions": dict(finding.partitions),
    }
