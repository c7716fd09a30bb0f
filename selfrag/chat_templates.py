"""Renders chat templates of models in a child process with limits of time and memory.

A chat template is a program that comes with a model. Its language cannot reach files or the network, but a loop in it
can run for ever, and its texts can take all memory.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from selfrag.common.child_process import (
    MEBIBYTE,
    ChildEndedError,
    ChildLimits,
    ChildProcess,
)
from selfrag.common.errors import UserError
from selfrag.common.untrusted import printable

_LIMITS = ChildLimits(seconds=5, memory=400 * MEBIBYTE, reply=64 * MEBIBYTE)
_FAILED = "the model's chat template cannot be rendered"
_HUGGING_FACE = "transformers.tokenization_utils_base"


def render_chat(
    tokenizer: Any,
    messages: Sequence[Mapping[str, Any]],
    *,
    add_generation_prompt: bool = True,
    **options: Any,
) -> str:
    """Return the text that the chat template of a Hugging Face tokenizer makes of a conversation.

    A tokenizer with a method of its own in place of a template, such as those of mistral-common, is asked itself.

    Raises:
        UserError: the template fails, or does not end within its limits.
    """
    options["add_generation_prompt"] = add_generation_prompt
    renders = getattr(type(tokenizer), "apply_chat_template", None)
    if renders is None or renders.__module__ == _HUGGING_FACE:
        variables = {**tokenizer.special_tokens_map, **options}
        return _rendering_process(os.getpid()).render(
            tokenizer.get_chat_template(), messages, variables
        )
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, **options))
    except Exception as error:  # templates are programs and raise what they like
        reason = printable(" ".join(str(error).split()))[:200]
        raise UserError(f"{_FAILED}: {reason}") from error


@cache
def _rendering_process(parent: int) -> _RenderingProcess:
    """Return the process that renders all templates for a parent; it keeps nothing of them."""
    del parent  # after a fork, both processes would read the replies of one child
    return _RenderingProcess()


class _RenderingProcess:
    """A child that is started when it is first needed, and again after it was ended. For any number of threads."""

    def __init__(self) -> None:
        self._child: ChildProcess | None = None
        self._lock = threading.Lock()

    def render(
        self,
        template: str,
        messages: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
    ) -> str:
        """Return the text of a conversation."""
        request = {
            "name": _FAILED,
            "template": template,
            "messages": list(messages),
            "variables": variables,
        }
        with self._lock:
            if self._child is not None and not self._child.is_alive():
                self._child.close()
                self._child = None
            if self._child is None:
                self._child = ChildProcess(
                    "selfrag.chat_template_worker", "rendering chat templates"
                )
            try:
                *_, reply = self._child.ask(request, _LIMITS)
            except ChildEndedError as error:
                raise UserError(f"{_FAILED}: {error}") from error
        text: str = reply.values["text"]
        return text
