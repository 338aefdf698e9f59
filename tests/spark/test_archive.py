"""Java's classes, kept for the next start of Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hubline.cli.app import main
from hubline.spark.sessions import archive
from hubline.spark.sessions.archive import OPTIONS_VARIABLE, archive_of, with_archive
from hubline.spark.sessions.java import Java
from tests.conftest import QUICK_JAVA

# Whether Java has mapped a file of this name.
MAPPED = """
import sys
from pathlib import Path
from hubline.spark import archive, session
archive._FOLDER = Path(sys.argv[1])
spark = session("mapped", master="local[1]")
java = spark.sparkContext._gateway.proc.pid
print("mapped" if sys.argv[2] in Path(f"/proc/{java}/maps").read_text() else "not mapped")
spark.stop()
"""


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Java:
    monkeypatch.setattr(archive, "_FOLDER", tmp_path / "kept")
    home = tmp_path / "java"
    home.mkdir()
    (home / "release").write_text('JAVA_VERSION="17.0.9"')
    return Java(home, 17, "test")


def kept(java: Java) -> Path:
    path = archive_of(java)
    path.parent.mkdir()
    path.write_bytes(b"classes")
    return path


def test_without_an_archive_nothing_is_said(java: Java) -> None:
    assert with_archive(java, {}) == {}


def test_an_archive_is_used_beside_the_users_options(java: Java) -> None:
    path = kept(java)

    said = with_archive(java, {OPTIONS_VARIABLE: "-Xmx2g"})

    assert said[OPTIONS_VARIABLE].split(" ")[:2] == ["-Xmx2g", f'-XX:SharedArchiveFile="{path}"']


@pytest.mark.parametrize(
    "option", ["-XX:SharedArchiveFile=mine.jsa", "-XX:ArchiveClassesAtExit=mine.jsa", "-Xshare:off"]
)
def test_an_archive_of_the_users_own_stays(java: Java, option: str) -> None:
    kept(java)

    assert with_archive(java, {OPTIONS_VARIABLE: option}) == {}


def test_another_java_has_another_archive(java: Java) -> None:
    before = archive_of(java)

    (java.home / "release").write_text('JAVA_VERSION="17.0.10"')

    assert archive_of(java) != before


def test_a_folder_that_cannot_be_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(archive, "_FOLDER", tmp_path / "file" / "kept")

    assert main(["prepare"]) == 2
    assert f"{tmp_path}/file/kept cannot be written" in capsys.readouterr().err


@pytest.mark.timeout(400)
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks into the memory of a process")
def test_a_prepared_session_maps_what_was_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(archive, "_FOLDER", tmp_path / "kept")
    monkeypatch.setenv(OPTIONS_VARIABLE, QUICK_JAVA)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "spark-of-another-java.jsa").touch()

    assert main(["prepare"]) == 0
    (path,) = (tmp_path / "kept").iterdir()
    assert str(path) in capsys.readouterr().err
    command = [sys.executable, "-c", MAPPED, str(path.parent), path.name]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=os.environ)
    assert run.stdout == "mapped\n"
