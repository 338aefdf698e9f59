"""Plays a page as a reader would: docs/contributing/documentation.md says how pages are written for it.

python -m tests.docs.player docs/quickstart.md [--write]
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.conftest import QUICK_JAVA

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 400.0
"""Spark takes ten to start and to plan, and a busy machine many more."""
POLL_SECONDS = 0.05
QUIET_SECONDS = 4.0
"""When outputs are written into a page, a command has printed all if it is quiet for so long."""
CTRL_C: Final = "^C"
FIRST = ""
"""The terminal of blocks without a title."""

FENCE = re.compile(r"^(?P<indent> *)(?P<fence>```+)(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?.*$")
SKIPPED = re.compile(r"^ *<!-- not played: (.+) -->$")
READER_HAS = re.compile(r"^<!-- the reader has: (\w+)=([\w-]+) -->$", re.MULTILINE)
EXPORT = re.compile(r"export (\w+)=")
PORT = "localhost:5672"
HOME = "/home/you/telemetry"
"""What pages show for the folder that they are played in."""
REPLACED = re.compile(r"[^\n]*\r(?!\n)")
"""What a terminal shows no more, like a progress bar."""
KILLED = re.compile(r"^\S+: line \d+: +\d+ Killed.*$", re.MULTILINE)
"""What bash says when it is not interactive; for a person it is the one word."""
OWNER = re.compile(r"\b[\w.]+-\d+-[0-9a-f]{8}\b")

MASKS = [
    (re.compile(pattern), mask)
    for pattern, mask in (
        (r"\x1b\[[0-9;]*m", ""),
        (r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d([.,]\d+)?)?)?(Z|[+-]\d\d:?\d\d)?", "<time>"),
        (r"\b\d\d:\d\d(:\d\d([.,]\d+)?)?\b", "<time>"),
        (r"\b\d[\d,.]*( events)?/s\b", "<rate>"),
        (r"\b\d+(\.\d+)? ?(ms|s|min|m|h|d|seconds?|minutes?|hours?|days?)\b", "<duration>"),
        (r"(SharedAccessKey)=[\w.+/-]+=*", r"\1=<key>"),
        (OWNER.pattern, "<owner>"),
        (r"\b(?=[a-f-]*\d)[0-9a-f]{8,}(-[0-9a-f]{4,})*\b", "<id>"),
        (r"(localhost|127\.0\.0\.1):\d+", r"\1:<port>"),
        (r"[─━═┄-]{2,}", "--"),
        (r"\s+", " "),
    )
]


@dataclass
class Block:
    """A fenced block of a page."""

    line: int
    """Of its first line of text, from 0."""
    language: str
    title: str | None
    lines: list[str]
    indent: str
    skipped: str | None = None
    """Why it is not played."""


@dataclass
class Command:
    """A command of a console block, and its output as the page shows it."""

    line: int
    text: str
    shown: list[str] = field(default_factory=list)
    shown_at: int = 0

    @property
    def is_interrupted(self) -> bool:
        return CTRL_C in self.shown


class PageError(AssertionError):
    """The page says something else than what happens."""


def blocks_of(text: str) -> Iterator[Block]:
    above = ""
    block: Block | None = None
    closing = ""
    for number, line in enumerate(text.splitlines()):
        if block is not None:
            if line.strip() == closing:
                yield block
                block, above = None, ""
            else:
                block.lines.append(line.removeprefix(block.indent))
        elif match := FENCE.match(line):
            reason = SKIPPED.match(above)
            block = Block(number + 1, match["language"], match["title"], [], match["indent"], reason and reason[1])
            closing = match["fence"]
        elif line.strip():
            above = line


def commands_of(block: Block) -> list[Command]:
    """What it runs. Output before the first command belongs to the one that still runs in this terminal."""
    commands = [Command(block.line, "", shown_at=block.line)]
    for number, line in enumerate(block.lines, block.line):
        if commands[-1].text.endswith("\\") and not commands[-1].shown:
            commands[-1].text += f"\n{line}"
            commands[-1].shown_at = number + 1
        elif line.startswith("$ "):
            commands.append(Command(number, line[2:], shown_at=number + 1))
        else:
            commands[-1].shown.append(line)
    return commands[0 if commands[0].shown else 1 :]


# Comparing


def masked(line: str) -> str:
    for pattern, mask in MASKS:
        line = pattern.sub(mask, line)
    return line.strip()


def pattern_of(line: str) -> str:
    return ".*".join(re.escape(part) for part in masked(line).split("..."))


def are_as_shown(shown: Sequence[str], printed: Sequence[str]) -> bool:
    """Whether lines are what the page shows, in order."""
    pattern = "".join(r"(?:.*\n)*?" if line.strip() == "..." else f"{pattern_of(line)}\n" for line in shown)
    return re.fullmatch(pattern, "".join(f"{masked(line)}\n" for line in printed)) is not None


def are_in_any_order(shown: Sequence[str], printed: Sequence[str], *, is_all: bool = True) -> bool:
    """Whether each line that the page shows was printed, and, unless it shows `...`, no other."""
    left = [masked(line) for line in printed]
    for line in sorted(shown, key=lambda line: "..." in line):
        if line.strip() in ("...", ""):
            continue
        found = next((each for each in left if re.fullmatch(pattern_of(line), each)), None)
        if found is None:
            return False
        left.remove(found)
    return not is_all or "..." in (line.strip() for line in shown) or not any(left)


# Running


class Running:
    """A command that was started, in a process group of its own."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self._process, self.output = process, output

    def exit_code(self) -> int | None:
        return self._process.poll()

    def interrupt(self) -> None:
        os.killpg(self._process.pid, signal.SIGINT)

    def kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class Terminal:
    """Runs commands one after the other. They share a folder and variables, which commands may change."""

    def __init__(self, folder: Path, scratch: Path, variables: Mapping[str, str]) -> None:
        self._scratch = scratch
        self.variables = {**variables, "PWD": str(folder)}
        self.running: Running | None = None

    def start(self, command: str) -> Running:
        state, output = self._scratch / "state", Path(tempfile.mkstemp(dir=self._scratch)[1])
        with output.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", f"trap 'env -0 > {shlex.quote(str(state))}' EXIT\n{command}"],
                cwd=self.variables["PWD"], env=self.variables, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.running = Running(process, output)
        return self.running

    def ended(self) -> None:
        state = self._scratch / "state"
        if state.exists():
            self.variables = dict(each.split("=", 1) for each in state.read_text().split("\0") if each)
            state.unlink()
        self.running = None


