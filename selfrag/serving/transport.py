"""Around every route: keys, sizes, errors in OpenAI's shape, and streams that end with their client."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from prometheus_client import Counter
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from selfrag.errors import SearchError, UserError
from selfrag.rendering import cut
from selfrag.serving.requests import Fault
from selfrag.untrusted import printable

LOG = logging.getLogger("selfrag.serving")
OPEN = ("/", "/health")
"""Paths that need no key: the page holds nothing of the corpus."""
PING = 15.0
"""Seconds of silence after which a stream sends a comment, so that proxies keep it open."""
T = TypeVar("T")


class Guard:
    """Refuses requests without a key, and those that are too large, before anything reads them."""

    def __init__(self, app: ASGIApp, keys: Iterable[str], most: int, counter: Counter) -> None:
        self._app, self._most, self._counter = app, most, counter
        self._keys = [hashlib.sha256(key.encode()).digest() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "other")
                self._counter.labels(route, str(message["status"])).inc()
            await send(message)

        read = 0

        async def limited() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > self._most:
                raise self._too_large()
            return message

        headers = dict(scope["headers"])
        length = headers.get(b"content-length", b"0")
        app: ASGIApp = self._app
        if scope["path"] not in OPEN and not self._allowed(headers.get(b"authorization", b"")):
            app = refusal(Fault(401, "no valid API key; send `Authorization: Bearer KEY`", "invalid_api_key"))
        elif length.isdigit() and int(length[:20]) > self._most:
            app = refusal(self._too_large())
        await app(scope, limited, counted)

    def _allowed(self, header: bytes) -> bool:
        if not self._keys:
            return True
        scheme, _, key = header.partition(b" ")
        given = hashlib.sha256(key.strip()).digest()
        found = [hmac.compare_digest(given, known) for known in self._keys]  # all of them, whichever fits
        return scheme.lower() == b"bearer" and any(found)

    def _too_large(self) -> Fault:
        return Fault(413, f"the body has more than {self._most:,} bytes; send less", "too_large")


def refusal(fault: Fault) -> JSONResponse:
    """The reply that tells a fault."""
    return JSONResponse(fault.body(), fault.status_code, headers=fault.headers)


def as_fault(error: Exception) -> Fault:
    """What a client is told about an error."""
    if isinstance(error, Fault):
        return error
    if isinstance(error, RequestValidationError):
        return Fault(400, _one_line(error.errors()))
    if isinstance(error, HTTPException):
        return Fault(error.status_code, cut(str(error.detail), 200))
    if isinstance(error, SearchError):
        return Fault(502, printable(str(error)), "search_failed")
    if isinstance(error, UserError):
        return Fault(400, printable(str(error)))
    LOG.error("a request failed", exc_info=error)
    return Fault(500, "the server failed; its log says why", "internal_error")


def _one_line(errors: Sequence[Any]) -> str:
    """The innermost error of a request that does not fit."""
    first = max(errors, key=lambda error: len(error["loc"]))
    place = ".".join(str(part) for part in first["loc"] if part != "body")
    message = str(first["msg"]).removeprefix("Value error, ")
    return cut(" ".join(f"{place}: {message}".lstrip(": ").split()), 300)


class EventStream(Response):
    """A stream of server-sent events that ends its work when the client leaves."""

    def __init__(self, release: Callable[[], None], events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self.headers["content-type"] = "text/event-stream; charset=utf-8"
        del self.headers["content-length"]
        self._release, self._events = release, events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until they end or the client leaves."""

        async def stream() -> None:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            async with aclosing(self._events) as events:
                async for event in events:
                    await send({"type": "http.response.body", "body": event, "more_body": True})
            await send({"type": "http.response.body", "body": b""})

        try:
            await while_connected(receive, stream)
        finally:
            self._release()


async def while_connected(receive: Receive, work: Callable[[], Awaitable[T]]) -> T | None:
    """What `work` returns; None, with the work cancelled, if the client leaves before."""
    working = asyncio.ensure_future(work())
    leaving = asyncio.ensure_future(_left(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def encoded(events: AsyncGenerator[Mapping[str, Any], None], done: bytes) -> AsyncGenerator[bytes, None]:
    """Server-sent events, with a comment after each silence of `PING` seconds."""
    async with aclosing(events) as found:
        waiting = asyncio.ensure_future(anext(found, None))
        try:
            while True:
                ready, _ = await asyncio.wait({waiting}, timeout=PING)
                if not ready:
                    yield b": waiting\n\n"
                    continue
                event = waiting.result()
                if event is None:
                    break
                named = f"event: {event['type']}\n" if "type" in event else ""
                yield f"{named}data: {json.dumps(event, ensure_ascii=True)}\n\n".encode()
                waiting = asyncio.ensure_future(anext(found, None))
        finally:
            if not waiting.done():
                waiting.cancel()
                await asyncio.wait({waiting})
    if done:
        yield done
