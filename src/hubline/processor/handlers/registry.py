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
            raise ConfigError(f"{name} takes one function. Decorate it with @processor.{name}, without parentheses.")
        if name in self.handlers:
            raise ConfigError(f"{name} already has a handler. Call both functions from one handler.")
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
                "the processor has no handler of batches or events. Decorate one with @processor.on_batch or "
                "@processor.on_event."
            )
        if len(names) > 1:
            raise ConfigError("the processor has both on_batch and on_event. Register only one of them.")
        (name,) = names
        handler = self.handlers[name]
        if options.handler_timeout_seconds is not None and not handler.is_async:
            raise ConfigError(
                f"handler_timeout_seconds needs an async {name}, because a plain function runs in a thread and "
                "cannot be stopped. Make it async, or remove the option."
            )
        if options.heartbeat and name == "on_event":
            raise ConfigError(
                "heartbeat=True needs on_batch, because a heartbeat is an empty batch. Use on_batch, or remove "
                "the option."
            )
        if sink is None:
            self._check_without_sink(handler, options, has_dead_letter_sink=dead_letters is not None)
        elif dead_letters is not None:
            raise ConfigError("the sink stores the dead letters together with its rows. Leave out dead_letters.")
        elif options.heartbeat:
            raise ConfigError(
                "heartbeat=True does not work with a sink, because a heartbeat moves no checkpoint. Remove the "
                "option or the sink."
            )

    def _check_without_sink(self, handler: Handler, options: ProcessorOptions, *, has_dead_letter_sink: bool) -> None:
        if handler.takes_tx:
            raise ConfigError(
                "the handler takes tx, the transaction of a sink, but the processor has no sink. Pass "
                "sink=SqlSink(...)."
            )
        if options.preserve_key_order:
            raise ConfigError(
                "preserve_key_order needs a sink, which stores the dead letters that block a key. Pass "
                "sink=SqlSink(...)."
            )
        if options.on_failure == "dead_letter" and not has_dead_letter_sink and "on_dead_letter" not in self.handlers:
            raise ConfigError(
                'on_failure="dead_letter" needs a place for dead letters. Pass dead_letters=..., or decorate a '
                "function with @processor.on_dead_letter."
            )