class SparkRunning:
    """A command in the process for Spark."""

    def __init__(self, shell: SparkShell, output: Path) -> None:
        self._shell, self.output = shell, output

    def exit_code(self) -> int | None:
        return self._shell.exit_code()

    def interrupt(self) -> None:
        self._shell.process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        if self.exit_code() is None:
            self._shell.close()


class SparkShell:
    """One process that runs all commands that use Spark: Java takes longer to start than they do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        """Where its pages are played, one after the other: Java can't change its folder."""
        folder.mkdir()
        quick = os.environ.get(JAVA_OPTIONS, QUICK_JAVA)
        self._java = {JAVA_OPTIONS: f"{quick} -Dspark.ui.enabled=false"}  # others may have its ports
        variables = {**os.environ, **VARIABLES, "PYTHONPATH": str(ROOT), **self._java}
        self._exit_code: int | None = 0
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.docs.spark_shell"],
            cwd=folder, env=variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        os.set_blocking(self.process.stdout.fileno(), False)

    def start(self, words: list[str], variables: Mapping[str, str], output: Path) -> SparkRunning:
        assert self.process.stdin is not None
        self._exit_code = None
        order = {"words": words, "variables": {**variables, **self._java}, "output": str(output)}
        self.process.stdin.write(json.dumps(order).encode() + b"\n")
        self.process.stdin.flush()
        return SparkRunning(self, output)

    def exit_code(self) -> int | None:
        assert self.process.stdout is not None
        if self._exit_code is None:
            line = self.process.stdout.readline()
            self._exit_code = int(line) if line else self.process.poll()
        return self._exit_code

    def close(self) -> None:
        with self.process:  # closes its pipes
            os.killpg(self.process.pid, signal.SIGKILL)


VARIABLES = {
    "COLUMNS": "100",
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "PYTHONUNBUFFERED": "1",  # as on a terminal
    "TERM": "dumb",
}
JAVA_OPTIONS = "SPARK_SUBMIT_OPTS"
FOR_SPARK = re.compile(r"hubline run [\w .=:/-]+|python [\w.]+\.py[\w .=:/-]*")


