"""``hubline serve`` as people and scripts meet it: what it prints, refuses and survives."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from hubline.addresses.hub_address import parse_hub
from hubline.cli.exit_codes import ExitCode
from tests.emulator.serving import HUBLINE, KEY, PATIENCE_SECONDS, serving

PLAIN_ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("HUBLINE_")}


def serve(*args: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A server that is expected to end by itself, since it cannot start."""
    return subprocess.run(
        [*HUBLINE, "serve", *args],
        env={**PLAIN_ENVIRONMENT, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )


def stopped(*args: str, number: int, environment: Mapping[str, str] | None = None) -> tuple[int, str, str]:
    """How a server ends that is sent a signal once it is ready, and all that it printed."""
    process = subprocess.Popen(
        [*HUBLINE, "serve", *args],
        env={**PLAIN_ENVIRONMENT, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(number)
        assert process.stderr is not None
        code = process.wait(PATIENCE_SECONDS)
        return code, first + process.stdout.read(), process.stderr.read()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_signal_ends_it_with_code_0_and_one_line_was_printed(tmp_path: Path, number: signal.Signals) -> None:
    code, printed, remarks = stopped(str(tmp_path / "new"), "--create", "telemetry:2", "--port", "0", number=number)
    assert code == ExitCode.OK
    assert remarks.endswith("\nstopping, and closing 0 client connections\n")
    (line,) = printed.splitlines()
    assert line.startswith("Endpoint=sb://localhost:")
    assert line.endswith(";EntityPath=telemetry;UseDevelopmentEmulator=true")
    parse_hub(line)  # hubline itself can read it


def test_configured_key_is_never_printed(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text(f"{KEY}\n")
    args = [str(tmp_path / "data"), "--create", "a:1", "--port", "0", "--key-name", "mine"]
    for more, environment in ((["--key-file", str(key_file)], {}), ([], {"HUBLINE_SERVE_KEY": KEY})):
        code, printed, remarks = stopped(*args, *more, number=signal.SIGTERM, environment=environment)
        assert code == ExitCode.OK
        assert KEY not in printed + remarks
        assert "SharedAccessKeyName=mine;SharedAccessKey=<the configured key>;" in printed
        assert "the key mine" in remarks


def test_json_tells_port_and_hubs(tmp_path: Path) -> None:
    args = [str(tmp_path), "--create", "b:1", "--create", "a", "--port", "0", "--json"]
    _, printed, _ = stopped(*args, number=signal.SIGTERM)
    reported = json.loads(printed)
    assert set(reported) == {"host", "port", "hubs"}
    assert [each["hub"] for each in reported["hubs"]] == ["a", "b"]
    addresses = [parse_hub(each["connectionString"]) for each in reported["hubs"]]
    assert [address.name for address in addresses] == ["a", "b"]


def test_each_hub_has_a_connection_string_that_clients_can_use(tmp_path: Path) -> None:
    args = [f"local:{tmp_path}", "--create", "a:1", "--create", "b:1", "--port", "0"]
    _, printed, _ = stopped(*args, number=signal.SIGTERM)
    assert [parse_hub(line).name for line in printed.splitlines()] == ["a", "b"]


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["--create", "a:0"], ExitCode.USAGE, "NAME:N"),
        (["--create", "a:many"], ExitCode.USAGE, "NAME:N"),
        (["--create", "../a:1"], ExitCode.USAGE, "not allowed"),
        (["--create", "a:5000"], ExitCode.USAGE, "1024"),
        ([], ExitCode.USAGE, "there are no hubs in"),
        (["--create", "a:1", "--host", "192.0.2.1"], ExitCode.USAGE, "Set a key"),
        (["--create", "a:1", "--key-file", "missing"], ExitCode.FAILED, "missing"),
        (["--create", "a:1", "--tls", "missing", "missing"], ExitCode.FAILED, "No such file"),
    ],
)
def test_what_cannot_be_served_is_reported_in_one_line(
    tmp_path: Path, args: list[str], code: ExitCode, says: str
) -> None:
    done = serve(str(tmp_path / "data"), "--port", "0", *args)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert done.stderr.startswith("hubline: ")
    assert done.stderr.count("\n") == 1
    assert says in done.stderr


def test_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = serve(str(tmp_path), "--create", "a:1", "--port", str(port))
    assert done.returncode == ExitCode.UNAVAILABLE
    assert str(port) in done.stderr


def test_existing_hub_keeps_its_partitions(tmp_path: Path) -> None:
    for count in (3, 7):
        with serving(tmp_path, "--create", f"telemetry:{count}") as server:
            assert server.stop() == 0
    assert len(list((tmp_path / "telemetry").glob("*.*.db"))) == 3
