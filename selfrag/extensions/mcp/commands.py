"""The command `selfrag mcp`. What it runs is imported when it runs, since `selfrag --help` lists it."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer

from selfrag.cli.engine_options import EngineChoice, quick_engine
from selfrag.common.errors import require


def mcp(
    *,
    model: Annotated[
        str, typer.Option(help="demo, a folder with a checkpoint, or a name on the hub")
    ] = "demo",
    index: Annotated[
        str | None,
        typer.Option(
            help="folder made by `selfrag index build`, or an address; the demo corpus by default"
        ),
    ] = None,
    engine: EngineChoice,
    http: Annotated[
        bool,
        typer.Option(
            "--http", help="serve over HTTP at /mcp, in place of stdin and stdout"
        ),
    ] = False,
    host: Annotated[
        str, typer.Option(help="with --http: address to listen at")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65_535, help="with --http: 0 takes a free one")
    ] = 8001,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            help="with --http: file with the keys that clients may use, one a line"
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="with --http: name under which a server without keys answers; repeatable"
        ),
    ] = None,
) -> None:
    """Offer ask, search and judge to agents over the Model Context Protocol, with citations."""
    require("mcp", extra="mcp")
    from selfrag.cli import options
    from selfrag.extensions.mcp.serving import serve_http, serve_stdio
    from selfrag.serving.listening import access_of, address_of, listen

    if not http:
        with redirect_stdout(sys.stderr):  # the standard output carries the protocol
            rag = options.load(model, index, quick_engine(engine, model))
        serve_stdio(rag)
        return
    access = access_of(api_key_file, host, allow_host or [])
    with listen(host, port) as listener:
        rag = options.load(model, index, quick_engine(engine, model))
        typer.echo(f"serving MCP at {address_of(listener, host)}/mcp")
        serve_http(rag, access, listener)
