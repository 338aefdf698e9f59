"""Annotations as objects, in modules that have them as text."""

from __future__ import annotations

import types
from typing import Any, get_type_hints


def evaluated(annotation: Any, namespace: dict[str, Any]) -> Any:
    """The annotation as an object. One that cannot be evaluated stays text: its module may import it for type checkers
    alone."""
    if not isinstance(annotation, str):
        return annotation
    annotated = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return get_type_hints(annotated, globalns=namespace, include_extras=True)["it"]
    except Exception:  # noqa: BLE001 - whatever evaluating a person's annotation raises
        return annotation
