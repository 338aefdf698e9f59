"""Options and arguments that several commands share. One rule gives each its environment variable."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def env_variable(flag: str) -> str:
    """``--retention-size`` may also be given as ``HUBLINE_RETENTION_SIZE``.

    One variable means one thing: an option or argument whose name means something else in another command has the
    command's name before its own, as `HUBLINE_SERVE_FOLDER`.
    """
    return "HUBLINE_" + flag.lstrip("-").replace("-", "_").upper()


def option(flag: str, help: str, **settings: Any) -> Any:  # noqa: A002 (Typer's word)
    """An option that may also be given by its environment variable."""
    return typer.Option(flag, help=help, envvar=env_variable(flag), **settings)


HubArgument = Annotated[
    str,
    typer.Argument(
        metavar="HUB",
        envvar=env_variable("hub"),
        help="local:PATH/NAME, an Event Hubs connection string, eventhubs://NAMESPACE/NAME, env:NAME or file:PATH.",
    ),
]
StoreOption = Annotated[
    str,
    option(
        "--store",
        "The checkpoint store: sqlite:///PATH, postgresql://..., https://ACCOUNT.blob.core.windows.net/CONTAINER, "
        "env:NAME or file:PATH.",
        metavar="STORE",
    ),
]
GroupOption = Annotated[str, option("--group", "The consumer group.", metavar="GROUP")]
PartitionsOption = Annotated[
    list[str] | None,
    option("--partition", "Only this partition. You can give it several times. Default: all.", metavar="ID"),
]
JsonOption = Annotated[bool, option("--json", "Print JSON, one object per line.")]
YesOption = Annotated[bool, option("--yes", "Do not ask for confirmation.")]
DryRunOption = Annotated[bool, option("--dry-run", "Show what would change, but change nothing.")]
