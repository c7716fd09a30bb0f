"""The command `selfrag mcp`. What it runs is imported when it runs, since `selfrag --help` lists it."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Annotated

import typer

from selfrag.cli.options import quick_engine
from selfrag.interface import EngineChoice, Fields, FieldValues, refuse_options, require
from selfrag.serving.settings import ListenSettings


@dataclass(frozen=True, slots=True)
class McpListening(ListenSettings):
    """Where `--http` listens, by default beside `selfrag serve`."""

    port: int = 8001


def mcp(
    *,
    ctx: typer.Context,
    model: str = "demo",
    index: Annotated[str | None, typer.Option("--index", "--retriever")] = None,
    engine: EngineChoice,
    http: bool = False,
    listening: Annotated[
        FieldValues,
        Fields(
            McpListening, "With --http", "host", "port", "api_key_file", "allow_host"
        ),
    ],
) -> None:
    """Offer ask, search and judge to agents over the Model Context Protocol, with citations.

    Args:
        model: demo, a folder with a checkpoint, or a name on the hub
        index: folder made by `selfrag index build`, an address, or a retriever by name; the demo corpus by default
        http: serve over HTTP at /mcp, in place of stdin and stdout
    """
    from selfrag.cli import options

    options.say_loading(model, index)
    require("mcp", extra="mcp")
    from selfrag.extensions.mcp.serving import serve_http, serve_stdio
    from selfrag.serving.listening import access_of, address_of, listen

    if not http:
        options_of_http = ("--host", "--port", "--api-key-file", "--allow-host")
        refuse_options(ctx, options_of_http, "for --http, which is not given")
        with redirect_stdout(sys.stderr):  # the standard output carries the protocol
            rag = options.load(model, index, quick_engine(engine, model))
        serve_stdio(rag)
        return
    settings = McpListening(**listening)
    access = access_of(settings)
    with listen(settings) as listener:
        rag = options.load(model, index, quick_engine(engine, model))
        typer.echo(f"serving MCP at {address_of(listener, settings.host)}/mcp")
        serve_http(rag, access, listener, settings)
