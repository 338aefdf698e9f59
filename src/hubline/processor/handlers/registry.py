"""The handlers of a processor: registered by decorator or override, checked before the start."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hubline.errors import ConfigError
from hubline.ports import DeadLetterSink
from hubline.processor.handlers.handler import HANDLER_ARGUMENTS, Handler
from hubline.processor.handlers.matching import handler_of
from hubline.processor.options import ProcessorOptions
from hubline.sinks import SqlSink


class HandlerRegistry:
    """One handler of each name at most.

    Attributes:
        handlers: What is registered, by name.
    """

    def __init__(self) -> None:
        self.handlers: dict[str, Handler] = {}

    def register(self, name: str, functions: tuple[Callable[..., Any], ...]) -> None:
        """Takes what a decorator was applied to."""
        if len(functions) != 1:
            raise ConfigError(f"{name} takes one function: decorate it with @processor.{name}, without parentheses")
        if name in self.handlers:
            raise ConfigError(f"{name} has a handler already: call both from one function")
        self.handlers[name] = handler_of(name, functions[0])

    def register_overrides(self, processor: object, base: type) -> None:
        """Takes the methods that a subclass overrides."""
        for name in HANDLER_ARGUMENTS:
            if getattr(type(processor), name) is not getattr(base, name):
                self.register(name, (getattr(processor, name),))

    def check(self, options: ProcessorOptions, sink: SqlSink | None, dead_letters: DeadLetterSink | None) -> None:
        """Raises ConfigError unless a processor with these options can run them."""
        names = [name for name in ("on_batch", "on_event") if name in self.handlers]
        if not names:
            raise ConfigError(
                "a processor needs a handler of batches or of events: decorate one with @processor.on_batch "
                "or @processor.on_event"
            )
        if len(names) > 1:
            raise ConfigError("events come by on_batch or by on_event: register one of them")
        (name,) = names
        handler = self.handlers[name]
        if options.handler_timeout_seconds is not None and not handler.is_async:
            raise ConfigError(
                f"handler_timeout_seconds needs an async {name}: a plain one runs in a thread, to its end"
            )
        if options.heartbeat and name == "on_event":
            raise ConfigError("a heartbeat is an empty batch: it needs on_batch")
        if sink is None:
            self._check_without_sink(handler, options, has_dead_letter_sink=dead_letters is not None)
        elif dead_letters is not None:
            raise ConfigError("the sink keeps the dead letters, together with its rows: leave out dead_letters")
        elif options.heartbeat:
            raise ConfigError("a heartbeat moves no checkpoint, and so cannot be committed: not with a sink")

    def _check_without_sink(self, handler: Handler, options: ProcessorOptions, *, has_dead_letter_sink: bool) -> None:
        if handler.takes_tx:
            raise ConfigError("tx is the transaction of a sink: give the processor one, sink=SqlSink(...)")
        if options.preserve_key_order:
            raise ConfigError("preserve_key_order needs a sink: it is by its dead letters that a key is known to wait")
        if options.on_failure == "dead_letter" and not has_dead_letter_sink and "on_dead_letter" not in self.handlers:
            raise ConfigError("on_failure=dead_letter needs a handler: decorate one with @processor.on_dead_letter")
