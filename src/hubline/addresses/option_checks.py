"""Options are checked where a person gives them: each value against the annotation of its option.

    @checked_options
    @dataclass(frozen=True, slots=True)
    class RetryPolicy:
        max_attempts: Count = 3

    RetryPolicy(max_attempts="5")
    # ConfigError: RetryPolicy: max_attempts must be a whole number, 1 or more, not '5': write max_attempts=5

`checked` does it for the arguments of a function, and `check_value` for a single value. What annotations may say is in
:mod:`.option_kinds`.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, ParamSpec, TypeVar

from hubline.addresses.annotations import evaluated
from hubline.addresses.did_you_mean import nearest_or_all
from hubline.addresses.option_kinds import Kind, Unfit, kind_of, place_of, remember_options
from hubline.errors import ConfigError
from hubline.secrets import shown_value
from hubline.text import sentences

P = ParamSpec("P")
T = TypeVar("T")

_TAKES_ANY_NAME: Final = inspect.Parameter.VAR_KEYWORD
_VARIADIC: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


_kind_of = functools.cache(kind_of)


def check_value(option: str, annotation: Any, value: object, *, subject: str = "") -> Any:
    """The value of an option of this annotation, made of what was given.

    Args:
        option: The option's name.
        annotation: What it takes, such as `int | None` or `Count`.
        value: What was given, of any type.
        subject: What the error calls the option. Default: its name.

    Raises:
        ConfigError: It says what is wrong with the value, what is allowed and, where that is plain, what to write.
    """
    return _checked(option, _kind_of(annotation), value, subject=subject or option)


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """Checks the arguments of a function or of a constructor against their annotations, before it is called.

    An argument of an unknown name is refused with the nearest right one. One that is missing is Python's to report.
    """
    kinds = functools.cache(lambda: _kinds(function))
    return _checked_by(kinds, function, owner=_owner(function))


def checked_options(options: type[T]) -> type[T]:
    """Checks what a dataclass is made with against the annotations of its fields."""
    kinds = functools.cache(lambda: _kinds(options))
    setattr(options, "__init__", _checked_by(kinds, options.__init__, owner=options.__name__))  # noqa: B010
    remember_options(options, kinds)
    return options


def _checked_by(kinds: Callable[[], Mapping[str, Kind]], function: Callable[P, T], *, owner: str) -> Callable[P, T]:
    signature = inspect.signature(function)
    takes_any_name = any(each.kind is _TAKES_ANY_NAME for each in signature.parameters.values())

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        unknown = [] if takes_any_name else [name for name in kwargs if name not in signature.parameters]
        if unknown:
            raise ConfigError(_unknown(owner, unknown[0], signature, kinds()))
        if (given := _given(signature, *args, **kwargs)) is None:
            return function(*args, **kwargs)  # there is one too many: Python says so
        if missing := _missing(signature, given.arguments):
            raise ConfigError(f"{owner} needs {missing}. Give {kinds().get(missing, 'a value')}.")
        for name, value in given.arguments.items():
            kind, parameter = kinds().get(name), signature.parameters[name]
            if kind is not None and parameter.kind not in _VARIADIC:
                has_default = parameter.default is not parameter.empty
                given.arguments[name] = _checked(name, kind, value, owner=owner, has_default=has_default)
        return function(*given.args, **given.kwargs)

    return call


def _checked(
    option: str, kind: Kind, value: object, *, subject: str = "", owner: str = "", has_default: bool = False
) -> Any:
    try:
        return kind.take(value)
    except Unfit as unfit:
        reason = str(unfit)
    named = subject or option
    if not reason:
        instead = kind.instead(option, value)
        if not instead and value is None and has_default:
            instead = ". Leave it out to use the default."
        reason = f"must be {kind}, not {shown_value(value)}{instead}"
    if reason.startswith("must "):
        reason = f"{named} {reason}"
    elif not subject and option not in reason.replace(" ", "_"):
        reason = f"{named}: {reason}"
    raise ConfigError(sentences(f"{owner}: {reason}" if owner else reason))


def _given(signature: inspect.Signature, *args: object, **kwargs: object) -> inspect.BoundArguments | None:
    try:
        return signature.bind_partial(*args, **kwargs)
    except TypeError:
        return None


def _missing(signature: inspect.Signature, given: Mapping[str, object]) -> str | None:
    """The first argument that has to be given and is not."""
    for name, parameter in signature.parameters.items():
        if name not in given and parameter.default is parameter.empty and parameter.kind not in _VARIADIC:
            return name
    return None


def _unknown(owner: str, name: str, signature: inspect.Signature, kinds: Mapping[str, Kind]) -> str:
    if place := place_of(name, kinds):
        return f"{owner} has no option {name}. Write {place}."
    known = [each for each in signature.parameters if each not in ("self", "cls")]
    return f"{owner} has no option {name}. {nearest_or_all(name, known)}"


def _kinds(annotated: Any) -> dict[str, Kind]:
    """What the fields of a class, or the arguments of a function, take."""
    namespace = vars(sys.modules[annotated.__module__])
    annotations = {name: evaluated(each, namespace) for name, each in inspect.get_annotations(annotated).items()}
    return {name: kind_of(annotation) for name, annotation in annotations.items() if name != "return"}


def _owner(function: Callable[..., object]) -> str:
    return function.__qualname__.rpartition("<locals>.")[2].removesuffix(".__init__")
