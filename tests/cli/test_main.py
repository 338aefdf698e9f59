"""What holds for every verb: help, environment twins, exit codes, errors as one line."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import typer

import hubline
from hubline import errors
from hubline.cli import serve, tail
from hubline.cli.app import app
from hubline.cli.exit_codes import MEANINGS, ExitCode, complain, exit_code_of
from hubline.doctor.examine_environment import VARIABLES
from hubline.hubs.local import LocalHub
from tests.cli.conftest import Cli

PLANTED = "hUnTeR2pLaNtEd"
TYPERS_OWN = {"help", "install_completion", "show_completion"}


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with the words that call it."""
    children = getattr(command, "commands", {})
    if not children:
        yield path, command
    for name, child in children.items():
        yield from commands(child, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))

FAILED_SEND = errors.FailedSend(hubline.new_events("x"), None, errors.HubUnavailable("x"))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_of_every_verb_has_examples(cli: Cli, path: tuple[str, ...]) -> None:
    result = cli(*path, "--help")
    assert result.code == 0
    assert "Examples:" in result.out
    assert f"hubline {' '.join(path)}" in result.out
    assert [line for line in result.out.splitlines() if len(line) > 80] == []
    summary = result.out.split("\n\n")[1].strip()
    assert len(summary) <= 70
    assert "\n" not in summary


def test_summaries_fit_the_list_of_commands(cli: Cli) -> None:
    shown = "".join(cli(*path, "--help").out for path in ((), ("hub",), ("checkpoints",), ("dlq",)))
    assert re.findall(r".*\w\.\.\.$", shown, re.MULTILINE) == []


def test_every_parameter_has_its_environment_twin() -> None:
    parameters = [(path, each) for path, command in COMMANDS.items() for each in command.params]
    assert len(parameters) > 30
    for path, parameter in parameters:
        if parameter.name not in TYPERS_OWN:
            flag = max(parameter.opts, key=len).removeprefix("--").replace("-", "_").upper()
            assert parameter.envvar in (f"HUBLINE_{flag}", f"HUBLINE_{path[-1].upper()}_{flag}"), path


def test_environment_twin_means_one_thing() -> None:
    meanings: dict[str, set[str | None]] = {}
    for command in COMMANDS.values():
        for parameter in command.params:
            meanings.setdefault(parameter.envvar, set()).add(parameter.metavar)
    meanings.pop(None, None)  # type: ignore[call-overload]  # Typer's own flags have no twin
    assert {twin: found for twin, found in meanings.items() if len(found) > 1} == {}


def test_help_tells_the_exit_codes(cli: Cli) -> None:
    result = cli("--help")
    assert result.code == 0
    assert list(MEANINGS) == list(ExitCode)
    assert "141" in result.out


def test_environment_stands_in_for_flags(cli: Cli, hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUBLINE_HUB", hub)
    monkeypatch.setenv("HUBLINE_JSON", "1")
    assert cli("hub", "show").json["hub"] == "orders"


def test_nothing_asked_for_gives_help_and_the_code_for_usage(cli: Cli) -> None:
    result = cli()
    assert result.code == ExitCode.USAGE
    assert "Usage: hubline" in result.out + result.err


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("hbu",), "No such command 'hbu'. Did you mean 'hub'? Try: hubline --help"),
        (("tail", "x", "--bogus"), "No such option: --bogus Try: hubline tail --help"),
        (("tail",), "Missing argument 'HUB'"),
        (("hub", "create", "local:./a/b", "--partitions", "0"), "'--partitions'"),
        (("status", "local:./a/b"), "Missing option '--store'"),
        (("tail", "nonsense"), "has no known form"),
        (("tail", "env:NOT_THERE"), "'NOT_THERE' is not set"),
        (("tail", "local:./a/b", "--position", "yesterday"), "position 'yesterday' is unknown"),
        (("hub", "list", "data"), "Write local:PATH"),
        (("tail", f"Endpoint=sb://h;{PLANTED}"), "part 2"),
        (("status", "local:./a/b", "--store", f"redis://:{PLANTED}@h"), "begins with redis:, which is unknown"),
        (("status", "local:./a/b", "--store", "memory:", "--group", "a/b"), "consumer group 'a/b' is not allowed"),
    ],
)
def test_wrong_usage_is_one_line_on_stderr(cli: Cli, args: tuple[str, ...], says: str) -> None:
    result = cli(*args)
    assert result.code == ExitCode.USAGE
    assert result.out == ""
    assert result.err.startswith("hubline: ")
    assert result.err.count("\n") == 1
    assert says in result.err
    assert PLANTED not in result.err


def test_missing_hub_has_its_own_code_and_says_how_to_create_it(cli: Cli) -> None:
    result = cli("tail", "local:./data/orders")
    assert result.code == ExitCode.NOT_FOUND
    assert "hubline hub create" in result.err


@pytest.mark.parametrize("debug", [False, True])
def test_problem_of_a_users_function_begins_with_its_line_and_debug_shows_the_traceback(
    capsys: pytest.CaptureFixture[str], debug: bool
) -> None:
    try:
        int("x")
    except ValueError as error:
        problem = errors.Problem("app.py", 7, "stage store: ValueError", "correct the function", 'int("x")', error)
    assert complain(errors.PipelineInvalid([problem]), debug=debug) == ExitCode.CHECKS_FAILED
    said = capsys.readouterr().err
    assert said.startswith('app.py:7: int("x")\n  stage store: ValueError. Correct the function.\n')
    assert said.endswith("hubline: found 1 problem. Nothing was started.\n")
    assert (__file__ in said) is debug