class Player:
    """Plays one page in a folder."""

    def __init__(
        self,
        page: Path,
        folder: Path,
        scratch: Path,
        *,
        services: Mapping[str, str] = {},
        spark: Callable[[], SparkShell],
    ) -> None:
        self._page, self._folder, self._scratch, self._spark = page, folder, scratch, spark
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = str(free.getsockname()[1])
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HUBLINE_")}
        self._services = services
        self._variables = {**clean, **VARIABLES, "HUBLINE_PORT": self._port, "HOME": str(scratch), **services}
        self._terminals: dict[str, Terminal] = {}
        self._is_writing = False
        self.outputs: list[tuple[Command, list[str]]] = []
        """What commands printed, in order."""

    def play(self, *, is_writing: bool = False) -> None:
        """Raises PageError at the first difference."""
        self._is_writing = is_writing
        try:
            for block in blocks_of(self._page.read_text()):
                self._play(block)
        finally:
            for terminal in self._terminals.values():
                if terminal.running is not None:
                    terminal.running.kill()
            if is_writing:
                self._write()

    def _play(self, block: Block) -> None:
        if block.skipped is not None:
            return
        if block.language == "console":
            for command in commands_of(block):
                self._run(command, block.title or FIRST)
        elif block.title is not None:
            file = self._folder / block.title
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self._with_port("".join(f"{line}\n" for line in block.lines)))
        elif block.language == "python":
            raise self._error(block.line, 'a Python block needs a title="FILE.py", or "not played" with the reason')

    def _run(self, command: Command, name: str) -> None:
        if (export := EXPORT.match(command.text)) and export[1] in self._services:
            return
        if name not in self._terminals:
            (scratch := self._scratch / f"terminal-{len(self._terminals)}").mkdir()
            self._terminals[name] = Terminal(self._folder, scratch, self._variables)
        terminal = self._terminals[name]
        if command.text:
            if terminal.running is not None:
                raise self._error(command.line, "the last command still runs in this terminal")
            running = self._started(terminal, self._with_port(command.text))
        elif terminal.running is not None:
            running = terminal.running
        else:
            raise self._error(command.line, "no command runs in this terminal")
        if name != FIRST and not command.is_interrupted and self._goes_on(running, command):
            return
        self._finish(running, command)
        terminal.ended()

    def _started(self, terminal: Terminal, text: str) -> Running | SparkRunning:
        if FOR_SPARK.fullmatch(text) and self._needs_spark(shlex.split(text)):
            output = Path(tempfile.mkstemp(dir=self._scratch)[1])
            return self._spark().start(shlex.split(text), terminal.variables, output)
        return terminal.start(text)

    def _needs_spark(self, words: list[str]) -> bool:
        return words[0] == "hubline" or "hubline.spark.session(" in (self._folder / words[1]).read_text()

    def _goes_on(self, running: Running | SparkRunning, command: Command) -> bool:
        """Waits for what it prints at first. Whether it then still runs."""
        self._wait(running, command, lambda printed: are_in_any_order(command.shown, printed, is_all=False))
        if running.exit_code() is not None:
            return False
        self.outputs.append((command, self._printed(running)))
        if not self._is_writing and not are_in_any_order(command.shown, self._printed(running)):
            raise self._error(command.shown_at, "other output than shown", command.shown, self._printed(running))
        return True

    def _finish(self, running: Running | SparkRunning, command: Command) -> None:
        is_shown = are_as_shown
        before: list[str] = []
        if command.is_interrupted:
            is_shown = are_in_any_order
            expected = command.shown[: command.shown.index(CTRL_C)]
            self._wait(running, command, lambda printed: are_in_any_order(expected, printed, is_all=False))
            before = [*self._printed(running), CTRL_C]
            if running.exit_code() is not None:
                raise self._error(command.line, f"`{command.text}` ended by itself", command.shown, before[:-1])
            running.interrupt()
        self._wait(running, command, lambda _: False, is_to_end=True)
        printed = self._printed(running)
        shown = [line for line in command.shown if line != CTRL_C]
        self.outputs.append((command, [*before, *printed[max(len(before) - 1, 0) :]]))
        if not self._is_writing and not is_shown(shown, printed):
            raise self._error(command.shown_at, "other output than shown", command.shown, printed)
        if (code := running.exit_code()) != 0 and not shown and not self._is_writing:
            raise self._error(command.line, f"exit code {code} of `{command.text}`", [], printed)

    def _wait(
        self,
        running: Running | SparkRunning,
        command: Command,
        is_enough: Callable[[list[str]], bool],
        *,
        is_to_end: bool = False,
    ) -> None:
        deadline = time.monotonic() + SECONDS_MAX
        size, quiet_since = -1, time.monotonic()
        while running.exit_code() is None:
            printed = self._printed(running)
            if self._is_writing and not is_to_end:
                if len(printed) != size:
                    size, quiet_since = len(printed), time.monotonic()
                elif size and time.monotonic() > quiet_since + QUIET_SECONDS:
                    return
            elif is_enough(printed):
                return
            if time.monotonic() > deadline:
                running.kill()
                raise self._error(command.shown_at, "waited too long for this output", command.shown, printed)
            time.sleep(POLL_SECONDS)

    def _printed(self, running: Running | SparkRunning) -> list[str]:
        """Lines, with the names that pages show for what is the player's."""
        text = running.output.read_bytes().decode(errors="replace").replace(str(self._folder), HOME)
        text = KILLED.sub("Killed", text).replace(f"localhost:{self._port}", PORT)
        return REPLACED.sub("", text).splitlines()

    def _with_port(self, text: str) -> str:
        return text.replace(PORT, f"localhost:{self._port}")

    def _error(self, line: int, what: str, shown: Sequence[str] = (), printed: Sequence[str] = ()) -> PageError:
        text = f"{name_of(self._page)}:{line + 1}: {what}"
        if shown or printed:
            text = "\n".join([f"{text}\n--- shown", *shown, "--- printed", *printed])
        return PageError(text)

    def _write(self) -> None:
        """Puts outputs into the page, where they are not as shown."""
        lines = self._page.read_text().splitlines()
        for command, printed in reversed(self.outputs):
            compare = are_in_any_order if command.is_interrupted else are_as_shown
            if not compare(command.shown, printed):
                text = [OWNER.sub("laptop-4242-1a2b3c4d", line.rstrip()) for line in printed]
                lines[command.shown_at : command.shown_at + len(command.shown)] = text
        self._page.write_text("".join(f"{line}\n" for line in lines))


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else page.name


