"""``hubline doctor --environment``: what is wrong with a machine is found before anything fails."""

from __future__ import annotations

import re
import socket
from collections.abc import Sequence
from contextlib import closing
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from hubline.cli.exit_codes import ExitCode
from hubline.doctor import examine_environment
from hubline.doctor.check_environment import (
    MIB,
    check_disk,
    check_open_files,
    check_packages,
    check_spark_home,
    check_sqlite,
    check_time,
    file_system_of,
)
from hubline.doctor.findings import Finding, Severity
from tests.cli.conftest import Cli, Result

PLANTED = "hUnTeR2pLaNtEd"
REQUIREMENTS = metadata.requires("hubline") or []
INSTALLED = {"numpy": "2.0.0", "pyarrow": "20.0", "rich": "14.0", "typer": "0.30.1"}


def by_code(result: Result) -> dict[str, Any]:
    return {each["code"]: each for each in result.json_lines}


def severities(findings: Sequence[Finding]) -> dict[str, str]:
    return {each.code: each.severity.value for each in findings}


def test_a_machine_that_is_fit(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    monkeypatch.setenv("HUBLINE_STORE", f"postgresql://me:{PLANTED}@h/db")
    monkeypatch.setenv("HUBLINE_STROE", PLANTED)
    before = sorted(tmp_path.iterdir())
    result = cli("doctor", "--environment", "--json")
    assert result.code == ExitCode.WARNED
    assert result.err == ""
    found = by_code(result)
    assert {code for code, each in found.items() if each["severity"] in ("warning", "error")} == {
        "environment.unknown-variable"
    }
    assert "did you mean HUBLINE_STORE?" in found["environment.unknown-variable"]["message"]
    assert re.search(r"^set: .*\bHUBLINE_STORE;", found["environment.variables"]["message"])
    assert {"environment.java", "environment.spark", "environment.locks", "environment.packages"} <= set(found)
    assert "environment.spark-start" not in found
    assert PLANTED not in result.out

    monkeypatch.delenv("HUBLINE_STROE")
    shown = cli("doctor", "--environment")
    assert shown.code == ExitCode.OK
    assert shown.out.startswith("this machine, at ")
    assert sorted(path for path in tmp_path.iterdir() if path.name != "stdin") == before  # nothing is left behind


def test_a_machine_that_is_not(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jars = tmp_path / "spark/jars"
    jars.mkdir(parents=True)
    (jars / "spark-core_2.13-3.5.1.jar").touch()
    monkeypatch.setenv("SPARK_HOME", str(jars.parent))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("hubline.spark.sessions.java._package_folder", lambda: None)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "nowhere"))
    monkeypatch.setattr(examine_environment, "_START_SPARK", f"raise SystemExit('password={PLANTED} is wrong')")
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        monkeypatch.setattr(examine_environment, "SERVE_PORT", taken.getsockname()[1])
        result = cli("doctor", "--environment", "--start-spark", "--json")
    assert result.code == ExitCode.FAILED
    found = by_code(result)
    assert found["environment.java"]["severity"] == "error"
    assert "pip install '.[java]'" in found["environment.java"]["fix"]
    assert "holds Spark 3.5.1" in found["environment.spark-home"]["message"]
    assert "is wrong" in found["environment.spark-start"]["message"]
    assert found["environment.ports"]["severity"] == "note"
    refused = [each for each in result.json_lines if each["code"] == "environment.directory"]
    assert [(each["severity"], each["where"]) for each in refused] == [
        ("error", str(tmp_path / "nowhere")),
        ("ok", str(tmp_path)),
    ]
    assert PLANTED not in result.out


