"""What agents send, checked before the package reads it: it would answer some lines at length, and others never."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import anyio
from mcp.server.stdio import stdio_server
from mcp.shared.message import SessionMessage
from mcp.types import (
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from selfrag.common.reading import mended_json
from selfrag.interface import UserError, parse_json

_SHAPE = (
    'no message of JSON-RPC; send an object with "jsonrpc": "2.0", a "method", an "id" that is text or a whole number,'
    ' and "params" that are an object'
)
_BATCH = "a batch of messages; send one at a time"


class RefusedMessageError(Exception):
    """A text that is no message; `reply` is what its sender gets."""

    def __init__(
        self, code: int, line: str, identifier: str | int | None = None
    ) -> None:
        super().__init__(line)
        error = ErrorData(code=code, message=line)
        self.reply = JSONRPCError(jsonrpc="2.0", id=identifier, error=error)


def read_message(text: str) -> JSONRPCMessage:
    """Return a message, with U+FFFD for half of a character in it.

    Raises:
        RefusedMessageError: the text is no message.
    """
    try:
        value = parse_json(text, "the message", mended=True)
    except UserError as error:
        raise RefusedMessageError(PARSE_ERROR, str(error)) from None
    if isinstance(value, list):
        raise RefusedMessageError(INVALID_REQUEST, _BATCH)
    identifier = value.get("id") if isinstance(value, dict) else None
    if type(identifier) not in (str, int):
        identifier = None
        # the package would take a request with such an id for a notification
        if isinstance(value, dict) and "id" in value and "error" not in value:
            raise RefusedMessageError(INVALID_REQUEST, _SHAPE)
    try:
        return jsonrpc_message_adapter.validate_python(value, by_name=False)
    except ValidationError:
        raise RefusedMessageError(INVALID_REQUEST, _SHAPE, identifier) from None


async def serve_lines(server: Any) -> None:
    """Answer every line of the standard input until it ends; `server` is the package's `Server`."""
    lines = anyio.wrap_file(_take_standard_input())
    to_server, messages = anyio.create_memory_object_stream[SessionMessage](0)

    async def read_lines(replies: Any) -> None:
        async with to_server:
            async for line in lines:
                try:
                    message = SessionMessage(read_message(line))
                except RefusedMessageError as refused:
                    await replies.send(SessionMessage(refused.reply))
                else:
                    await to_server.send(message)

    async with (
        stdio_server(stdin=_no_lines()) as (_, replies),  # type: ignore[arg-type]
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(read_lines, replies)
        await server.run(messages, replies, server.create_initialization_options())


async def _no_lines() -> AsyncIterator[str]:
    """Yield nothing to the package, which would read the lines unchecked."""
    return
    yield


def _take_standard_input() -> TextIOWrapper:
    """Return the lines of the standard input, which processes started from here do not see."""
    private = os.dup(0)
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    return TextIOWrapper(os.fdopen(private, "rb"), encoding="utf-8", errors="replace")


class CheckedMessages:
    """Answers a body that is no message, before the package sees it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse its body."""
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        text = (await Request(scope, receive).body()).decode(errors="replace")
        try:
            read_message(text)
        except RefusedMessageError as refused:
            content = refused.reply.model_dump(mode="json", exclude_unset=True)
            await JSONResponse(content, 400)(scope, receive, send)
            return
        sent = False

        async def checked() -> Any:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            body = mended_json(text).encode()
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, checked, send)
