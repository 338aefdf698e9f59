"""Loads the processor that ``--processor FILE:NAME`` names: a name in the user's Python file."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from hubline.errors import ConfigError, HublineError
from hubline.processor import Processor
from hubline.user_files import import_file


def load_processor(text: str) -> Processor:
    """Runs the file, as Python would import it, and gives the processor that the name stands for.

    The file is the user's own, named on the command line; data never names what is loaded.
    """
    file, _, name = text.rpartition(":")
    if not file or not name.isidentifier():
        raise ConfigError(f"--processor {ascii(text)[:80]}: write FILE:NAME, as in app.py:processor")
    path = Path(file).resolve()
    if not path.is_file():
        raise ConfigError(f"--processor {file}: there is no such file")
    found = getattr(_imported(path), name, None)
    if not isinstance(found, Processor):
        problem = "is not defined there" if found is None else f"is a {type(found).__name__}, not a hubline.Processor"
        raise ConfigError(f"--processor {text}: {name} {problem}")
    return found


def _imported(path: Path) -> ModuleType:
    try:
        with _not_running(path):
            return import_file(path, prefix="hubline_redrive_")
    except HublineError:
        raise
    except (Exception, SystemExit) as error:
        # What it says may quote an address, so it is shown on demand only.
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f" in line {lines[-1]}" if lines else ""
        raise ConfigError(
            f"--processor {path}: the file raised {type(error).__name__}{where}; run hubline --debug ... to see all"
        ) from error


@contextmanager
def _not_running(path: Path) -> Iterator[None]:
    """A file that runs its processor when it is imported would begin to process here, and never return."""

    def refuse(*_args: object, **_kwargs: object) -> NoReturn:
        raise ConfigError(
            f"{path} runs its processor when it is imported: put processor.run() below if __name__ == '__main__':"
        )

    before = Processor.run, Processor.run_async
    Processor.run = Processor.run_async = refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        Processor.run, Processor.run_async = before  # type: ignore[method-assign]
