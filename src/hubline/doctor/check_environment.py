"""Whether this machine is fit for hubline: packages, files, limits and variables, before anything uses them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from hubline.addresses.did_you_mean import nearest
from hubline.doctor.findings import Finding, error, note, ok, warning
from hubline.sql.sqlite import SQLITE_VERSION_MIN

MIB: Final = 1024 * 1024
# Spark and a local hub write this much within minutes.
FREE_BYTES_WARNING: Final = 1024 * MIB
# SQLite fails in the middle of a transaction.
FREE_BYTES_ERROR: Final = 100 * MIB
# A process with a few partitions and a Spark session opens some hundreds; macOS allows 256 by default.
OPEN_FILES_MIN: Final = 1024
# A machine without a battery for its clock starts in 1970: no certificate and no signature is valid then.
YEAR_MIN: Final = 2026
# Between a machine and its own disk there is no difference but what a file system rounds.
FILE_SKEW_SECONDS: Final = 5.0
# On these, SQLite and the locks of local hubs cannot be trusted between machines.
NETWORK_FILE_SYSTEMS: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs"})

_REQUIREMENT: Final = re.compile(r"([\w.-]+)(?:\[[^\]]*\])?([^;]*)(?:;.*\bextra == [\"']([\w-]+)[\"'])?")
_SPECIFIER: Final = re.compile(r"(>=|<)\s*([\d.]+)")
# For those who work on hubline itself.
_DEVELOPER_EXTRAS: Final = frozenset({"dev", "docs", "peers"})


def install(extra: str = "") -> str:
    """How to install hubline with an extra, as everybody, and as one who has a clone of it."""
    extra = f"[{extra}]" if extra else ""
    return f"pip install 'hubline{extra}', or in a clone of hubline: pip install '.{extra}'"


def check_packages(requirements: Sequence[str], installed: Mapping[str, str]) -> list[Finding]:
    """The packages that hubline and its extras need, as its metadata has them, against the versions installed here."""
    missing: dict[str, list[str]] = {}
    wrong: dict[str, list[str]] = {}
    needs: dict[str, list[str]] = {}
    for requirement in requirements:
        name, versions, extra = _parsed(requirement)
        if extra in _DEVELOPER_EXTRAS:
            continue
        needs.setdefault(extra, []).append(name)
        if (found := installed.get(name)) is None:
            missing.setdefault(extra, []).append(f"{name} is not installed")
        elif not _satisfies(found, versions):
            wrong.setdefault(extra, []).append(f"{name} is {found}, and hubline needs {name}{versions}")
    findings = []
    for extra in needs:
        is_partial = bool(extra) and 0 < len(missing.get(extra, [])) < len(needs[extra])
        problems = [*wrong.get(extra, []), *(missing.get(extra, []) if is_partial or not extra else [])]
        if problems:
            where = f"extra {extra}" if extra else ""
            findings.append(error("environment.packages", "; ".join(problems), where=where, fix=install(extra)))
    if not findings:
        core = ", ".join(f"{name} {installed[name]}" for name in sorted(needs[""]))
        findings.append(ok("environment.packages", core))
    absent = sorted(extra for extra in needs if extra and len(missing.get(extra, [])) == len(needs[extra]))
    there = sorted(extra for extra in needs if extra and extra not in absent)
    message = f"extras installed: {', '.join(there) or 'none'}; not installed: {', '.join(absent) or 'none'}"
    return [*findings, note("environment.extras", message, fix=f"if you need one: {install('NAME')}" if absent else "")]


def _parsed(requirement: str) -> tuple[str, str, str]:
    match = _REQUIREMENT.match(requirement)
    assert match is not None  # noqa: S101 - written by the build of hubline itself
    return match[1], match[2].strip(), match[3] or ""


def _satisfies(version: str, versions: str) -> bool:
    found = _numbers(version)
    return all(
        found >= _numbers(bound) if comparison == ">=" else found < _numbers(bound)
        for comparison, bound in _SPECIFIER.findall(versions)
    )


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def check_spark_home(pyspark: str, home: str, jars: Collection[str]) -> list[Finding]:
    """Whether the Spark that `SPARK_HOME` names is the one that the package pyspark speaks to."""
    found = {match[1] for jar in jars if (match := re.fullmatch(r"spark-core_[\d.]+-(\d[\w.-]*)\.jar", jar))}
    if pyspark in found:
        return []
    there = f"holds Spark {', '.join(sorted(found))}" if found else "holds no Spark"
    message = f"the package pyspark is {pyspark}, and the directory of SPARK_HOME {there}: Spark would start from there"
    return [warning("environment.spark-home", message, where=home, fix="unset SPARK_HOME")]


def check_disk(free_bytes: int, where: str) -> list[Finding]:
    free = f"{free_bytes / MIB:,.0f} MiB free"
    fix = "delete files, or use another disk"
    if free_bytes < FREE_BYTES_ERROR:
        return [error("environment.disk", f"{free}: SQLite files and local hubs cannot grow", where=where, fix=fix)]
    if free_bytes < FREE_BYTES_WARNING:
        return [warning("environment.disk", f"{free}: soon used by Spark or a local hub", where=where, fix=fix)]
    return [ok("environment.disk", free, where=where)]


def check_sqlite(version: tuple[int, ...], *, refuses_others: bool, file_system: str, where: str) -> list[Finding]:
    """The version of SQLite, and whether a process that holds a lock in this directory keeps others out."""
    shown = ".".join(map(str, version))
    if version < SQLITE_VERSION_MIN:
        wanted = ".".join(map(str, SQLITE_VERSION_MIN[:2]))
        message = f"SQLite is {shown}: stores and tables in SQLite files need {wanted} or later"
        return [error("environment.sqlite", message, fix="use a newer Python, which brings a newer SQLite")]
    fix = "keep local hubs and SQLite files on a disk of this machine; several machines need Event Hubs and PostgreSQL"
    if not refuses_others:
        message = "locks do not keep another process out of a file: local hubs and SQLite files could be damaged"
        return [error("environment.locks", message, where=where, fix=fix)]
    if file_system in NETWORK_FILE_SYSTEMS:
        message = f"the directory is on a network file system ({file_system}), where locks may fail between machines"
        return [warning("environment.locks", message, where=where, fix=fix)]
    return [
        ok("environment.sqlite", f"SQLite {shown}"),
        ok("environment.locks", "locked files are locked", where=where),
    ]


def check_time(year: int, file_skew_seconds: float, where: str) -> list[Finding]:
    """Whether the clock can be right: it is compared with the year of this release, and with the clock of a disk."""
    fix = "set the clock by a time service (NTP)"
    if year < YEAR_MIN:
        message = f"the clock says that it is {year}: no certificate and no signature is valid"
        return [error("environment.clock", message, fix=fix)]
    if abs(file_skew_seconds) > FILE_SKEW_SECONDS:
        message = f"new files are {file_skew_seconds:+.0f} s off the clock: the disk is another machine's"
        return [warning("environment.clock", message, where=where, fix=fix)]
    return [ok("environment.clock", "the clock is plausible")]


def check_open_files(limit: int | None) -> list[Finding]:
    """The limit of open files; None is no limit."""
    if limit is not None and limit < OPEN_FILES_MIN:
        message = f"a process may open {limit} files: hubs, databases and Spark need more"
        return [warning("environment.open-files", message, fix=f"ulimit -n {4 * OPEN_FILES_MIN}")]
    return [ok("environment.open-files", f"up to {limit:,} open files" if limit else "no limit of open files")]


def check_variables(environment: Mapping[str, str], options: Collection[str], others: Sequence[str]) -> list[Finding]:
    """Which of the variables that hubline reads are set, and which HUBLINE_ ones it does not know. Shows no value."""
    known = {*options, *others}
    found = [name for name in others if environment.get(name)]
    unset = [name for name in others if not environment.get(name)]
    given = sorted(name for name in options if environment.get(name))
    message = f"set: {', '.join([*found, *given]) or 'none'}; not set: {', '.join(unset)}, and options (HUBLINE_...)"
    findings = [ok("environment.variables", message)]
    for name in sorted(environment):
        if name.startswith("HUBLINE_") and name not in known:
            wrong = f"{name} is set, and hubline does not read it{nearest(name, known)}"
            findings.append(warning("environment.unknown-variable", wrong, fix="unset it, or correct its name"))
    return findings


def file_system_of(path: Path, mounts: str) -> str:
    """The kind of file system that a path is on, by the text of `/proc/mounts`; nothing if that does not say."""
    fields = [line.split() for line in mounts.splitlines()]
    kinds = {Path(each[1].replace("\\040", " ")): each[2] for each in fields if len(each) > 2}
    return next((kinds[each] for each in (path, *path.parents) if each in kinds), "")
