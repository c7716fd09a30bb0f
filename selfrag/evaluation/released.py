"""The text that the released code of Self-RAG gives to ALCE, for answers of `Decoding.official`."""

from __future__ import annotations

import re
from dataclasses import replace

from selfrag.decoding.answer import Answer
from selfrag.decoding.trace import Node
from selfrag.prompting import Prompting

CONTINUE = "[Continue to Use Evidence]"
_GLUED = re.compile(r"(?<=\w)([.!?])(?=\w)")


def cited_as_released(answer: Answer, prompting: Prompting) -> Answer:
    """Return an answer whose text cites as `run_long_form_static.py` does for ASQA; it has no segments.

    The last character of each segment makes room for one number, that of its passage. A full stop before
    `[Continue to Use Evidence]` cites the passage of the first segment. Repeated segments are left out. Numbers are
    those of the passages read, where the released code counts segments and shifts behind a repeated one.
    """
    path = answer.trace.path(answer.trace.best)
    if not path or path[0].passage is None:
        return answer
    read = list(dict.fromkeys(_keys(answer)))
    texts: dict[str, int] = {}
    for node in path:
        if node.token_ids and node.passage is not None:
            number = read.index(node.passage.key) + 1
            texts.setdefault(_with_continue(node, prompting), number)
    marked = "".join(f"{text[:-1]} [{number}]. " for text, number in texts.items())
    marked = _GLUED.sub(r"\1 ", marked.removesuffix(" "))
    first = next(iter(texts.values()), 1)
    marked = marked.replace(f".{CONTINUE}", f" [{first}]. ")
    marked = marked.replace(f". [{first}] ", f" [{first}]. ")
    return replace(answer, text=marked, segments=())


def _keys(answer: Answer) -> list[tuple[str, str, str]]:
    decisions = answer.trace.leading()
    return [passage.key for decision in decisions for passage in decision.passages]


def _with_continue(node: Node, prompting: Prompting) -> str:
    """Return the text of a segment with its Continue tokens, without the others."""
    keep = prompting.vocabulary.ids[CONTINUE]
    parts: list[list[int]] = [[]]
    for token in node.token_ids:
        if token == keep:
            parts.append([])
        else:
            parts[-1].append(token)
    texts = []
    for part in parts:
        text_ids = prompting.vocabulary.text_ids(part)
        texts.append(prompting.codec.decode(text_ids))
    return CONTINUE.join(texts).removeprefix(" ")
