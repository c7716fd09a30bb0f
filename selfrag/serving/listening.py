"""From an address to a running server: the socket, who may ask there, and the limits of its connections."""

from __future__ import annotations

import logging
import re
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

import uvicorn
from prometheus_client import CollectorRegistry, Counter
from starlette.types import ASGIApp

from selfrag.common.errors import UserError
from selfrag.common.reading import read_whole
from selfrag.serving.connections import (
    KEEP_ALIVE,
    ConnectionLimits,
    limited_connections,
)
from selfrag.serving.guard import Access, Guard, RequestLimits
from selfrag.serving.settings import ListenSettings

_SHORTEST = 16
_MOST_FILES = 8_192
"""Open files of the process."""
_OTHER_FILES = 256
"""Open files that are no connections."""
_KEY = re.compile(rf"[A-Za-z0-9._~+/=-]{{{_SHORTEST},}}")
"""What RFC 6750 lets a bearer token be."""


def listen(settings: ListenSettings) -> socket.socket:
    """Return a socket that listens, before a model is loaded for it."""
    host, port = settings.host, settings.port
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"cannot listen at {host!r:.80} port {port}: {reason}; try another --port"
        ) from error


def address_of(listener: socket.socket, host: str) -> str:
    """Return the address at which a socket listens, for people."""
    shown = f"[{host}]" if ":" in host else host
    return f"http://{shown}:{listener.getsockname()[1]}"


def access_of(settings: ListenSettings) -> Access:
    """Return who may ask a server."""
    is_local = settings.host == "localhost"
    with suppress(ValueError):
        is_local = ip_address(settings.host).is_loopback
    names = [settings.host, *settings.allow_host]
    hosts = frozenset(name.strip("[]").rstrip(".").lower() for name in names)
    return Access(_keys(settings.api_key_file), hosts, any_address=not is_local)


def _keys(path: Path | None) -> list[str]:
    """Return the lines of a file of API keys."""
    if path is None:
        return []
    keys = [line.strip() for line in read_whole(path).splitlines() if line.strip()]
    if not keys:
        raise UserError(f"{path} holds no API key; write one a line")
    for number, key in enumerate(keys, 1):
        if not _KEY.fullmatch(key):
            raise UserError(
                f"{path}: key {number} is not {_SHORTEST} or more letters, digits or characters of -._~+/="
            )
    return keys


def run_server(app: ASGIApp, listener: socket.socket, settings: ListenSettings) -> None:
    """Serve an application on a socket until a signal ends it."""
    limits = ConnectionLimits(settings.connections, _raise_open_files())
    config = uvicorn.Config(
        app,
        http=limited_connections(limits),
        ws="none",
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=settings.drain,
        log_level=logging.getLogger().getEffectiveLevel(),
        server_header=False,
    )
    uvicorn.Server(config).run(sockets=[listener])


def guarded(app: ASGIApp, access: Access) -> ASGIApp:
    """Return an application behind what every request of a server passes."""
    counter = Counter(
        "selfrag_requests",
        "Requests",
        ["route", "status"],
        registry=CollectorRegistry(),
    )
    return Guard(app, access, RequestLimits(), counter)


def serve_guarded(
    make: Callable[[], ASGIApp], settings: ListenSettings, what: str, path: str
) -> None:
    """Serve an application behind the guard until a signal ends it; it is made when the socket listens."""
    access = access_of(settings)
    with listen(settings) as listener:
        app = guarded(make(), access)
        address = address_of(listener, settings.host)
        sys.stdout.write(f"serving {what} at {address}{path}\n")
        sys.stdout.flush()
        run_server(app, listener, settings)


def _raise_open_files() -> int:
    """Let this process open as many files as the system allows, and return how many of them may be connections."""
    if sys.platform == "win32":
        return 4_096
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES
    if hard != resource.RLIM_INFINITY:
        most = min(most, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(1, most - _OTHER_FILES)
