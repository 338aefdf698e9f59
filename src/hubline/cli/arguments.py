"""Flags and arguments that several verbs share. Every one has an environment twin, by one rule."""

from __future__ import annotations

from typing import Annotated, Any

import typer


def env_twin(flag: str) -> str:
    """``--retention-size`` may also be given as ``HUBLINE_RETENTION_SIZE``."""
    return "HUBLINE_" + flag.lstrip("-").replace("-", "_").upper()


def option(flag: str, help: str, *, verb: str = "", **settings: Any) -> Any:  # noqa: A002 (Typer's word)
    """A flag with its environment twin.

    One variable means one thing: where other verbs use the flag's name for something else, the twin of this one has
    the ``verb`` in its name.
    """
    twin = env_twin(f"{verb}-{flag.lstrip('-')}" if verb else flag)
    return typer.Option(flag, help=help, envvar=twin, **settings)


HubArgument = Annotated[
    str,
    typer.Argument(
        metavar="HUB",
        envvar=env_twin("hub"),
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
