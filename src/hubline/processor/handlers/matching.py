"""Which of a handler's parameters are given what: by name, else by annotation, else by position.

A parameter that has a default is the handler's own unless its name or its annotation says otherwise: `size=5` stays 5.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import Parameter
from typing import Annotated, Any, Final, Union, get_args, get_origin

from hubline.addresses.annotations import evaluated
from hubline.addresses.did_you_mean import nearest
from hubline.errors import ConfigError, HublineError
from hubline.model.dead_letters import DeadLetter
from hubline.model.events import Event, EventBatch
from hubline.model.ownership import ReleaseReason
from hubline.processor.context import PartitionContext
from hubline.processor.handlers.handler import HANDLER_ARGUMENTS, TX, Handler
from hubline.processor.handlers.transaction import AsyncTransaction
from hubline.secrets import shown_value
from hubline.sinks import Transaction
from hubline.text import counted

_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "batch": (EventBatch,),
    "event": (Event,),
    "partition": (PartitionContext,),
    "error": (HublineError,),
    "reason": (ReleaseReason,),
    "dead_letter": (DeadLetter,),
    TX: (Transaction, AsyncTransaction),
}
"""What each argument is."""

_POSITIONAL: Final = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_VARIADIC: Final = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def handler_of(name: str, function: Callable[..., Any]) -> Handler:
    """The handler, checked at registration for what would otherwise fail at the first event."""
    if not callable(function):
        raise ConfigError(f"{name} must be given a function, not {shown_value(function)}.")
    shown = getattr(function, "__qualname__", type(function).__qualname__)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise ConfigError(f"{name} cannot use the generator {shown} as a handler. Write it without yield.")
    call = getattr(function, "__call__", None)  # noqa: B004 - an object whose __call__ is async
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
    try:
        parameters = tuple(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature: it gets everything
        return Handler(function, is_async, tuple(range(len(HANDLER_ARGUMENTS[name]))))
    namespace = _globals(function)
    resolved = [each.replace(annotation=evaluated(each.annotation, namespace)) for each in parameters]
    matching = _Matching(name, shown, resolved)
    places, keywords = matching.call()
    return Handler(function, is_async, places, keywords, takes_tx=TX in matching.given.values())


class _Matching:
    """The argument of each parameter that is given one.

    Attributes:
        given: Names of arguments, by names of parameters.
    """

    def __init__(self, name: str, shown: str, parameters: Sequence[Parameter]) -> None:
        self._name = name
        self._shown = shown
        self._parameters = parameters
        self._ordinary = HANDLER_ARGUMENTS[name]
        self._offered = (*self._ordinary, TX) if name in ("on_batch", "on_event") else self._ordinary
        self.given: dict[str, str] = {}
        self._match_by_name()
        self._match_by_annotation()
        self._match_by_position()
        self._refuse_misspelled()

    def call(self) -> tuple[tuple[int, ...], tuple[tuple[str, int], ...]]:
        """What is given by position and what by keyword, as places among the arguments that are offered."""
        places: list[int] = []
        keywords: list[tuple[str, int]] = []
        is_behind_default = False
        for parameter in self._parameters:
            argument = self.given.get(parameter.name)
            if parameter.kind is Parameter.VAR_POSITIONAL and not is_behind_default:
                places += [self._offered.index(each) for each in self._left()]
            elif argument is None:
                is_behind_default = True
            elif parameter.kind in _POSITIONAL and not is_behind_default:
                places.append(self._offered.index(argument))
            elif parameter.kind is Parameter.POSITIONAL_ONLY:
                raise ConfigError(
                    f"{self._name} cannot pass {argument} to {self._shown}: it is positional-only, and follows a "
                    f"parameter with a default of its own. Move {parameter.name!r} before that one, or remove the /."
                )
            else:
                keywords.append((parameter.name, self._offered.index(argument)))
        if 0 not in (*places, *(place for _, place in keywords)):
            raise self._refusal()
        return tuple(places), tuple(keywords)

    def _match_by_name(self) -> None:
        for parameter in self._free():
            if parameter.name in self._offered:
                self._give(parameter, parameter.name)

    def _match_by_annotation(self) -> None:
        for parameter in self._free():
            for argument in (each for each in self._offered if each not in self.given.values()):
                if _names(parameter.annotation, _TYPES[argument]):
                    self._give(parameter, argument)
                    break

    def _match_by_position(self) -> None:
        for parameter in self._free():
            if parameter.default is not parameter.empty:
                continue
            if parameter.kind is Parameter.KEYWORD_ONLY:
                raise ConfigError(
                    f"{self._name} gives its handler no {parameter.name!r}: its keyword-only argument has neither a "
                    f"default nor one of these names. Use {self._signature()}."
                )
            if not self._left():
                raise self._refusal()
            self._give(parameter, self._left()[0])

    def _give(self, parameter: Parameter, argument: str) -> None:
        if not _may_be(parameter.annotation, _TYPES[argument]):
            what = " or ".join(each.__name__ for each in _TYPES[argument])
            raise ConfigError(
                f"{self._name} gives {self._shown} its {argument} ({what}) as {parameter.name!r}, which is annotated "
                f"as {inspect.formatannotation(parameter.annotation)}. Correct the annotation; or, if "
                f"{parameter.name!r} is the handler's own, give it a default and a name that is not one of "
                f"{self._signature()}."
            )
        self.given[parameter.name] = argument

    def _refuse_misspelled(self) -> None:
        """One whose name is nearly that of an argument would keep its default, and nobody would know why."""
        for parameter in self._free():
            if suggestion := nearest(parameter.name, self._left()):
                raise ConfigError(
                    f"{self._name} gives {self._shown} no {parameter.name!r}{suggestion}: an argument with another "
                    f"name keeps its default. Use {self._signature()}."
                )

    def _refusal(self) -> ConfigError:
        count = sum(each.kind in _POSITIONAL and each.default is each.empty for each in self._parameters)
        takes = counted(count, "argument") if count else "no arguments"
        if 0 < count <= len(self._ordinary):
            takes = f"no {self._ordinary[0]}"
        return ConfigError(
            f"{self._name} calls its handler with {self._signature()}, or the first of these, but "
            f"{self._shown} takes {takes}. Change its arguments."
        )

    def _free(self) -> list[Parameter]:
        return [each for each in self._parameters if each.kind not in _VARIADIC and each.name not in self.given]

    def _left(self) -> list[str]:
        """What no parameter is given yet. The transaction goes by its name or type alone."""
        return [argument for argument in self._ordinary if argument not in self.given.values()]

    def _signature(self) -> str:
        return f"({', '.join([*self._ordinary, *([TX] if TX in self.given.values() else [])])})"


# Annotations -------------------------------------------------------------------------------------------------------


def _globals(function: Callable[..., Any]) -> dict[str, Any]:
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if not hasattr(function, "__globals__"):
        function = getattr(type(function), "__call__", function)  # noqa: B004 - an object that is called
    return getattr(function, "__globals__", {})


def _alternatives(annotation: Any) -> Iterator[Any]:
    """The classes that an annotation allows; a name where it could not be evaluated; None for what tells nothing."""
    origin = get_origin(annotation)
    if isinstance(annotation, str):
        yield from (name.rpartition(".")[2] for name in re.findall(r"[A-Za-z_][\w.]*", annotation))
    elif annotation is Parameter.empty or annotation is Any:
        yield None
    elif origin is Annotated:
        yield from _alternatives(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for each in get_args(annotation):
            yield from _alternatives(each)
    else:
        known = origin or annotation
        yield known if isinstance(known, type) and not getattr(known, "_is_protocol", False) else None


def _names(annotation: Any, classes: Sequence[type]) -> bool:
    """Whether the annotation says one of these classes, or a subclass."""
    for each in _alternatives(annotation):
        if isinstance(each, type) and issubclass(each, tuple(classes)):
            return True
        if isinstance(each, str) and each in [known.__name__ for known in classes]:
            return True
    return False


def _may_be(annotation: Any, classes: Sequence[type]) -> bool:
    """Whether an object of one of these classes may be given where the annotation stands."""
    for each in _alternatives(annotation):
        if not isinstance(each, type) or issubclass(each, tuple(classes)):
            return True
        if any(issubclass(known, each) for known in classes):
            return True
    return False
