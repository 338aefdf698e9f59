"""How a command ends: exit codes, and errors as one line."""

from __future__ import annotations

import enum
import sys
import traceback
from collections.abc import Sequence
from typing import Final

from hubline import errors
from hubline.text import counted


class ExitCode(enum.IntEnum):
    """The documented exit codes; scripts rely on them."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNAVAILABLE = 4
    NOT_CONFIRMED = 5
    WARNED = 6
    CHECKS_FAILED = 7
    STAGE_FAILED = 8
    # As shells report an end by SIGINT or SIGPIPE: 128 + the number of the signal.
    INTERRUPTED = 130
    PIPE_CLOSED = 141


MEANINGS: Final = {
    ExitCode.OK: "done",
    ExitCode.FAILED: "failed",
    ExitCode.USAGE: "usage, address or position not valid",
    ExitCode.NOT_FOUND: "hub, partition, store or consumer group not found",
    ExitCode.UNAVAILABLE: "hub or store unavailable (a retry may help)",
    ExitCode.NOT_CONFIRMED: "not confirmed",
    ExitCode.WARNED: "warnings but no errors (doctor)",
    ExitCode.CHECKS_FAILED: "the checks of a pipeline found problems",
    ExitCode.STAGE_FAILED: "a stage of a pipeline failed too often",
    ExitCode.INTERRUPTED: "interrupted",
    ExitCode.PIPE_CLOSED: "the reader of the output ended",
}
EXIT_CODES_HELP: Final = "\b\nExit codes:\n" + "\n".join(f"{code.value:>5} {text}" for code, text in MEANINGS.items())


def exit_code_of(error: Exception) -> ExitCode:
    """What kind of failure it is, for scripts."""
    match error:
        case errors.ConfigError() | errors.PositionInvalid():
            return ExitCode.USAGE
        case errors.HubNotFound() | errors.PartitionNotFound() | errors.StoreNotFound() | errors.GroupNotFound():
            return ExitCode.NOT_FOUND
        case errors.PipelineInvalid():
            return ExitCode.CHECKS_FAILED
        case errors.StageFailed():
            return ExitCode.STAGE_FAILED
        case errors.HubUnavailable() | errors.StoreUnavailable():
            return ExitCode.UNAVAILABLE
        case errors.SendFailed(failures=(first, *_)):
            return exit_code_of(first.error)
        case _:
            return ExitCode.FAILED


def complain(error: Exception, *, debug: bool) -> ExitCode:
    """Prints one line about the error (all of it with ``debug``) and returns the exit code."""
    if isinstance(error, errors.PipelineInvalid):
        _list_problems(error.problems, debug=debug)
        return exit_code_of(error)
    if debug:
        traceback.print_exception(error)
    # Of stages that failed, each has a line of its own.
    for line in str(error).splitlines() if isinstance(error, errors.StageFailed) else [_line(error)]:
        say(f"hubline: {line}")
    return exit_code_of(error)


def _list_problems(problems: Sequence[errors.Problem], *, debug: bool) -> None:
    """Each with the user's own line first; with ``debug``, below it all of the traceback of what that line raised."""
    from hubline.cli.output import escaped

    for problem in problems:
        for line in str(problem).splitlines():
            say(escaped(line))
        if debug and problem.error is not None:
            traceback.print_exception(problem.error)
    say(f"hubline: found {counted(len(problems), 'problem')}. Nothing was started.")


def say(text: str) -> None:
    """Prints for people, on stderr: stdout is for data."""
    print(text, file=sys.stderr)


def _line(error: Exception) -> str:
    if isinstance(error, errors.HublineError):
        return " ".join(str(error).split())
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename}" if error.filename else error.strerror
    # The text of an unforeseen error may quote an address, so only --debug shows it.
    return f"unexpected {type(error).__name__}. This is a bug of hubline. Run hubline --debug ... to see where it is."
