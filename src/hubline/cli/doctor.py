"""``hubline doctor``: what is wrong with a hub, a store and how they are used, or with this machine, and the fix."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from hubline.addresses.names import DEFAULT_GROUP, validate_group_name
from hubline.addresses.values import parse_duration
from hubline.cli.arguments import GroupOption, HubArgument, JsonOption, StoreOption, env_variable, option
from hubline.cli.exit_codes import ExitCode
from hubline.cli.output import escaped, print_json, stderr_console, stdout_console, timestamp
from hubline.doctor.findings import Finding, Severity, worst
from hubline.errors import ConfigError
from hubline.text import counted

if TYPE_CHECKING:
    from rich.console import RenderableType

# How many partitions of a finding the text shows; --json has them all.
PARTITIONS_SHOWN_MAX: Final = 4

EXIT_CODES: Final = {
    Severity.OK: ExitCode.OK,
    Severity.NOTE: ExitCode.OK,
    Severity.WARNING: ExitCode.WARNED,
    Severity.ERROR: ExitCode.FAILED,
}
_STYLES: Final = {Severity.OK: "green", Severity.NOTE: "cyan", Severity.WARNING: "yellow", Severity.ERROR: "red"}


def doctor(
    context: typer.Context,
    hub: HubArgument = "",
    store: StoreOption = "",
    group: GroupOption = DEFAULT_GROUP,
    lease: Annotated[
        str | None,
        option(
            "--lease",
            "The lease of the consumers. Default: 30s.",
            metavar="DURATION",
        ),
    ] = None,
    renew_interval: Annotated[
        str | None,
        option("--renew-interval", "How often consumers renew the lease. Default: a third of it.", metavar="DURATION"),
    ] = None,
    handover_timeout: Annotated[
        str | None,
        option(
            "--handover-timeout",
            "How long a consumer waits for a requested partition. Default: the lease.",
            metavar="DURATION",
        ),
    ] = None,
    sdk_lease: Annotated[
        str,
        option(
            "--sdk-lease",
            "The lease of SDK consumers: their partitions are taken after it.",
            metavar="DURATION",
        ),
    ] = "2m",
    timeout: Annotated[
        str, option("--timeout", "How long to wait for each answer of the hub and the store.", metavar="DURATION")
    ] = "20s",
    # A variable HUBLINE_ENVIRONMENT may well be there, and mean something else.
    environment: Annotated[
        bool,
        typer.Option(
            "--environment",
            envvar=env_variable("doctor-environment"),
            help="Examine this machine, and no hub: Python, packages, Java, Spark, directories, ports and limits.",
        ),
    ] = False,
    start_spark: Annotated[
        bool, option("--start-spark", "With --environment: also start a Spark session. It takes about ten seconds.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Diagnose a hub, a store and a group, or this machine.

    Each finding says what is wrong, where, and how to fix it. The command changes nothing and does not affect
    consumers. It exits with 1 if there are errors, otherwise with 6 if there are warnings.

    \b
    Examples:
      hubline doctor --environment
      hubline doctor local:./data/orders --store sqlite:///state.db
      hubline doctor env:HUB --store env:STORE --lease 2m --renew-interval 30s
      hubline doctor env:HUB --store env:STORE --group billing --json
    """
    if start_spark and not environment:
        raise ConfigError("--start-spark needs --environment. Add it, or leave --start-spark out.")
    if environment:
        from hubline.doctor.examine_environment import examine_environment

        with _progress() as report:
            findings = examine_environment(_variables(context), report, start_spark=start_spark)
        _print("this machine", findings, json=json)
        return
    if not hub or not store:
        raise ConfigError(
            "doctor has nothing to examine. Give a HUB and --store STORE, or --environment for this machine."
        )
    from hubline.doctor.examination import ExaminationRequest
    from hubline.doctor.examine import examine

    request = ExaminationRequest(
        hub=hub,
        store=store,
        group=validate_group_name(group),
        lease_seconds=parse_duration(lease).total_seconds() if lease else None,
        renew_interval_seconds=parse_duration(renew_interval).total_seconds() if renew_interval else 0.0,
        handover_timeout_seconds=parse_duration(handover_timeout).total_seconds() if handover_timeout else 0.0,
        sdk_lease_seconds=parse_duration(sdk_lease).total_seconds(),
        seconds_max=parse_duration(timeout).total_seconds(),
    )
    with _progress() as report:
        findings = asyncio.run(examine(request, report))
    _print(f"group {request.group}", findings, json=json)


def _variables(context: typer.Context) -> set[str]:
    """The environment variables of all options of all commands."""

    def of(command: Any) -> Iterator[str]:
        for child in getattr(command, "commands", {}).values():
            yield from of(child)
        yield from (str(each.envvar) for each in command.params if each.envvar)

    return set(of(context.find_root().command))


def _print(subject: str, findings: list[Finding], *, json: bool) -> None:
    """Prints the findings, and ends the command with the exit code of the worst."""
    if json:
        for each in findings:
            print_json(_data(each))
    else:
        stdout_console().print(_view(subject, findings))
    if code := EXIT_CODES[worst(findings)]:
        raise typer.Exit(code)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Shows on a terminal which step runs, until the end; elsewhere nothing."""
    console = stderr_console()
    with console.status("examining ...") as status:
        yield lambda message: status.update(f"{escaped(message)} ...")


def _view(subject: str, findings: list[Finding]) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    lines = Table.grid(padding=(0, 2))
    for each in findings:
        lines.add_row(Text(each.severity, _STYLES[each.severity]), Text(each.code), Text(_text_of(each)))
        for line in _partition_lines(each.partitions):
            lines.add_row("", "", Text(line))
        if each.fix:
            lines.add_row("", "", Text(f"→ {escaped(each.fix)}", "dim"))
    counts = Counter(each.severity for each in findings)
    bad = [counted(counts[each], each) for each in (Severity.ERROR, Severity.WARNING, Severity.NOTE) if counts[each]]
    summary = f"{subject}, at {timestamp(datetime.now(UTC))}: {', '.join(bad) or 'no problems found'}"
    return Group(Text(summary), "", lines)


def _text_of(finding: Finding) -> str:
    return escaped(f"{finding.message} ({finding.where})" if finding.where else finding.message)


def _partition_lines(partitions: Mapping[str, str]) -> list[str]:
    shown = list(partitions.items())[:PARTITIONS_SHOWN_MAX]
    rest = len(partitions) - len(shown)
    lines = [escaped(f"partition {name}: {message}") for name, message in shown]
    return [*lines, f"and {counted(rest, 'more partition')}"] if rest else lines


def _data(finding: Finding) -> dict[str, object]:
    return {
        "severity": finding.severity.value,
        "code": finding.code,
        "message": finding.message,
        "where": finding.where or None,
        "fix": finding.fix or None,
        "partitions": [{"partition": name, "message": message} for name, message in finding.partitions.items()],
    }
