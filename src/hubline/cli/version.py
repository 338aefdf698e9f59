"""``hubline version``: what is installed."""

from __future__ import annotations

import typer

from hubline.cli.arguments import JsonOption
from hubline.cli.output import print_json


def print_and_exit(is_given: bool) -> None:
    """For ``hubline --version``."""
    if is_given:
        version()
        raise typer.Exit


def version(json: JsonOption = False) -> None:
    """Print the version of hubline, Python and the system.

    \b
    Examples:
      hubline version
      hubline version --json
    """
    import platform
    from importlib import metadata

    facts = {"hubline": metadata.version("hubline"), "python": platform.python_version(), "system": platform.system()}
    if json:
        print_json(facts)
    else:
        print(f"hubline {facts['hubline']} (Python {facts['python']}, {facts['system']})")
