"""What was meant by an address where a sink is expected: the code to write, for the error."""

from __future__ import annotations

from pathlib import Path

from hubline.secrets import NOT_SHOWN, shown_value


def meant_sink(value: object) -> str | None:
    """The SqlSink that a database's address was meant to be. A password in it is not repeated."""
    if isinstance(value, Path):
        return f"SqlSink({f'sqlite:///{value}'!a}, table='TABLE')"
    if not isinstance(value, str):
        return None
    text = shown_value(value)
    return f"SqlSink({'ADDRESS' if text.endswith(NOT_SHOWN) else text}, table='TABLE')"


def meant_hub(value: object) -> str | None:
    """The hub that an address was meant to be, where an object has to be given."""
    if not isinstance(value, str):
        return None
    text = shown_value(value)
    return f"hubline.open_hub({'ADDRESS' if text.endswith(NOT_SHOWN) else text})"


def meant_dead_letters(value: object) -> str | None:
    """The DeadLetterHub that a hub, or its address, was meant to be."""
    if isinstance(value, str):
        return f"hubline.dead_letters.DeadLetterHub({meant_hub(value)})"
    return "hubline.dead_letters.DeadLetterHub(...)" if hasattr(value, "open_sender") else None
