"""An async iterator read from plain code, also where an event loop runs already (a notebook). Knows no request."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import AsyncIterator, Callable, Generator
from typing import TypeVar

T = TypeVar("T")


def drain(source: Callable[[], AsyncIterator[T]]) -> Generator[T]:
    """The values of `source()`, iterated by an event loop on a thread of its own.

    Ends the loop when the iterator is closed or left early; an exception of the source is raised here.
    """
    arrived: queue.SimpleQueue[tuple[bool, T | BaseException | None]] = queue.SimpleQueue()
    loop = asyncio.new_event_loop()

    async def run() -> None:
        try:
            async for value in source():
                arrived.put((True, value))
        except BaseException as error:
            arrived.put((False, error))
            if not isinstance(error, Exception):
                raise
        else:
            arrived.put((False, None))

    task = loop.create_task(run())

    def serve() -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(asyncio.wait([task]))
            loop.run_until_complete(loop.shutdown_asyncgens())
        finally:
            loop.close()

    thread = threading.Thread(target=serve, name="teacher", daemon=True)
    thread.start()
    try:
        while True:
            more, value = arrived.get()
            if more:
                yield value  # type: ignore[misc]
            elif isinstance(value, BaseException):
                raise value
            else:
                return
    finally:
        with contextlib.suppress(RuntimeError):  # the loop has ended by itself
            loop.call_soon_threadsafe(task.cancel)
        thread.join(timeout=10.0)
