"""What an option takes, as its annotation says it: which values, how to say so, and what to write instead of others.

An annotation is an ordinary type, such as `int`, `Literal["stop", "dead_letter"] | None` or a protocol, and
`typing.Annotated` adds what a type does not say: a `Range`, a `Unit`, `Named`, `Valid`, `Parsed` and `Meant`.
"""

from __future__ import annotations

import collections.abc
import math
import numbers
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Final, Literal, Protocol, TypeAlias, Union, get_args, get_origin

from hubline.addresses.choices import all_of, one_of
from hubline.addresses.did_you_mean import nearest, nearest_name
from hubline.addresses.values import DURATION_SECONDS_MAX, byte_count, parse_duration
from hubline.errors import ConfigError
from hubline.secrets import shown_value

# What stands in annotations ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers that are allowed: at least one, or above one, and at most another one."""

    least: float | None = None
    above: float | None = None
    most: float | None = None

    def has(self, number: float) -> bool:
        return (
            (self.least is None or number >= self.least)
            and (self.above is None or number > self.above)
            and (self.most is None or number <= self.most)
        )

    def __str__(self) -> str:
        lower = f"{self.least:g} or more" if self.least is not None else f"above {self.above:g}"
        return lower if self.most is None or self.most > _SHOWN_LIMIT else f"{lower} and at most {self.most:g}"


_SHOWN_LIMIT: Final = 1_000_000
"""Greater limits are beyond anything that somebody would want, and no part of what is allowed to a reader."""


@dataclass(frozen=True, slots=True)
class Unit:
    """What a number counts: it stands in the error. Of `seconds`, a text such as `30s` is explained."""

    name: str


@dataclass(frozen=True, slots=True)
class Named:
    """What to call the values that are allowed, in place of the type's name: `an address`."""

    text: str


@dataclass(frozen=True, slots=True)
class Valid:
    """Raises ConfigError for values that are of the right type and are not allowed."""

    check: Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class Parsed:
    """Makes the option's value of what was given. Raises ConfigError where it cannot."""

    parse: Callable[[Any], object]


@dataclass(frozen=True, slots=True)
class Meant:
    """Knows a wrong value for which it is plain what was meant, and returns the code to write; else None."""

    suggest: Callable[[object], str | None]


Count: TypeAlias = Annotated[int, Range(least=1)]
Seconds: TypeAlias = Annotated[float, Unit("seconds"), Range(least=0, most=DURATION_SECONDS_MAX)]
PositiveSeconds: TypeAlias = Annotated[float, Unit("seconds"), Range(above=0, most=DURATION_SECONDS_MAX)]
ByteSize: TypeAlias = Annotated[
    Annotated[int, Range(least=1, most=2**63 - 1)] | str,
    Named("a number of bytes, 1 or more, or text such as '1MiB'"),
    Parsed(byte_count),
]


# Kinds -------------------------------------------------------------------------------------------------------------


class Unfit(Exception):
    """A value is not of the kind. The text is the whole reason, or empty: that it is of another kind says all."""


class Kind:
    """The values that an option takes. As text, how to call them: "a whole number, 1 or more"."""

    __slots__ = ()

    def take(self, value: object) -> object:
        """The option's value. Raises Unfit."""
        raise NotImplementedError

    def instead(self, option: str, value: object) -> str:  # noqa: ARG002
        """The end of the error's sentence, where it is plain what was meant: ". Write count=2"."""
        return ""


@dataclass(frozen=True, slots=True)
class _Anything(Kind):
    def take(self, value: object) -> object:
        return value

    def __str__(self) -> str:
        return "anything"


@dataclass(frozen=True, slots=True)
class _Number(Kind):
    is_whole: bool
    range: Range | None
    unit: str

    def take(self, value: object) -> object:
        number = _number_of(value)
        if number is None or not self._has(number):
            raise Unfit
        return number

    def instead(self, option: str, value: object) -> str:
        meant = self._meant(value)
        number = int(meant) if meant is not None and math.isfinite(meant) and meant == int(meant) else meant
        return "" if number is None or not self._has(number) else f". Write {option}={number}"

    def _has(self, number: int | float) -> bool:
        if isinstance(number, float) and (self.is_whole or not math.isfinite(number)):
            return False
        return self.range is None or self.range.has(number)

    def _meant(self, value: object) -> float | None:
        if isinstance(value, timedelta) and self.unit == "seconds":
            return value.total_seconds()
        if not isinstance(value, str):
            return value if isinstance(value, float) else None
        with suppress(ValueError):
            return float(value)
        with suppress(ConfigError):
            return parse_duration(value).total_seconds() if self.unit == "seconds" else None
        return None

    def __str__(self) -> str:
        name = "a whole number" if self.is_whole else "a number"
        counted = f"{name} of {self.unit}" if self.unit else name
        return f"{counted}, {self.range}" if self.range is not None else counted