def test_a_check_that_fails_does_not_stop_the_others(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[Finding]:
        raise RuntimeError(PLANTED)

    monkeypatch.setattr(examine_environment, "_ports", broken)
    result = cli("doctor", "--environment", "--json")
    assert result.code == ExitCode.FAILED
    found = by_code(result)
    assert found["doctor.failed"]["message"].endswith("RuntimeError")
    assert "environment.variables" in found
    assert PLANTED not in result.out


def test_without_a_hub_and_a_store_it_says_what_to_give(cli: Cli) -> None:
    for args in ([], ["local:./data/orders"], ["--store", "memory:"]):
        result = cli("doctor", *args)
        assert result.code == ExitCode.USAGE
        assert "or --environment" in result.err
    assert cli("doctor", "--start-spark").code == ExitCode.USAGE


def test_locks_that_keep_nobody_out_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert examine_environment._refuses_others(str(tmp_path))
    assert not examine_environment._refuses_others("/nowhere")
    monkeypatch.setattr(examine_environment, "_TRY_LOCKS", "raise SystemExit(1)")  # another process gets them, too
    monkeypatch.chdir(tmp_path)
    assert severities(examine_environment._locks()) == {"environment.locks": "error"}


def test_packages_are_compared_with_what_hubline_needs() -> None:
    assert severities(check_packages(REQUIREMENTS, INSTALLED)) == {
        "environment.packages": "ok",
        "environment.extras": "note",
    }
    old, extras = check_packages(REQUIREMENTS, {**INSTALLED, "pyarrow": "18.1.0"})
    assert old.severity is Severity.ERROR
    assert old.message == "pyarrow is 18.1.0, and hubline needs pyarrow>=19.0.1"
    assert "blob" in extras.message
    assert "dev" not in extras.message.split()

    missing = {name: version for name, version in INSTALLED.items() if name != "rich"}
    assert check_packages(REQUIREMENTS, missing)[0].message == "rich is not installed"

    (partial, extras) = check_packages(REQUIREMENTS, {**INSTALLED, "psycopg": "3.3"})
    assert (partial.message, partial.where) == ("pgpq is not installed", "extra postgres")
    assert "pip install '.[postgres]'" in partial.fix
    assert "installed: postgres;" in extras.message


@pytest.mark.parametrize("version", ["3.5.6", "4.4.0"])
def test_a_spark_outside_of_the_range_is_an_error(version: str) -> None:
    installed = {**INSTALLED, "pandas": "2.3", "protobuf": "6.0", "pyspark": version}
    assert check_packages(REQUIREMENTS, installed)[0].message.startswith(f"pyspark is {version}, and hubline needs")


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        (check_disk(50 * MIB, "/"), {"environment.disk": "error"}),
        (check_disk(500 * MIB, "/"), {"environment.disk": "warning"}),
        (check_disk(5000 * MIB, "/"), {"environment.disk": "ok"}),
        (check_time(1970, 0, "/"), {"environment.clock": "error"}),
        (check_time(2026, 7, "/"), {"environment.clock": "warning"}),
        (check_time(2026, -1, "/"), {"environment.clock": "ok"}),
        (check_open_files(256), {"environment.open-files": "warning"}),
        (check_open_files(1024), {"environment.open-files": "ok"}),
        (check_open_files(None), {"environment.open-files": "ok"}),
        (check_spark_home("4.2.0", "/", ["spark-core_2.13-4.2.0.jar"]), {}),
        (check_spark_home("4.2.0", "/", []), {"environment.spark-home": "warning"}),
        (check_sqlite((3, 31, 1), refuses_others=True, file_system="", where="/"), {"environment.sqlite": "error"}),
        (check_sqlite((3, 45), refuses_others=False, file_system="", where="/"), {"environment.locks": "error"}),
        (check_sqlite((3, 45), refuses_others=True, file_system="nfs4", where="/"), {"environment.locks": "warning"}),
    ],
)
def test_limits(findings: Sequence[Finding], expected: dict[str, str]) -> None:
    assert severities(findings) == expected
    assert all(each.fix for each in findings if each.severity is not Severity.OK)


def test_the_file_system_of_a_path_is_that_of_the_nearest_mount() -> None:
    mounts = "/dev/sda / ext4 rw 0 0\nserver:/home /home/me\\040too nfs4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n"
    assert file_system_of(Path("/home/me too/work"), mounts) == "nfs4"
    assert file_system_of(Path("/home/you"), mounts) == "ext4"
    assert file_system_of(Path("/home"), "") == ""
