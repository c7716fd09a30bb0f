"""HTTP with bounds: a moment at which a request must be over, and public addresses only.

`httpx` alone bounds neither: its timeouts are for each read, and it resolves a host name again after somebody has
checked it. The size of a reply is bounded by `retrieval.content`.
"""

from __future__ import annotations

import ipaddress
import math
import socket
import ssl
import time
from collections.abc import Iterable
from typing import Any
from urllib.request import getproxies, proxy_bypass

import httpcore
import httpx

from selfrag.interface import UserError

_NOT_PUBLIC_4 = [
    ipaddress.IPv4Network(block)
    for block in (
        "192.0.0.0/24",  # protocol assignments, of which `is_global` lets two addresses pass
        "192.88.99.0/24",  # relays of 6to4
    )
]
_GLOBAL_6 = ipaddress.IPv6Network("2000::/3")
"""All unicast addresses of the internet; translations (NAT64), mapped and local addresses lie outside."""
_NOT_PUBLIC_6 = [
    ipaddress.IPv6Network(block)
    for block in (
        "2001::/23",  # protocol assignments: Teredo, benchmarking, ORCHID
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, which holds an IPv4 address
        "3fff::/20",  # documentation
    )
]


def is_public_address(address: str) -> bool:
    """Return whether an IP address is one of the public internet, whatever it embeds."""
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if ip.is_multicast or ip.is_reserved or ip.is_unspecified or not ip.is_global:
        return False
    if isinstance(ip, ipaddress.IPv4Address):
        return not any(ip in block for block in _NOT_PUBLIC_4)
    return ip in _GLOBAL_6 and not any(ip in block for block in _NOT_PUBLIC_6)


class _Stream(httpcore.NetworkStream):
    """A connection whose time limits are moments of `time.monotonic`, so that a slow sender gains nothing."""

    def __init__(self, stream: httpcore.NetworkStream) -> None:
        self._stream = stream

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, _left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, _left(timeout))

    def close(self) -> None:
        self._stream.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        return _Stream(
            self._stream.start_tls(ssl_context, server_hostname, _left(timeout))
        )

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _Backend(httpcore.NetworkBackend):
    """Makes connections; with `public`, to the very address that was found to be public."""

    def __init__(self, *, public: bool) -> None:
        self._public = public
        self._sockets = httpcore.SyncBackend()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        addresses = [host]
        if self._public:
            addresses = _addresses(host, port)
            if hidden := [
                address for address in addresses if not is_public_address(address)
            ]:
                raise UserError(
                    f"{host[:80]} is {hidden[0]}, which is no public address"
                )
        failure: Exception = httpcore.ConnectError(f"{host} has no address")
        for address in addresses:
            try:
                return _Stream(
                    self._sockets.connect_tcp(
                        address, port, _left(timeout), local_address, socket_options
                    )
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure


class BoundedTransport(httpx.HTTPTransport):
    """A transport of `httpx.Client` in which each request ends after so many seconds in all.

    `extensions={"until": moment}` of a request sets an earlier end, in seconds of `time.monotonic`.

    Args:
        seconds: for a whole request, from its connection to the end of its content.
        public: whether only public addresses are connected to; proxies are not used then.
        address: where the requests go, by which the proxy of the environment is chosen.
    """

    def __init__(
        self, seconds: float, *, public: bool = False, address: str = ""
    ) -> None:
        context = httpx.create_ssl_context()
        super().__init__(verify=context)
        self._seconds = seconds
        backend = _Backend(public=public)
        proxy = None if public else _proxy(address)
        # httpx has no way to name a backend. A version that calls the pool otherwise must fail here: requests would go
        # through its own pool, past the check of addresses.
        self._pool.close()
        self._pool = (
            httpcore.ConnectionPool(context, network_backend=backend)
            if proxy is None
            else httpcore.HTTPProxy(proxy, ssl_context=context, network_backend=backend)
        )

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request of `httpx`."""
        until = request.extensions.get("until", math.inf)
        until = min(time.monotonic() + self._seconds, until)
        moments = dict.fromkeys(("connect", "read", "write"), until)
        timeout = {**moments, "pool": self._seconds}
        request.extensions = {**request.extensions, "timeout": timeout}
        return super().handle_request(request)


def _left(until: float | None) -> float | None:
    """Return the seconds until a moment."""
    if until is None:
        return None
    seconds = until - time.monotonic()
    if seconds <= 0:
        raise httpcore.ReadTimeout("the whole took too long")
    return seconds


def _addresses(host: str, port: int) -> list[str]:
    """Return the addresses of a host name, each once."""
    try:
        places = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise httpcore.ConnectError(f"{host} is not known") from error
    return list(dict.fromkeys(str(place[4][0]) for place in places))


def _proxy(address: str) -> str | None:
    """Return the proxy that the environment names for an address; None for a direct connection."""
    url = httpx.URL(address)
    if not url.host or proxy_bypass(url.host):
        return None
    proxies = getproxies()
    proxy = proxies.get(url.scheme) or proxies.get("all")
    return proxy if proxy is None or "://" in proxy else f"http://{proxy}"