def _number_of(value: object) -> float | None:
    """A number as Python's own: also one of NumPy's. A boolean is a number to Python, and as an option a slip."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    return float(value) if isinstance(value, numbers.Real) else None


_TRUE_OR_FALSE: Final = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True)
class _Truth(Kind):
    def take(self, value: object) -> object:
        if not isinstance(value, bool):
            raise Unfit
        return value

    def instead(self, option: str, value: object) -> str:
        if isinstance(value, str) and value.lower() in _TRUE_OR_FALSE:
            return f". Write {option}={_TRUE_OR_FALSE[value.lower()]}"
        return f". Write {option}={bool(value)}" if isinstance(value, int) and value in (0, 1) else ""

    def __str__(self) -> str:
        return "True or False"


@dataclass(frozen=True, slots=True)
class _Words(Kind):
    words: tuple[str, ...]

    def take(self, value: object) -> object:
        if not isinstance(value, str) or value not in self.words:
            raise Unfit
        return value

    def instead(self, option: str, value: object) -> str:  # noqa: ARG002
        return nearest(value, self.words) if isinstance(value, str) else ""

    def __str__(self) -> str:
        return one_of(self.words)


@dataclass(frozen=True, slots=True)
class _InstanceOf(Kind):
    """Objects of a class. Of a class of options, it knows what a dictionary or a part of them was meant to be."""

    of: type

    def take(self, value: object) -> object:
        if not isinstance(value, self.of):
            raise Unfit
        return value

    def instead(self, option: str, value: object) -> str:
        name = self.of.__name__
        if value is self.of:
            return f". Write {option}={name}(...)"
        if not is_options(self.of):
            return ""
        if isinstance(value, Mapping):
            return f". Write {option}={name}({', '.join(self._arguments(value))})"
        part = next((field for field, kind in kinds_of(self.of).items() if _is_part(kind, value)), None)
        return "" if part is None else f". Write {option}={name}({part}={type(value).__name__}(...))"

    def _arguments(self, given: Mapping[object, object]) -> Iterator[str]:
        """The dictionary as arguments, with the nearest right names."""
        known = kinds_of(self.of)
        for name, value in given.items():
            right = nearest_name(str(name), known)
            yield f"{right}={shown_value(value)}" if right else "..."

    def __str__(self) -> str:
        return "text" if self.of is str else _a(self.of.__name__)


@dataclass(frozen=True, slots=True)
class _WithMembers(Kind):
    """Objects that have all that a protocol asks for."""

    protocol: type

    def take(self, value: object) -> object:
        if value is None or isinstance(value, bool | int | float | str | bytes | list | tuple | dict | set):
            raise Unfit
        name = self.protocol.__name__
        if isinstance(value, type):
            raise Unfit(f"must be {_a(name)}, not {shown_value(value)}. Write {value.__name__}(...)")
        members = members_of(self.protocol)
        if missing := [member for member, is_method in members.items() if not _has(value, member, is_method)]:
            own = [each for each in dir(value) if not each.startswith("_") and each not in members]
            lacks = [f"{each} (it has {near})" if (near := nearest_name(each, own)) else each for each in missing]
            raise Unfit(
                f"must be {_a(name)}, and {shown_value(value)} lacks {all_of(lacks)}: "
                f"{self.protocol.__module__}.{name} says what each must do"
            )
        return value

    def __str__(self) -> str:
        return _a(self.protocol.__name__)


@dataclass(frozen=True, slots=True)
class _SequenceOf(Kind):
    item: Kind

    def take(self, value: object) -> object:
        if isinstance(value, str | bytes) or not isinstance(value, Sequence):
            raise Unfit
        for item in value:
            self.item.take(item)
        return value

    def instead(self, option: str, value: object) -> str:
        if isinstance(value, str):
            return f". Write {option}=[{shown_value(value)}]"
        return f". Write {option}=[...]" if isinstance(value, set | frozenset) else ""

    def __str__(self) -> str:
        return f"a list of {self.item}"


@dataclass(frozen=True, slots=True)
class _MappingOf(Kind):
    key: Kind
    value: Kind

    def take(self, value: object) -> object:
        if not isinstance(value, Mapping):
            raise Unfit
        for key, item in value.items():
            self.key.take(key)
            self.value.take(item)
        return value

    def __str__(self) -> str:
        return f"a dictionary of {self.key} and {self.value}"


@dataclass(frozen=True, slots=True)
class _Function(Kind):
    def take(self, value: object) -> object:
        if not callable(value):
            raise Unfit
        return value

    def __str__(self) -> str:
        return "a function"


@dataclass(frozen=True, slots=True)
class _OneOf(Kind):
    kinds: tuple[Kind, ...]
    takes_none: bool

    def take(self, value: object) -> object:
        if value is None and self.takes_none:
            return None
        reason = ""
        for kind in self.kinds:
            try:
                return kind.take(value)
            except Unfit as unfit:
                reason = reason or str(unfit)
        raise Unfit(reason)

    def instead(self, option: str, value: object) -> str:
        return next(filter(None, (kind.instead(option, value) for kind in self.kinds)), "")

    def __str__(self) -> str:
        words = [word for kind in self.kinds for word in (kind.words if isinstance(kind, _Words) else [str(kind)])]
        none = ["None"] if self.takes_none else []
        has_comma = any("," in word for word in words)  # "a whole number, 1 or more or None" would be hard to read
        return one_of([*none, *words] if has_comma else [*words, *none])


@dataclass(frozen=True, slots=True)
class _Refined(Kind):
    """Another kind, with what its annotation adds."""

    kind: Kind
    name: str = ""
    check: Callable[[Any], object] | None = None
    parse: Callable[[Any], object] | None = None
    suggest: Callable[[object], str | None] | None = None

    def take(self, value: object) -> object:
        try:
            taken = self.kind.take(value)
        except Unfit:
            if self.suggest is None or self.suggest(value) is None:
                raise
            raise Unfit from None  # what to write says more than what is missing
        try:
            if self.check is not None:
                self.check(taken)
            return taken if self.parse is None else self.parse(taken)
        except ConfigError as error:
            reason = str(error)
        raise Unfit(reason)

    def instead(self, option: str, value: object) -> str:
        code = None if self.suggest is None else self.suggest(value)
        return self.kind.instead(option, value) if code is None else f". Write {option}={code}"

    def __str__(self) -> str:
        return self.name or str(self.kind)


# From annotations to kinds -----------------------------------------------------------------------------------------


def kind_of(annotation: Any) -> Kind:
    """What an option of this annotation takes."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _annotated(arguments[0], arguments[1:])
    if origin in (Union, types.UnionType):
        kinds = [kind_of(each) for each in arguments if each is not type(None)]
        return _OneOf(tuple(kinds), takes_none=type(None) in arguments)
    if origin is Literal:
        return _Words(arguments)
    if origin is collections.abc.Sequence:
        return _SequenceOf(kind_of(arguments[0]))
    if origin is collections.abc.Mapping:
        return _MappingOf(kind_of(arguments[0]), kind_of(arguments[1]))
    if origin is collections.abc.Callable:
        return _Function()
    is_class = isinstance(annotation, type) and annotation is not Any  # which is a class to Python
    return _of_class(annotation) if is_class else _Anything()


