"""A handler of events, bound to what each of its calls is given besides: context, transaction, time limit."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from hubline.model.events import Event, EventBatch
from hubline.processor.context import HandlerContext
from hubline.processor.handlers.handler import Handler

BoundHandler: TypeAlias = Callable[[Any], Any]
"""Takes a batch or an event. What it returns is to be awaited if the handler is async."""


def bind(
    handler: Handler, outer: HandlerContext, *, tx: object = None, timeout_seconds: float | None = None
) -> BoundHandler:
    """The handler as a function of events alone.

    Args:
        handler: The handler of batches or events.
        outer: The context of the session; each call has one of its own, until it returns.
        tx: The transaction, for a handler that takes it.
        timeout_seconds: An async handler that runs longer is cancelled, and has failed with TimeoutError.
    """
    if handler.takes_events_alone and timeout_seconds is None:
        return handler.function  # the quickest way: a thousand events may be called in one go
    return _async_call(handler, outer, tx, timeout_seconds) if handler.is_async else _plain_call(handler, outer, tx)


def _plain_call(handler: Handler, outer: HandlerContext, tx: object) -> BoundHandler:
    def call(given: EventBatch | Event) -> object:
        context = outer.given(given)
        try:
            returned = handler.invoke(given, context, tx)
        except BaseException:
            context.end()
            raise
        if returned is not None and inspect.isawaitable(returned):
            return _ending(context, returned)
        context.end()
        return returned

    return call


def _async_call(handler: Handler, outer: HandlerContext, tx: object, timeout_seconds: float | None) -> BoundHandler:
    async def call(given: EventBatch | Event) -> object:
        context = outer.given(given)
        try:
            running = handler.invoke(given, context, tx)
            return await (running if timeout_seconds is None else _within(timeout_seconds, running))
        finally:
            context.end()

    return call


async def _ending(context: HandlerContext, running: Awaitable[object]) -> object:
    """What a plain function returned to be awaited is still the handler's work."""
    try:
        return await running
    finally:
        context.end()


async def _within(seconds: float, running: Awaitable[object]) -> object:
    too_long = f"it ran longer than handler_timeout_seconds={seconds}"
    try:
        async with asyncio.timeout(seconds) as limit:
            returned = await running
    except Exception:
        if limit.expired():
            raise TimeoutError(too_long) from None
        raise
    if limit.expired():  # it caught its cancellation
        raise TimeoutError(too_long)
    return returned
