"""Options that take one of a few words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from hubline.addresses.did_you_mean import nearest
from hubline.errors import ConfigError
from hubline.secrets import shown

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
    allowed = " or ".join(filter(None, (", ".join(choices[:-1]), choices[-1])))
    if not isinstance(value, str):
        raise ConfigError(f"{option} must be {allowed}, not {type(value).__name__}")
    raise ConfigError(f"{option} must be {allowed}, not {shown(value)}{nearest(value, choices)}")
