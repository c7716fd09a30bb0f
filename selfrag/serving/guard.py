"""What every request passes before a route sees it: host and origin, key, size, time, and errors in OpenAI's shape."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import Counter
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from selfrag.common.errors import ContextLengthError, SearchError, UserError, count_of
from selfrag.common.untrusted import clean, cut
from selfrag.common.validation import describe_errors
from selfrag.serving.requests import Fault

LOG = logging.getLogger("selfrag.serving")
OPEN_PATHS = ("/", "/health")
"""Paths that need no key: the page holds nothing of the corpus."""


DRAIN_BYTES, DRAIN_SECONDS = 16 << 20, 5.0
"""What is read of a refused body before the connection is closed, which would cut the reply off."""


@dataclass(frozen=True, slots=True)
class Access:
    """Who may ask.

    A server without keys answers only under names that no other site can take: a page in the user's browser could
    otherwise let its own name point to this machine and read the corpus (DNS rebinding).

    Attributes:
        keys: API keys, one of which a request must bring; none for a server without keys.
        hosts: names under which a server without keys answers, beside `localhost` and loopback addresses.
        any_address: whether it also answers under any IP address; an address cannot be rebound.
    """

    keys: Sequence[str] = ()
    hosts: frozenset[str] = frozenset()
    any_address: bool = False

    def allows_host(self, host: str) -> bool:
        """Return whether a server without keys answers under a host name, without its port."""
        name = host.strip("[]").rstrip(".").lower()
        if name == "localhost" or name.endswith(".localhost") or name in self.hosts:
            return True
        try:
            address = ip_address(name)
        except ValueError:
            return False
        return self.any_address or address.is_loopback


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Bounds of one request.

    Attributes:
        body: most bytes of its body.
        body_seconds: seconds in which the body must have arrived.
        send_seconds: seconds in which a client must take a piece of the reply.
    """

    body: int = 4 << 20
    body_seconds: float = 30.0
    send_seconds: float = 60.0


class Guard:
    """Refuses requests of other sites, without a key, too large or too slow, before a route reads them."""

    def __init__(
        self, app: ASGIApp, access: Access, limits: RequestLimits, counter: Counter
    ) -> None:
        self._app = app
        self._access = access
        self._limits = limits
        self._counter = counter
        self._keys = [hashlib.sha256(key.encode()).digest() for key in access.keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        body = _BoundedBody(receive, self._limits)

        async def send_in_time(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", "other")
                self._counter.labels(route, str(message["status"])).inc()
            ends = message["type"] == "http.response.body" and not message.get(
                "more_body", False
            )
            async with asyncio.timeout(self._limits.send_seconds):
                if ends and not body.complete:
                    await send({**message, "more_body": True})
                    await body.drain()
                    message = {"type": "http.response.body"}
                await send(message)

        fault = self._fault(scope)
        app = self._app if fault is None else refusal(fault)
        await app(scope, body.receive, send_in_time)

    def _fault(self, scope: Scope) -> Fault | None:
        """Return why a request is refused by its headers alone, or None."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        names = [name for name, _ in scope["headers"]]
        for name in (b"host", b"origin", b"authorization"):
            if names.count(name) > 1:
                line = f"more than one {name.decode()} header; send one"
                return Fault(400, line, "repeated_header")
        if not self._keys:
            for name, what in ((b"host", "host"), (b"origin", "origin")):
                value = headers.get(name, b"").decode("latin-1")
                if value and not self._access.allows_host(_host_name(value)):
                    hint = "start the server with --allow-host NAME, or with --api-key-file"
                    return Fault(
                        403,
                        f"the {what} {cut(value, 80)!r} may not ask here; {hint}",
                        f"{what}_not_allowed",
                    )
        if scope["path"] not in OPEN_PATHS and not self._has_key(
            headers.get(b"authorization", b"")
        ):
            return Fault(
                401,
                "no valid API key; send `Authorization: Bearer KEY`",
                "invalid_api_key",
            )
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > self._limits.body:
            return _too_large(self._limits.body)
        return None

    def _has_key(self, header: bytes) -> bool:
        if not self._keys:
            return True
        scheme, _, key = header.partition(b" ")
        digest = hashlib.sha256(key.strip()).digest()
        # all of them, whichever fits
        matches = [hmac.compare_digest(digest, known) for known in self._keys]
        return scheme.lower() == b"bearer" and any(matches)


class _BoundedBody:
    """Receives a body within its limits of size and time; afterwards it only tells when the client leaves."""

    def __init__(self, receive: Receive, limits: RequestLimits) -> None:
        self._receive, self._limits = receive, limits
        self._size, self.complete = 0, False
        self._deadline = asyncio.get_running_loop().time() + limits.body_seconds

    async def receive(self) -> Message:
        if self.complete:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline):
                message = await self._receive()
        except TimeoutError:
            seconds = self._limits.body_seconds
            raise Fault(
                408,
                f"the body did not arrive within {count_of(seconds, 'seconds', form='g')}; send it faster",
                "too_slow",
            ) from None
        self._size += len(message.get("body", b""))
        if self._size > self._limits.body:
            raise _too_large(self._limits.body)
        self.complete = not message.get("more_body", False)
        return message

    async def drain(self) -> None:
        """Read what still comes of a body that is refused: a client that sends reads no reply before the end."""
        size = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while not self.complete and size < DRAIN_BYTES:
                    message = await self._receive()
                    size += len(message.get("body", b""))
                    self.complete = not message.get("more_body", False)


def _host_name(value: str) -> str:
    """Return the host of a `Host` or `Origin` header, "" where there is none."""
    if "@" in value:
        return ""
    try:
        return urlsplit(value if "://" in value else f"//{value}").hostname or ""
    except ValueError:
        return ""


def _too_large(most: int) -> Fault:
    return Fault(
        413,
        f"the body has more than {count_of(most, 'bytes', form=',')}; send less",
        "too_large",
    )


class CleanResponse(JSONResponse):
    """JSON for clients, no text of which holds a character that they cannot see."""

    def render(self, content: Any) -> bytes:
        """Return the bytes of a value."""
        return super().render(clean(content))


def refusal(fault: Fault) -> CleanResponse:
    """Return the reply that tells a fault."""
    return CleanResponse(fault.body(), fault.status_code, headers=fault.headers)


def as_fault(error: Exception) -> Fault:
    """Return what a client is told about an error; one that is nobody's fault is logged."""
    if isinstance(error, Fault):
        return error
    if isinstance(error, RequestValidationError):
        errors = [{**details, "loc": details["loc"][1:]} for details in error.errors()]
        return Fault(400, describe_errors(errors, error.body))
    if isinstance(error, HTTPException):
        return Fault(error.status_code, cut(str(error.detail), 200))
    if isinstance(error, SearchError):
        return Fault(502, str(error), "search_failed")
    if isinstance(error, ContextLengthError):
        return Fault(400, str(error), "context_length_exceeded")
    if isinstance(error, UserError):
        return Fault(400, str(error))
    LOG.error("a request failed", exc_info=error)
    return Fault(500, "the server failed; its log says why", "internal_error")
