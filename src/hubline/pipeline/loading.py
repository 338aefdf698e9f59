"""A pipeline from its Python file. Problems have the line, and a file with a secret in it does not run."""

from __future__ import annotations

import re
import traceback
import warnings
from pathlib import Path
from types import ModuleType
from typing import Final

from hubline.errors import HublineError, PipelineInvalid, Problem
from hubline.pipeline.definition import Pipeline, loading
from hubline.secrets import redact, secrets_in
from hubline.user_files import import_file

MODULE_PREFIX: Final = "hubline_pipeline_"
"""Begins the name under which a file is imported: by it, functions of a pipeline's file are recognized."""

_MISSING: Final = re.compile(r"Pipeline\.(\w+)\(\) missing \d+ required keyword-only arguments?: (.+)")
_BARE: Final = re.compile(r"Pipeline\.(\w+)\(\) takes 1 positional argument but")


def load(path: Path) -> Pipeline:
    """The pipeline that a file defines. Raises PipelineInvalid with all that is wrong with it."""
    path = path.absolute()  # as tracebacks have it
    text = _text(path)
    problems = [*secrets_in(text, str(path)), *_syntax(text, path)]
    if problems:
        raise PipelineInvalid(problems)
    return _only_pipeline(path, _imported(path))


def _text(path: Path) -> str:
    problem = None
    try:
        if path.exists() and not path.is_file():
            raise PipelineInvalid([Problem(str(path), 0, "it is not a file", "name the Python file of the pipeline")])
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        problem = Problem(str(path), 0, "the file does not exist", "correct the path")
    except UnicodeDecodeError:
        problem = Problem(str(path), 1, "the file is not UTF-8 text", "save it as UTF-8")
    except OSError as error:
        problem = Problem(
            str(path), 0, f"the file cannot be read ({error.strerror})", "correct the path, or allow reading the file"
        )
    raise PipelineInvalid([problem])


def _syntax(text: str, path: Path) -> list[Problem]:
    try:
        # Not parsed alone: a return outside of a function is found by compiling. What it warns of, the import does.
        with warnings.catch_warnings(action="ignore"):
            compile(text, str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        return [Problem(str(path), error.lineno or 1, f"the line is not Python ({error.msg})", "correct the line")]
    except ValueError as error:  # null bytes
        return [Problem(str(path), 1, f"the file is not Python ({error})", "check whether it is the right file")]
    return []


def _imported(path: Path) -> ModuleType:
    try:
        with loading():
            return import_file(path, prefix=MODULE_PREFIX)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the file raises is reported with its line
        problem = _raised(path, error)
    raise PipelineInvalid([problem])


def _raised(path: Path, error: BaseException) -> Problem:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename == str(path)]
    line = (own[-1].lineno if own else None) or 1
    text = redact(" ".join(str(error).split()))
    if isinstance(error, HublineError):
        return Problem(str(path), line, text)  # says itself what to do
    what, fix = _of_option(text) or (f"importing the file raises {type(error).__name__} ({text})", "correct the line")
    if isinstance(error, ImportError):
        fix = "install it for this Python, or put it beside the file"
    beside = [frame for frame in frames if Path(frame.filename).is_relative_to(path.parent)]
    if beside and beside[-1].filename != str(path):
        what = f"{what}, in {beside[-1].filename}:{beside[-1].lineno}"
    return Problem(str(path), line, what, fix, error=error)


def _of_option(text: str) -> tuple[str, str] | None:
    """What Python says of options of a decorator, in words that a person can act on."""
    if match := _MISSING.search(text):
        return f"{match[1]} lacks {match[2].replace(chr(39), '')}", f"write @pipeline.{match[1]}({_EXAMPLES[match[1]]})"
    if match := _BARE.search(text):
        return f"{match[1]} has no source and no sink", f"write @pipeline.{match[1]}({_EXAMPLES[match[1]]})"
    return None


_HANDLER: Final = 'source="raw", sink="readings", schema="id long, celsius double"'
_EXAMPLES: Final = {"stage": 'source="raw", sink="readings"', "batch_stage": _HANDLER, "event_stage": _HANDLER}


def _only_pipeline(path: Path, module: ModuleType) -> Pipeline:
    found = {id(value): value for value in vars(module).values() if isinstance(value, Pipeline)}
    if len(found) == 1:
        return next(iter(found.values()))
    if not found:
        fix = 'write pipeline = hubline.Pipeline("NAME") in it'
        raise PipelineInvalid([Problem(str(path), 1, "the file defines no pipeline", fix)])
    line = max(each.where.line for each in found.values())
    what = f"the file defines {len(found)} pipelines"
    raise PipelineInvalid([Problem(str(path), line, what, "keep one of them in a file")])
