"""Spark's private attributes are used in one folder, where a new version of Spark is met."""

from __future__ import annotations

import ast
from pathlib import Path

import hubline

SOURCE = Path(hubline.__file__).parent
PRIVATE = ("_sc", "_gateway", "_ensure_initialized", "_active_spark_context", "py4j")


def test_no_module_outside_the_folder_touches_java() -> None:
    touched = {
        f"{path.relative_to(SOURCE)}:{number} {name}"
        for path in SOURCE.rglob("*.py")
        if path.parent != SOURCE / "spark" / "_jvm"
        for number, name in _names(path)
        if name.startswith("_j") or name in PRIVATE
    }
    assert touched == set()


def test_two_modules_of_the_folder_touch_it() -> None:
    """Starting Java (session), and what is public and takes 0.1 s or comes too late (query)."""
    used = {
        path.stem: {name for _, name in _names(path)} & {"_jvm", "_jdf", "_jsparkSession", "_jsq", "_jsc", "_gateway"}
        for path in (SOURCE / "spark" / "_jvm").glob("*.py")
    }
    assert {name: touched for name, touched in used.items() if touched} == {
        "session": {"_gateway", "_jvm", "_jsc", "_jsparkSession"},
        "query": {"_jvm", "_jdf", "_jsq"},
    }


def _names(path: Path) -> list[tuple[int, str]]:
    """Attributes that are read of another object than `self`, attributes by name, and packages that are imported."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Attribute(ast.Name("self")):
                pass
            case ast.Attribute(attr=name):
                found.append((node.lineno, name))
            case ast.Constant(str() as text) if text.isidentifier():
                found.append((node.lineno, text))
            case ast.ImportFrom(module=str() as module):
                found.append((node.lineno, module.partition(".")[0]))
            case ast.Import(names=names):
                found += [(node.lineno, each.name.partition(".")[0]) for each in names]
    return found