def test_debug_shows_where_an_error_comes_from(cli: Cli) -> None:
    result = cli("--debug", "tail", "local:./data/orders")
    assert result.code == ExitCode.NOT_FOUND
    assert "Traceback" in result.err
    assert result.err.splitlines()[-1].startswith("hubline: there is no hub orders")


def test_unforeseen_error_shows_its_kind_but_not_its_text(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_args: object) -> None:
        raise RuntimeError(PLANTED)

    monkeypatch.setattr(tail, "_tail", broken)
    result = cli("tail", "local:./data/orders")
    assert result.code == ExitCode.FAILED
    assert result.err == (
        "hubline: unexpected RuntimeError. This is a bug of hubline. Run hubline --debug ... to see where it is.\n"
    )


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("x"), ExitCode.USAGE),
        (errors.HubNotFound("x"), ExitCode.NOT_FOUND),
        (errors.PartitionNotFound("x"), ExitCode.NOT_FOUND),
        (errors.HubUnavailable("x"), ExitCode.UNAVAILABLE),
        (errors.StoreUnavailable("x"), ExitCode.UNAVAILABLE),
        (errors.SendFailed("x", failures=[FAILED_SEND]), ExitCode.UNAVAILABLE),
        (errors.HubFull("x"), ExitCode.FAILED),
        (errors.HubExists("x"), ExitCode.FAILED),
        (ValueError("x"), ExitCode.FAILED),
    ],
)
def test_errors_have_their_exit_code(error: Exception, code: ExitCode) -> None:
    assert exit_code_of(error) == code


def test_stages_that_failed_have_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    failed = errors.StageFailed("stage a failed 1 time: x\nstage b failed 2 times: y", stage="a")
    assert complain(failed, debug=False) == ExitCode.STAGE_FAILED
    assert capsys.readouterr().err == "hubline: stage a failed 1 time: x\nhubline: stage b failed 2 times: y\n"


def test_unreachable_store_is_reported_and_has_its_own_code(cli: Cli, hub: str) -> None:
    result = cli("status", hub, "--store", f"postgresql://me:{PLANTED}@127.0.0.1:1/db?connect_timeout=1")
    assert result.code == ExitCode.UNAVAILABLE
    assert result.err.startswith("hubline: ")
    assert PLANTED not in result.err


def test_version_is_printed(cli: Cli) -> None:
    assert cli("version").out.startswith("hubline 0.")
    assert set(cli("version", "--json").json) == {"hubline", "python", "system"}


@pytest.mark.parametrize("args", [["--help"], ["tail", "--help"], ["version"]], ids=" ".join)
def test_help_and_version_load_neither_arrow_nor_drivers(args: list[str]) -> None:
    program = """
import sys
from hubline.cli.app import main
code = main(sys.argv[1:])
sys.exit(code or ", ".join({"pyarrow", "numpy", "psycopg", "sqlite3"} & set(sys.modules)) or None)
"""
    done = subprocess.run([sys.executable, "-c", program, *args], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "args",
    [
        ("hub", "show", "local:./a/b", f"Endpoint=sb://h;SharedAccessKey={PLANTED}"),
        (f"postgresql://u:{PLANTED}@h/db",),
        ("status", "local:./a/b", f"--stroe=postgresql://u:{PLANTED}@h/db"),
        ("send", "local:./a/b", "--generate", f"sig={PLANTED}"),
    ],
)
def test_address_in_the_wrong_place_is_not_repeated(cli: Cli, args: tuple[str, ...]) -> None:
    result = cli(*args)
    assert result.code == ExitCode.USAGE
    assert PLANTED not in result.out + result.err


def test_first_of_many_errors_is_reported_alone(
    cli: Cli, hub: str, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    async def unavailable(_self: LocalHub, partition: str) -> NoReturn:
        raise errors.HubUnavailable(f"partition {partition} is away")

    cli("hub", "grow", hub, "--partitions", "40")
    monkeypatch.setattr(LocalHub, "describe_partition", unavailable)
    result = cli("hub", "show", hub)
    assert (result.code, result.err) == (ExitCode.UNAVAILABLE, "hubline: partition 0 is away\n")
    assert [str(warning.message) for warning in recwarn] == []


def test_version_is_printed_as_a_flag(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUBLINE_VERSION", "1.2.3")
    result = cli("--version")
    assert (result.code, result.out) == (ExitCode.OK, cli("version").out)


def test_no_variable_of_its_own_is_the_twin_of_an_option() -> None:
    """A secret of one command that another takes for an option would be published by it."""
    source = "\n".join(path.read_text() for path in Path(hubline.__file__).parent.rglob("*.py"))
    own = set(re.findall(r'"(HUBLINE_[A-Z_]+)"', source))
    assert serve.KEY_VARIABLE in own
    twins = {parameter.envvar for command in COMMANDS.values() for parameter in command.params}
    assert own & twins == set()
    assert own - {"HUBLINE_SPARK_PYTHON"} <= set(VARIABLES)  # that one is between hubline's own processes


def test_key_of_the_server_is_not_sent_as_a_partition_key(cli: Cli, hub: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(serve.KEY_VARIABLE, PLANTED)
    assert cli("send", hub, stdin=b"event\n").code == ExitCode.OK
    assert cli("tail", hub, "--no-follow", "--json").json["partitionKey"] is None


def test_no_message_names_a_page_that_the_wheel_lacks() -> None:
    for file in Path(hubline.__file__).parent.rglob("*.py"):
        texts = [node.value for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Constant)]
        assert [text for text in texts if isinstance(text, str) and re.search(r"\bdocs/|\.md\b", text)] == [], file
