"""The docstring of a public name is enough to use it from an editor: it explains every argument."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import hubline

API = Path(__file__).parents[2] / "docs/reference/api"
SHOWN = re.compile(r"^::: (hubline[\w.]*)$", re.MULTILINE)
NAMES = sorted({name for page in API.glob("*.md") for name in SHOWN.findall(page.read_text())})
GIVEN_TO_HANDLERS = ("PartitionContext",)
"""Made by hubline alone: their own arguments are nobody's business."""
ENTRY = re.compile(r"^    \*{0,2}(\w+)(?: \(.*\))?:", re.MULTILINE)


def public() -> Iterator[tuple[str, Any]]:
    """Every name on the pages of the API, with the methods that a class has of its own."""
    for name in NAMES:
        found = resolved(name)
        if isinstance(found, ModuleType):
            for each in getattr(found, "__all__", ()):
                yield from with_methods(f"{name}.{each}", getattr(found, each))
        else:
            yield from with_methods(name, found)


def resolved(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        return getattr(importlib.import_module(module), attribute)


def with_methods(name: str, found: Any) -> Iterator[tuple[str, Any]]:
    if inspect.isclass(found) or inspect.isroutine(found):
        yield name, found
    if inspect.isclass(found):
        for each in vars(found):
            if not each.startswith("_") and callable(getattr(found, each)):
                yield f"{name}.{each}", getattr(found, each)


def is_made_by_users(found: type) -> bool:
    """Not a protocol, an error or a set of names."""
    has_arguments = dataclasses.is_dataclass(found) or "__init__" in vars(found)
    is_special = issubclass(found, BaseException | enum.Enum) or getattr(found, "_is_protocol", False)
    return has_arguments and not is_special and found.__name__ not in GIVEN_TO_HANDLERS


def undocumented(found: Any) -> list[str]:
    """What its docstring leaves open: arguments that it does not explain, or everything."""
    text = inspect.getdoc(found)
    if not text:
        return ["a docstring"]
    if inspect.isclass(found) and not is_made_by_users(found):
        return []
    explained = set(ENTRY.findall(text))
    return [name for name in inspect.signature(found).parameters if name != "self" and name not in explained]


def test_root_names_explain_every_argument() -> None:
    root = {id(getattr(hubline, name)) for name in hubline.__all__}
    gaps = {name: undocumented(found) for name, found in public() if id(found) in root}
    assert len(gaps) >= len(hubline.__all__)
    assert {name: gap for name, gap in gaps.items() if gap} == {}


def test_nine_in_ten_of_the_others_do() -> None:
    gaps = {name: undocumented(found) for name, found in public() if not name.startswith("hubline.testing.contracts")}
    assert len(gaps) > 150
    assert sum(not gap for gap in gaps.values()) >= 0.9 * len(gaps), {name: gap for name, gap in gaps.items() if gap}
