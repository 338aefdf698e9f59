"""Options that take one of a few words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hubline.addresses.did_you_mean import nearest
from hubline.errors import ConfigError
from hubline.secrets import shown_value

Choice = TypeVar("Choice", bound=str)


def choice_of(value: object, choices: Sequence[Choice], *, option: str = "it") -> Choice:
    """One of the choices, as the caller wrote it. Raises ConfigError, which names the nearest one, for anything else.

    Args:
        value: What was given, of any type.
        choices: The words that are allowed, as `typing.get_args` of their `Literal` gives them.
        option: The name of the option, with which the error begins. Default: "it", where a caller puts the name before.
    """
    for choice in choices:
        if value == choice:
            return choice
    suggestion = nearest(value, choices) if isinstance(value, str) else ""
    raise ConfigError(f"{option} must be {one_of(choices)}, not {shown_value(value)}{suggestion}.")


def one_of(words: Sequence[str]) -> str:
    """The words for people: `fail, earliest or latest`."""
    return _joined(words, " or ")


def all_of(words: Sequence[str]) -> str:
    """The words for people: `fence, leave and close`."""
    return _joined(words, " and ")


def _joined(words: Sequence[str], last: str) -> str:
    return last.join(filter(None, (", ".join(words[:-1]), words[-1])))
