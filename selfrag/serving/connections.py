"""Connections that a server holds: limits of their number and of the time in which a request must arrive.

uvicorn waits for ever for the head of a first request, so that silent clients could take every file descriptor.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any, ClassVar

from uvicorn.protocols.http.auto import AutoHTTPProtocol

KEEP_ALIVE = 15
"""Seconds that an idle connection is kept. Clients on httpx give theirs up after 5; a server that closes then, too,
breaks requests that are on their way."""
REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

_BASE: Any = AutoHTTPProtocol  # httptools where it is installed, else h11
_TELLS_PARTS = hasattr(_BASE, "on_headers_complete")
"""Whether the protocol tells heads from bodies. h11 does not, and limits heads and trailers by itself."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Bounds of the connections of a server.

    Attributes:
        per_address: connections that one address may hold. Behind a proxy all clients have its address.
        total: connections that are open_connections.
        head_seconds: seconds in which the head of a request must have arrived.
        head_bytes: most bytes of the head of a request.
    """

    per_address: int = 512
    total: int = 4096
    head_seconds: float = 10.0
    head_bytes: int = 1 << 16


class LimitedConnection(_BASE):  # type: ignore[misc]
    """A connection that is closed when the head of a request does not arrive in time."""

    limits: ClassVar[ConnectionLimits]
    open_connections: ClassVar[Counter[str]]  # connections by address

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._address: str | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0  # bytes since the last head or part of a body

    def connection_made(self, transport: Any) -> None:
        """Count the connection, or refuse it."""
        super().connection_made(transport)
        address = self.client[0] if self.client else ""
        if (
            self.open_connections[address] >= self.limits.per_address
            or self.open_connections.total() >= self.limits.total
        ):
            transport.write(REFUSAL)
            transport.close()
            return
        self._address = address
        self.open_connections[address] += 1
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self._stop_timer()
        if self._address is not None:
            self.open_connections[self._address] -= 1
            if not self.open_connections[self._address]:
                del self.open_connections[self._address]

    def data_received(self, data: bytes) -> None:
        """Read on; a head, trailers or other bytes between bodies that grow too long end the connection."""
        if self._awaits_head() and self._head_timer is None:
            self._expect_head()
        self._head_bytes += len(data)
        super().data_received(data)
        if not self._awaits_head():
            self._stop_timer()
            if not _TELLS_PARTS:
                self._head_bytes = 0
        if self._head_bytes > self.limits.head_bytes:
            self.transport.close()

    def on_headers_complete(self) -> None:
        """Count anew after a head."""
        self._head_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Count anew after a part of a body that somebody waits for."""
        if not self.cycle.response_complete:
            self._head_bytes = 0
        super().on_body(body)

    def _awaits_head(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _expect_head(self) -> None:
        self._head_timer = self.loop.call_later(
            self.limits.head_seconds, self._head_is_late
        )

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._awaits_head():
            self.transport.close()


def limited_connections(limits: ConnectionLimits) -> type[asyncio.Protocol]:
    """Return a protocol class for uvicorn whose connections are counted together."""
    return type(
        "CountedConnection",
        (LimitedConnection,),
        {"limits": limits, "open_connections": Counter()},
    )
