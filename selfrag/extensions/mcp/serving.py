"""Runs the tools over stdin and stdout, or over HTTP behind the guard of `selfrag serve`."""

from __future__ import annotations

import socket

from mcp.server.transport_security import TransportSecuritySettings
from prometheus_client import CollectorRegistry, Counter
from starlette.types import ASGIApp

from selfrag.extensions.mcp.messages import CheckedMessages
from selfrag.extensions.mcp.tools import make_server
from selfrag.serving.guard import Access, Guard, RequestLimits
from selfrag.serving.listening import run_server
from selfrag.serving.service import Answering, Service
from selfrag.serving.settings import ListenSettings


def serve_stdio(rag: Answering) -> None:
    """Answer the process that started this one until it closes the standard input."""
    try:
        make_server(Service(rag)).run("stdio")
    finally:
        rag.close()


def http_app(rag: Answering, access: Access) -> ASGIApp:
    """Return the application that answers at `/mcp`."""
    counter = Counter(
        "selfrag_mcp_requests",
        "Requests",
        ["route", "status"],
        registry=CollectorRegistry(),
    )
    # The guard refuses other sites; the check of the package would know only the names of this machine.
    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    app = make_server(Service(rag)).streamable_http_app(transport_security=unchecked)
    return Guard(CheckedMessages(app), access, RequestLimits(), counter)


def serve_http(
    rag: Answering, access: Access, listener: socket.socket, settings: ListenSettings
) -> None:
    """Serve over HTTP until a signal ends it."""
    try:
        run_server(http_app(rag, access), listener, settings)
    finally:
        rag.close()
