"""The command line: ``hubline COMMAND ...``, one module for each command.

Data goes to stdout; progress and messages go to stderr. Modules that take time to load (Arrow, database drivers) are
loaded by the command that needs them, so that help answers at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer import TyperException
from typer.core import TyperGroup

from hubline.cli import doctor, hub, init, pipeline, send, serve, status, tail, version
from hubline.cli.arguments import option
from hubline.cli.checkpoints import copy, migrate, show_set_reset
from hubline.cli.demo import demo
from hubline.cli.dlq import discard, export, list_show, redrive
from hubline.cli.exit_codes import EXIT_CODES_HELP, ExitCode, complain, say
from hubline.secrets import may_hold_secret


class _Commands(TyperGroup):
    """All commands. If the reader of the output ends (``hubline tail ... | head``), they end silently."""

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
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog=f"You can also set options with environment variables: HUBLINE_STORE is --store.\n\n{EXIT_CODES_HELP}",
)


def _group(help: str, commands: Mapping[str, Callable[..., None]]) -> typer.Typer:  # noqa: A002 (Typer's word)
    """Commands that share their first word."""
    group = typer.Typer(no_args_is_help=True, help=help)
    for name, function in commands.items():
        group.command(name)(function)
    return group


# Every command there is.
app.command()(demo.demo)
app.command()(init.init)
app.command()(pipeline.plan)
app.command()(pipeline.run)
app.add_typer(
    _group(
        "Create, list, show, grow and delete hubs.",
        {"create": hub.create, "list": hub.list_, "show": hub.show, "grow": hub.grow, "delete": hub.delete},
    ),
    name="hub",
)
app.command()(serve.serve)
app.command()(send.send)
app.command()(tail.tail)
app.command()(status.status)
app.add_typer(
    _group(
        "Show, move, reset, copy and migrate a group's checkpoints.",
        {
            "show": show_set_reset.show,
            "set": show_set_reset.set_,
            "reset": show_set_reset.reset,
            "copy": copy.copy,
            "migrate": migrate.migrate,
        },
    ),
    name="checkpoints",
)
app.add_typer(
    _group(
        "List, show, export, discard and redrive dead letters.",
        {
            "list": list_show.list_,
            "show": list_show.show,
            "redrive": redrive.redrive,
            "discard": discard.discard,
            "export": export.export,
        },
    ),
    name="dlq",
)
app.command()(doctor.doctor)
app.command()(version.version)


@dataclass(slots=True)
class _Settings:
    debug: bool = False


@app.callback()
def _root(
    context: typer.Context,
    debug: Annotated[bool, option("--debug", "Print the traceback of an error.")] = False,
    # Without an environment variable: HUBLINE_VERSION is a likely name for a version number.
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=version.print_and_exit)
    ] = False,
) -> None:
    """Create event hubs, send events, and operate the consumers that process them."""
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
    message = error.format_message()
    if type(error).__name__ == "NoArgsIsHelpError":  # its class is private to Typer; the message is the help text
        say(message)
    elif message:
        # It quotes what was typed, and an address in the wrong place may hold a key or a password.
        shown = (
            "the usage is not valid. Its text is not shown, because it may hold a secret."
            if may_hold_secret(message)
            else message
        )
        say(f"hubline: {shown} Try: {_command_path(error)} --help")
    return ExitCode.USAGE


def _command_path(error: TyperException) -> str:
    return str(getattr(getattr(error, "ctx", None), "command_path", "hubline"))
