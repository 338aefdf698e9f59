"""The command line: ``hubline VERB ...``, one module a verb.

What a command is asked for goes to stdout; progress and remarks go to stderr. Modules that cost time to load
(Arrow, database drivers) are loaded by the verb that needs them, so that help answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer import TyperException
from typer.core import TyperGroup

from hubline.cli import doctor, hub, pipeline, send, serve, status, tail, version
from hubline.cli.arguments import option
from hubline.cli.checkpoints import copy, migrate
from hubline.cli.checkpoints import show_set_reset as checkpoints
from hubline.cli.demo import demo
from hubline.cli.dlq import list_show as dlq
from hubline.cli.exit_codes import EXIT_CODES_HELP, ExitCode, complain, say
from hubline.secrets import may_hold_secret


class _Verbs(TyperGroup):
    """All verbs. Where the reader of the output went away (``hubline tail ... | head``), they end without a word."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # here, where a closed pipe is expected, and not while Python shuts down
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(ExitCode.PIPE_CLOSED) from None
        return result


app = typer.Typer(
    name="hubline",
    cls=_Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog=f"Every flag has an environment twin: --store is HUBLINE_STORE. {EXIT_CODES_HELP}",
)
app.command()(demo.demo)
app.command()(pipeline.plan)
app.command()(pipeline.run)
app.add_typer(hub.app, name="hub")
app.command()(serve.serve)
app.command()(send.send)
app.command()(tail.tail)
app.command()(status.status)
checkpoints.app.command("copy")(copy.copy)
checkpoints.app.command("migrate")(migrate.migrate)
app.add_typer(checkpoints.app, name="checkpoints")
app.add_typer(dlq.app, name="dlq")
app.command()(doctor.doctor)
app.command()(version.version)


@dataclass(slots=True)
class _Settings:
    debug: bool = False


@app.callback()
def _root(
    context: typer.Context,
    debug: Annotated[bool, option("--debug", "Show where an error comes from.")] = False,
    # Without an environment twin: HUBLINE_VERSION is a likely name for a version number.
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=version.print_and_exit)
    ] = False,
) -> None:
    """Partitioned event hubs: create them, send to them, and see who reads them and how far."""
    context.ensure_object(_Settings).debug = debug


def main(args: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code: the entry point of ``hubline``."""
    settings = _Settings()
    try:
        # Typer itself turns Ctrl-C into the exit code 130.
        return int(app(args, prog_name="hubline", obj=settings, standalone_mode=False) or ExitCode.OK)
    except typer.Abort:
        return ExitCode.INTERRUPTED
    except TyperException as error:
        return _explain_usage(error)
    except Exception as error:  # noqa: BLE001 (the last place that can turn an error into one line)
        return complain(error, debug=settings.debug)


def _explain_usage(error: TyperException) -> ExitCode:
    # Without a message, help has been printed already: nothing was asked for.
    if message := error.format_message():
        # It quotes what was typed, and an address in the wrong place may hold a key or a password.
        shown = "wrong usage; not repeated, it may hold a secret." if may_hold_secret(message) else message
        say(f"hubline: {shown} Try: {_command_path(error)} --help")
    return ExitCode.USAGE


def _command_path(error: TyperException) -> str:
    return str(getattr(getattr(error, "ctx", None), "command_path", "hubline"))
