"""The child process of `selfrag.chat_templates`: renders templates as transformers does."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node, Scope
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from selfrag.common.child_work import Replies, answer_requests
from selfrag.common.errors import UserError
from selfrag.common.untrusted import printable


class _Generation(Extension):
    """The block that marks what an assistant wrote; it says nothing about the text."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own declaration

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return Scope(body).set_lineno(line)


def _raise(message: str) -> None:
    raise TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Return JSON without the escapes of HTML that jinja's own filter has."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


@lru_cache(maxsize=16)
def _compiled(template: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = datetime.now().strftime
    return environment.from_string(template)


def main() -> None:
    """Render templates until no more are asked for."""
    answer_requests(_answer)


def _answer(request: Mapping[str, Any], replies: Replies) -> Mapping[str, Any]:
    del replies
    try:
        variables = {"tools": None, "documents": None, **request["variables"]}
        text = _compiled(request["template"]).render(
            messages=request["messages"], **variables
        )
    except Exception as error:  # templates are programs and raise what they like
        memory = request["limits"]["memory"] >> 20
        reason = (
            f"it needs more than {memory} MiB of memory"
            if isinstance(error, MemoryError)
            else str(error)
        )
        raise UserError(
            f"{request['name']}: {printable(' '.join(reason.split()))[:200]}"
        ) from error
    return {"text": text}
