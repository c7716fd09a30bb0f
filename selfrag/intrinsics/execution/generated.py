"""Generated ids as text with the log-probabilities of its tokens. Pure; knows a text codec, no model."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from selfrag.decoding.requests import Constraint as Mask
from selfrag.decoding.requests import Finish, Generated
from selfrag.intrinsics.wire import Constraint, TokenLogprob
from selfrag.tokenization import TextCodec

LONGEST = 4
"""Bytes of a character, so tokens that may go by without text."""

WINDOW = 8
"""Earlier pieces of text with which a token is decoded, because its text depends on what stands before it."""

ENDED = {Finish.STOP: "stop", Finish.EOS: "stop", Finish.BUDGET: "length", Finish.CONTEXT: "length"}
"""The words of OpenAI-compatible servers."""


def mask(constraint: Constraint | None) -> Mask | None:
    """A codec's constraint in the engines' form."""
    if constraint is None:
        return None
    if constraint.json_schema is not None:
        return Mask.json(constraint.json_schema)
    return Mask.regex(constraint.regex) if constraint.regex is not None else Mask.choice(constraint.choice or ())


def tokens(
    codec: TextCodec, ids: Sequence[int], generated: Generated, watch: Sequence[int]
) -> tuple[TokenLogprob, ...]:
    """One entry a token of the text; `ids` are the generated ones up to where the text ends.

    A token that ends in the middle of a character has no text of its own; the token that completes it has the whole.
    """
    found = []
    done = [0]  # places at which all text before was out; a window begins at one, never inside a character
    for at, token_id in enumerate(ids):
        begin = done[max(0, len(done) - WINDOW)]
        said = codec.decode(ids[begin : done[-1]])
        whole = codec.decode(ids[begin : at + 1])
        waits = whole.endswith("\ufffd") and at - done[-1] < LONGEST - 1
        text = "" if waits else _rest(said, whole)
        row = zip(watch, generated.watched[at].tolist(), strict=True)
        others = {
            _rest(said, codec.decode([*ids[begin:at], other])): value
            for other, value in row
            if value > -math.inf and other != token_id
        }
        top = {**others, text: generated.token_logprobs[at]}
        ranked = sorted(top.items(), key=lambda pair: -pair[1]) if watch else ()
        found.append(TokenLogprob(text, generated.token_logprobs[at], tuple(ranked)))
        if not waits:
            done.append(at + 1)
    return tuple(found)


def _rest(said: str, whole: str) -> str:
    """What `whole` adds to it."""
    return whole[len(said) :] if whole.startswith(said) else whole


def label_ids(codec: TextCodec, constraint: Constraint | None, most: int) -> tuple[int, ...]:
    """Ids that can be part of a label that a constraint enumerates, for watching while text is generated.

    Args:
        codec: tokenises the labels, with and without what may stand before them.
        constraint: its enumerations and booleans are the labels.
        most: ids at most; those that can begin a label come first.
    """
    forms = [constraint.choice] if constraint is not None and constraint.choice else []
    texts = [form for some in forms for form in some]
    if constraint is not None and constraint.json_schema is not None:
        texts = [json.dumps(value, ensure_ascii=False) for value in _labels(constraint.json_schema)]
    written = [w for text in dict.fromkeys(texts) for w in (text, f" {text}", text.removeprefix('"'))]
    # A label need not be written in its usual tokens: `y` and `es` are allowed where `yes` is.
    beginnings = [codec.encode(one[:end]) for one in written for end in range(1, len(one) + 1)]
    firsts = [ids[0] for ids in beginnings if len(ids) == 1]
    rest = [token_id for one in written for token_id in codec.encode(one)]
    return tuple(dict.fromkeys((*firsts, *rest)))[:most]


def _labels(schema: Any) -> Iterator[Any]:
    """Values of all enumerations of a JSON schema, in order."""
    if isinstance(schema, Mapping):
        if isinstance(schema.get("enum"), Sequence):
            yield from schema["enum"]
        if schema.get("type") == "boolean":
            yield from (True, False)
        for value in schema.values():
            yield from _labels(value)
    elif isinstance(schema, Sequence) and not isinstance(schema, str):
        for value in schema:
            yield from _labels(value)
