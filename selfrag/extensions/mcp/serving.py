"""The tools over stdin and stdout, and as an application for HTTP."""

from __future__ import annotations

from contextlib import closing

from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import ASGIApp

from selfrag.extensions.mcp.messages import CheckedMessages
from selfrag.extensions.mcp.tools import make_server
from selfrag.interface import SelfRAG, Service


def serve_stdio(rag: SelfRAG) -> None:
    """Answer the process that started this one until it closes the standard input."""
    with closing(rag):
        make_server(Service(rag)).run("stdio")


def http_app(rag: SelfRAG) -> ASGIApp:
    """Return the application that answers at `/mcp`."""
    # The guard refuses other sites; the check of the package would know only the names of this machine.
    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    app = make_server(Service(rag)).streamable_http_app(transport_security=unchecked)
    return CheckedMessages(app)
