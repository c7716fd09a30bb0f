"""Event loops in threads of their own, for callers without one: a notebook's loop is running already.

`ClientThread` keeps one client, with its pace and its connections, for as long as its owner lives.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from selfrag.engines.client import Client

T = TypeVar("T")
ClientT = TypeVar("ClientT", bound=Client)


class LoopThread:
    """An event loop that runs in a thread, which does not keep the process alive."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=_run, args=(self.loop,), name="selfrag-http", daemon=True
        )
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Return whether the loop runs; a child process has none of its parent's threads."""
        return self._thread.is_alive()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start work on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def close(self, client: Client) -> None:
        """Cancel what runs, close the client, stop the loop, and wait for the thread."""
        self.submit(_shut(client)).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=10.0)


async def _shut(client: Client) -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        if not task.cancelling():  # one that is may be telling the server just now
            task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await client.close()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


class ClientThread(Generic[ClientT]):
    """A client that any thread may call. It is made by the first call, and by the first one of a child process.

    A pickled copy makes a client of its own.
    """

    def __init__(self, make: Callable[[], ClientT]) -> None:
        """Make nothing yet; `make` gives the client."""
        self._make = make
        self._starting = threading.Lock()
        self._thread: LoopThread | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._make,)

    def call(self, work: Callable[[ClientT], Coroutine[Any, Any, T]]) -> T:
        """Return what work with the client gives; it is cancelled where the caller is interrupted."""
        with self._starting:
            if self._thread is None or not self._thread.is_alive:
                self._client = self._make()
                self._thread = LoopThread()
                finalizer = weakref.finalize(self, _leave, self._client, self._thread)
                finalizer.atexit = False  # the process frees everything
            future = self._thread.submit(work(self._client))
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Close the connections. A later call opens new ones."""
        with self._starting:
            thread, self._thread = self._thread, None
        if thread is not None and thread.is_alive:
            thread.close(self._client)


def _leave(client: Client, thread: LoopThread) -> None:
    """Close what an owner has left open, without waiting: any thread may collect garbage."""
    if thread.is_alive:
        closed = thread.submit(_shut(client))
        stop = thread.loop.stop
        closed.add_done_callback(lambda _: thread.loop.call_soon_threadsafe(stop))


async def run_together(works: list[Coroutine[Any, Any, T]]) -> list[T]:
    """Return what all works give; the first error ends the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
