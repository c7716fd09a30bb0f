"""The reasoning of a model, told from its answer by the markup that models and servers leave around it. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

from selfrag.judges.wire import Completion

_WORD = r"(?:seed:)?(?:think(?:ing)?|thoughts?|reasoning)"
_OPEN = "|".join(
    (
        rf"<{_WORD}>|\[{_WORD}\]|\u25c1{_WORD}\u25b7|<\|{_WORD}\|>",
        r"<\|(?:begin_of_(?:thought|thinking)|start_thinking|inner_prefix)\|>",
        # gpt-oss, with its control tokens and without; Gemma; Granite
        r"<\|channel\|>(?:analysis|commentary)[^<\n]*(?:<\|message\|>|\Z)",
        r"(?-i:analysis(?=[A-Z]))",
        r"<\|channel>thought\b|Here is my thought process:",
    )
)
_CLOSE = "|".join(
    (
        rf"</{_WORD}>|\[/{_WORD}\]|\u25c1/{_WORD}\u25b7|<\|/{_WORD}\|>",
        r"<\|(?:end_of_(?:thought|thinking)|end_thinking|inner_suffix)\|>",
        r"(?:<\|end\|>)?(?:<\|start\|>assistant)?<\|channel\|>final[^<\n]*<\|message\|>",
        r"assistantfinal(?=\S)|<channel\|>|Here is my response:",
    )
)
_FLAGS = re.IGNORECASE | re.MULTILINE
# A text about such markup has it inside a line, or in quotes.
_OPENING = re.compile(rf"^[ \t]*(?:{_OPEN})", _FLAGS)
_CLOSING = re.compile(_CLOSE, _FLAGS)
_UNOPENED = re.compile(
    rf"(?<![`'\"( ])(?:{_CLOSE})(?![`'\"])|(?:{_CLOSE})(?=[ \t]*$)", _FLAGS
)
_WRAPPER = re.compile(
    r"\A\s*(?:<(?:answer|response)>|<\|(?:begin_of_solution|start_response)\|>)"
    r"|(?:</(?:answer|response)>|<\|(?:end_of_solution|end_response|end|return)\|>)\s*\Z",
    re.IGNORECASE,
)


def close_reasoning(prompt: str) -> str:
    """Return a prompt in which reasoning that its template has begun is ended, so that the reply is the answer."""
    opened = re.search(rf"<({_WORD})>\s*\Z", prompt, _FLAGS)
    return prompt if opened is None else f"{prompt.rstrip()}\n\n</{opened[1]}>\n\n"


class Separated(NamedTuple):
    """A text of a model without its reasoning."""

    text: str
    reasoning: str = ""  # with nothing left out but the markup
    is_open: bool = False  # whether the text ends inside of reasoning


def separate(written: str) -> Separated:
    """Tell reasoning from answer.

    Reasoning begins with its markup at the beginning of a line and ends with any such end, or with the text. It also
    stands before an end that nothing opens, since chat templates may begin it for the model.
    """
    texts, thoughts = [], []
    position = 0
    is_open = False
    while opening := _OPENING.search(written, position):
        closing = _CLOSING.search(written, opening.end())
        texts.append(written[position : opening.start()])
        is_open = closing is None
        end = position = len(written)
        if closing is not None:
            end = closing.start()
            position = closing.end()
        thoughts.append(written[opening.end() : end])
    texts.append(written[position:])
    text = "".join(texts)
    if unopened := _UNOPENED.search(text):
        thoughts.insert(0, text[: unopened.start()])
        text = text[unopened.end() :]
    if not thoughts:
        return Separated(written)
    text = _WRAPPER.sub("", text).lstrip()
    return Separated(text, "\n".join(thoughts).strip(), is_open)


def without_reasoning(completion: Completion) -> Completion:
    """Return a completion whose reasoning stands beside its text."""
    text, reasoning, _ = separate(completion.text)
    if text == completion.text:
        return completion
    thoughts = [completion.reasoning, reasoning]
    joined = "\n".join([thought for thought in thoughts if thought])
    return replace(completion, text=text, reasoning=joined)