def _of_class(annotation: type) -> Kind:
    if annotation is object:
        return _Anything()
    if annotation is bool:
        return _Truth()
    if annotation in (int, float):
        return _number(annotation, ())
    return _WithMembers(annotation) if getattr(annotation, "_is_protocol", False) else _InstanceOf(annotation)


def _annotated(annotation: Any, extras: Sequence[object]) -> Kind:
    kind = _number(annotation, extras) if annotation in (int, float) else kind_of(annotation)
    for extra in extras:
        match extra:
            case Named(text):
                kind = _Refined(kind, name=text)
            case Valid(check):
                kind = _Refined(kind, check=check)
            case Parsed(parse):
                kind = _Refined(kind, parse=parse)
            case Meant(suggest):
                kind = _Refined(kind, suggest=suggest)
    return kind


def _number(annotation: type, extras: Sequence[object]) -> Kind:
    limits = next((extra for extra in extras if isinstance(extra, Range)), None)
    unit = next((extra.name for extra in extras if isinstance(extra, Unit)), "")
    return _Number(annotation is int, limits, unit)


# Classes of options ------------------------------------------------------------------------------------------------

_kinds_by_class: dict[type, Callable[[], Mapping[str, Kind]]] = {}


def is_options(of: type) -> bool:
    """Whether it is a class of options, whose arguments are checked."""
    return of in _kinds_by_class


def kinds_of(of: type) -> Mapping[str, Kind]:
    """What each option of such a class takes."""
    return _kinds_by_class[of]()


def remember_options(of: type, kinds: Callable[[], Mapping[str, Kind]]) -> None:
    """Makes it a class of options."""
    _kinds_by_class[of] = kinds


def place_of(option: str, kinds: Mapping[str, Kind]) -> str | None:
    """Where an option stands that these have not: `lease=LeaseOptions(lease_seconds=...)`."""
    for outer, kind in kinds.items():
        for of in _options_in(kind):
            inner = kinds_of(of)
            if found := f"{option}=..." if option in inner else place_of(option, inner):
                return f"{outer}={of.__name__}({found})"
    return None


def _options_in(kind: Kind) -> Iterator[type]:
    """The classes of options that a kind takes objects of."""
    match kind:
        case _InstanceOf(of) if is_options(of):
            yield of
        case _OneOf(kinds):
            for each in kinds:
                yield from _options_in(each)
        case _Refined(inner):
            yield from _options_in(inner)


def _is_part(kind: Kind, value: object) -> bool:
    return isinstance(value, tuple(_options_in(kind)))


# Protocols ---------------------------------------------------------------------------------------------------------


def members_of(protocol: type) -> dict[str, bool]:
    """The names that a protocol asks for, and whether each is a method."""
    members: dict[str, bool] = {}
    for each in reversed(protocol.__mro__):
        if getattr(each, "_is_protocol", False) and each is not Protocol:
            named = {name: callable(value) for name, value in vars(each).items() if not name.startswith("_")}
            members |= named
    return members


def _has(value: object, member: str, is_method: bool) -> bool:
    return callable(getattr(value, member, None)) if is_method else hasattr(value, member)


def _a(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"
