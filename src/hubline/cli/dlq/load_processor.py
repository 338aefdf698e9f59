"""Loads the processor of ``--processor FILE:NAME``: a name in the user's Python file."""

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
    """Imports the file, and returns the processor of that name.

    The file is the user's own, from the command line. Data never decides which code is loaded.
    """
    file, _, name = text.rpartition(":")
    if not file or not name.isidentifier():
        raise ConfigError(
            f"--processor {ascii(text)[:80]} is not a name in a file. Write FILE:NAME, such as app.py:processor."
        )
    path = Path(file).resolve()
    if not path.is_file():
        raise ConfigError(f"--processor {file}: there is no such file. Correct the path.")
    found = getattr(_imported(path), name, None)
    if not isinstance(found, Processor):
        problem = "is not defined in this file" if found is None else f"is a {type(found).__name__}"
        raise ConfigError(f"--processor {text}: {name} {problem}. Give the name of a hubline.Processor.")
    return found


def _imported(path: Path) -> ModuleType:
    try:
        with _not_running(path):
            return import_file(path, prefix="hubline_redrive_")
    except HublineError:
        raise
    except (Exception, SystemExit) as error:
        # Its text may quote an address, so only --debug shows it.
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        where = f" in line {lines[-1]}" if lines else ""
        raise ConfigError(
            f"--processor {path}: the file raised {type(error).__name__}{where}. Run hubline --debug ... to see it."
        ) from error


@contextmanager
def _not_running(path: Path) -> Iterator[None]:
    """A file that runs its processor when it is imported would start processing here, and never return."""

    def refuse(*_args: object, **_kwargs: object) -> NoReturn:
        raise ConfigError(
            f"{path} runs its processor when it is imported. Put processor.run() below if __name__ == '__main__':."
        )

    before = Processor.run, Processor.run_async
    Processor.run = Processor.run_async = refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        Processor.run, Processor.run_async = before  # type: ignore[method-assign]