# Services


@contextmanager
def event_hub(folder: Path) -> Iterator[str]:
    """A connection string of a hub `orders` with 2 partitions of 10 events."""
    from tests.emulator.serving import serving
    from tests.emulator.test_python_sdk import send

    with serving(folder, "--create", "orders:2") as server:
        hub = server.connection_string("orders")
        for partition in ("0", "1"):
            send(hub, [f'{{"order": {number}}}' for number in range(10)], partition_id=partition)
        yield hub


def services_of(page: Path, folder: Path, stack: ExitStack, start: Mapping[str, Callable[[], str]]) -> dict[str, str]:
    """The variables that the page asks for."""
    from hubline.addresses.blob_address import EMULATOR_KEY

    found: dict[str, str] = {}
    for name, kind in READER_HAS.findall(page.read_text()):
        if kind == "event-hub":
            found[name] = stack.enter_context(event_hub(folder / "served"))
        elif kind == "container":
            found[name] = f"{start[kind]()}?key=env:STORAGE_KEY"
            found["STORAGE_KEY"] = EMULATOR_KEY.reveal()
        else:
            found[name] = start[kind]()
    return found


def main(arguments: Sequence[str]) -> None:
    from tests.support.azurite import azurite
    from tests.support.npm import event_hubs_sdk
    from tests.support.postgres import PostgresServer

    pages = [Path(each).resolve() for each in arguments if not each.startswith("--")]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        shells: list[SparkShell] = []

        def spark() -> SparkShell:
            if not shells:
                shells.append(SparkShell(folder / "spark"))
                stack.callback(shells[0].close)
            return shells[0]

        start = {
            "postgresql": lambda: stack.enter_context(PostgresServer.start(syncs=False)).new_database().reveal(),
            "event-hubs-for-node": lambda: str(event_hubs_sdk()),
            "container": lambda: stack.enter_context(azurite()).new_container(),
        }
        for page in pages:
            play(page, folder / page.stem, start, spark, is_writing="--write" in arguments)
            print(f"{name_of(page)}: as shown")


def play(
    page: Path,
    scratch: Path,
    start: Mapping[str, Callable[[], str]],
    spark: Callable[[], SparkShell],
    *,
    is_writing: bool = False,
) -> None:
    """Plays a page in an empty folder."""
    import shutil

    scratch.mkdir()
    folder = scratch / "folder"
    if needs_spark(page):
        folder = spark().folder
        for each in folder.iterdir():
            shutil.rmtree(each) if each.is_dir() else each.unlink()
    else:
        folder.mkdir()
    with ExitStack() as stack:
        services = services_of(page, scratch, stack, start)
        Player(page, folder, scratch, services=services, spark=spark).play(is_writing=is_writing)


def needs_spark(page: Path) -> bool:
    """Whether it has a command that the process for Spark runs."""
    text = page.read_text()
    return "hubline.spark.session(" in text or re.search(r"^\$ hubline run ", text, re.MULTILINE) is not None


if __name__ == "__main__":
    main(sys.argv[1:])
