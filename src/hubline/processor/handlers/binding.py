"""A handler of events, bound to what each of its calls is given besides: context, transaction, time limit."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any, TypeAlias

from hubline.model.events import Event, EventBatch
from hubline.processor.context import HandlerContext
from hubline.processor.handlers.handler import Handler, cancelled_itself
from hubline.processor.handlers.thread import PartitionThread
from hubline.processor.handlers.time_limit import ran_too_long
from hubline.processor.handlers.transaction import AsyncTransaction, not_awaited, savepoint
from hubline.sinks import Transaction

BoundHandler: TypeAlias = Callable[[Any], Any]
"""Takes a batch or an event. What it returns is to be awaited if the handler is async."""


def bind(
    handler: Handler,
    outer: HandlerContext,
    thread: PartitionThread,
    *,
    tx: Transaction | None = None,
    timeout_seconds: float | None = None,
) -> BoundHandler:
    """The handler as a function of events alone.

    Args:
        handler: The handler of batches or events.
        outer: The context of the session; each call has one of its own, until it returns.
        thread: The partition's. A plain handler is called in it, and an async one uses the transaction there.
        tx: The transaction, for a handler that takes it. What a call does by it is undone if the call fails.
        timeout_seconds: An async handler that runs longer is cancelled, and has failed with TimeoutError.
    """
    if handler.takes_events_alone and timeout_seconds is None:
        return handler.function  # the quickest way: a thousand events may be called in one go
    if handler.is_async:
        call = _async_call(handler, outer, timeout_seconds)
        return call if tx is None else _async_in_savepoint(call, tx, thread)
    plain = _plain_call(handler, outer, tx)
    return plain if tx is None else _in_savepoint(plain, tx, thread)


def _plain_call(handler: Handler, outer: HandlerContext, tx: Transaction | None) -> BoundHandler:
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


def _async_call(
    handler: Handler, outer: HandlerContext, timeout_seconds: float | None
) -> Callable[..., Awaitable[object]]:
    async def call(given: EventBatch | Event, tx: AsyncTransaction | None = None) -> object:
        context = outer.given(given)
        try:
            running = handler.invoke(given, context, tx)
            return await (running if timeout_seconds is None else _within(timeout_seconds, running))
        finally:
            context.end()

    return call


def _in_savepoint(call: BoundHandler, tx: Transaction, thread: PartitionThread) -> BoundHandler:
    def call_in_savepoint(given: EventBatch | Event) -> object:
        with ExitStack() as stack:
            stack.enter_context(tx.savepoint())
            returned = call(given)
            if returned is not None and inspect.isawaitable(returned):
                return _leaving(stack.pop_all(), returned, thread)
        return returned

    return call_in_savepoint


def _async_in_savepoint(
    call: Callable[..., Awaitable[object]], tx: Transaction, thread: PartitionThread
) -> BoundHandler:
    async def call_in_savepoint(given: EventBatch | Event) -> object:
        own = AsyncTransaction(tx, thread.run)
        async with savepoint(tx, thread.run, thread.undo):
            try:
                returned = await call(given, own)
            except BaseException:
                own.end()
                raise
            if (left := own.end()) is not None:
                raise not_awaited(left)
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # it caught that; what it did can still be undone here
                raise cancelled_itself()
        return returned

    return call_in_savepoint


async def _ending(context: HandlerContext, running: Awaitable[object]) -> object:
    """What a plain function returned to be awaited is still the handler's work."""
    try:
        return await running
    finally:
        context.end()


async def _leaving(stack: ExitStack, running: Awaitable[object], thread: PartitionThread) -> object:
    """The same, within its savepoint."""
    try:
        returned = await running
    except BaseException as error:
        await thread.undo(stack.__exit__, type(error), error, error.__traceback__)
        raise
    await thread.run(stack.close)
    return returned


async def _within(seconds: float, running: Awaitable[object]) -> object:
    try:
        async with asyncio.timeout(seconds) as limit:
            returned = await running
    except Exception:
        if limit.expired():
            raise ran_too_long(seconds) from None
        raise
    if limit.expired():  # it caught its cancellation
        raise ran_too_long(seconds)
    return returned
