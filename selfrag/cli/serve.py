"""`selfrag serve`: an OpenAI-compatible server that cites, with a page to ask and to see why."""

from __future__ import annotations

import re
import socket
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal

import typer

from retrieval.reading import read_whole
from selfrag.cli import options
from selfrag.errors import UserError, require

_SHORTEST = 16
_KEY = re.compile(rf"[A-Za-z0-9._~+/=-]{{{_SHORTEST},}}")
"""What RFC 6750 lets a bearer token be."""
SERVER, CITES = "The server", "How it cites"


def serve(
    *,
    model: options.Model = "demo",
    index: options.Index = None,
    engine: options.EngineName = None,
    intrinsics: Annotated[
        list[str] | None,
        typer.Option("--intrinsic", help="intrinsic that requests may use; repeatable", rich_help_panel=options.WHAT),
    ] = None,
    policy: options.Policy = "paper",
    mode: options.Mode = None,
    threshold: options.Threshold = None,
    beam: options.Beam = None,
    passages: options.Passages = None,
    segments: options.Segments = None,
    host: Annotated[str, typer.Option(help="address to listen at", rich_help_panel=SERVER)] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0 takes a free one", rich_help_panel=SERVER)] = 8000,
    served_model_name: Annotated[
        str | None, typer.Option(help="the model's name for clients; the last part of --model", rich_help_panel=SERVER)
    ] = None,
    api_key_file: Annotated[
        Path | None, typer.Option(help="file with the keys that clients may use, one a line", rich_help_panel=SERVER)
    ] = None,
    live: Annotated[int, typer.Option(min=1, help="questions that run at once", rich_help_panel=SERVER)] = 256,
    queue: Annotated[int, typer.Option(min=0, help="questions that may wait", rich_help_panel=SERVER)] = 1_024,
    drain: Annotated[
        int, typer.Option(min=0, help="seconds that running questions get when the server ends", rich_help_panel=SERVER)
    ] = 30,
    keep: Annotated[
        Path | None,
        typer.Option(help="SQLite file for answers and traces; in memory by default", rich_help_panel=SERVER),
    ] = None,
    citation_style: Annotated[
        Literal["brackets", "markdown", "none"],
        typer.Option(help="[1], a link in Markdown, or no marks in the text", rich_help_panel=CITES),
    ] = "brackets",
    events: Annotated[
        bool, typer.Option("--events", help="also send sources as Open WebUI reads them", rich_help_panel=CITES)
    ] = False,
) -> None:
    """Serve a model over the OpenAI API, with citations, and a page at /."""
    for module in ("fastapi", "prometheus_client"):
        require(module, extra="serve")
    uvicorn = require("uvicorn", extra="serve")
    from selfrag.api import SelfRAG
    from selfrag.serving.app import create_app
    from selfrag.serving.service import Capacity, Service
    from selfrag.serving.store import AnswerStore

    changes = {"mode": mode, "threshold": threshold, "beam": beam, "passages": passages, "max_segments": segments}
    decoding = options.decoding(policy, changes, {})
    keys = _keys(api_key_file)
    store = AnswerStore(keep)

    def load() -> SelfRAG:
        rag = options.load(model, index, engine, tuple(intrinsics or ()))
        rag.defaults = decoding
        return rag

    with _listening(host, port) as listener:
        name = served_model_name or Path(model).name
        service = Service(load(), load, name, store, Capacity(live, queue), citation_style, events)
        config = uvicorn.Config(
            create_app(service, keys), timeout_graceful_shutdown=drain, log_level="warning", server_header=False
        )
        address = f"[{host}]" if ":" in host else host
        typer.echo(f"serving {service.name} at http://{address}:{listener.getsockname()[1]}")
        if not keys and not _loopback(listener):
            typer.echo("everyone who reaches this address may ask; --api-key-file limits that", err=True)
        uvicorn.Server(config).run(sockets=[listener])


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens, before a model is loaded for it.

    Raises:
        UserError: the address cannot be used.
    """
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot listen at {host!r:.80} port {port}: {reason}; try another --port") from error


def _loopback(listener: socket.socket) -> bool:
    return ip_address(listener.getsockname()[0]).is_loopback


def _keys(path: Path | None) -> list[str]:
    """The lines of a file of API keys.

    Raises:
        UserError: it cannot be read, holds none, or one that is too short or cannot be sent.
    """
    if path is None:
        return []
    keys = [line.strip() for line in read_whole(path).splitlines() if line.strip()]
    if not keys:
        raise UserError(f"{path} holds no API key; write one a line")
    if wrong := next((number for number, key in enumerate(keys, 1) if not _KEY.fullmatch(key)), None):
        raise UserError(f"{path}: key {wrong} is not {_SHORTEST} or more letters, digits or characters of -._~+/=")
    return keys
