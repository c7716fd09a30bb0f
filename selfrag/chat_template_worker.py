"""The child process of `selfrag.chat_templates`: renders templates as transformers does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

from selfrag.common.child_work import Replies, answer_requests
from selfrag.common.errors import UserError
from selfrag.common.untrusted import printable


def main() -> None:
    """Render templates until no more are asked for."""
    answer_requests(_answer)


def _answer(request: Mapping[str, Any], replies: Replies) -> Mapping[str, Any]:
    del replies
    try:
        texts, _ = render_jinja_template(
            [request["messages"]],
            chat_template=request["template"],
            **request["variables"],
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
    return {"text": texts[0]}
