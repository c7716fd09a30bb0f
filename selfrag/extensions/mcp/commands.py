"""The command `selfrag mcp`. What it runs is imported when it runs, since `selfrag --help` lists it."""

from __future__ import annotations

import sys
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from selfrag.interface import (
    EngineChoice,
    Fields,
    FieldValues,
    ListenSettings,
    refuse_options,
    require,
)

if TYPE_CHECKING:
    from starlette.types import ASGIApp


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
    require("mcp", extra="mcp")
    from selfrag.extensions.mcp.serving import http_app, serve_stdio
    from selfrag.interface import load_quickly, serve_guarded

    if not http:
        options_of_http = ("--host", "--port", "--api-key-file", "--allow-host")
        refuse_options(ctx, options_of_http, "for --http, which is not given")
        with redirect_stdout(sys.stderr):  # the standard output carries the protocol
            rag = load_quickly(model, index, engine)
        serve_stdio(rag)
        return
    with ExitStack() as stack:

        def make() -> ASGIApp:
            return http_app(stack.enter_context(load_quickly(model, index, engine)))

        serve_guarded(make, McpListening(**listening), "MCP", "/mcp")
