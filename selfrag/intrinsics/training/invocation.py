"""What switches an activated LoRA on: the opening of the assistant's turn in a model's chat template."""

from __future__ import annotations

from selfrag.errors import UserError
from selfrag.intrinsics.rendering import Renderer


def invocation_of(renderer: Renderer) -> tuple[int, ...]:
    """Ids of the generation prompt.

    Raises:
        UserError: the template has none, or no control token in it, so that a text could switch the adapter on.
    """
    if not getattr(renderer.tokenizer, "chat_template", None):
        raise UserError("the tokenizer has no chat template, so nothing marks where the assistant begins")
    turns = [{"role": "user", "content": "x"}]
    closed, opened = (
        renderer.tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=prompt)
        for prompt in (False, True)
    )
    if not opened.startswith(closed) or opened == closed:
        raise UserError("the chat template does not open the assistant's turn; train a plain LoRA")
    opening = opened[len(closed) :]
    ids = tuple(renderer.control(opening))
    if renderer.text.encode(opening) == list(ids):
        raise UserError("the assistant's turn begins with ordinary text; train a plain LoRA")
    return ids
