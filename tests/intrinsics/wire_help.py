"""States, tokens and codecs for tests of the dialects."""

from __future__ import annotations

import math
import re

from retrieval.passage import Passage
from retrieval.sentences import Span
from selfrag.extensions.granite.registry import DIALECTS, DialectCodec, codec, intrinsics_of
from selfrag.intrinsics.catalog import catalog
from selfrag.intrinsics.contract import Message, State, TokenLogprob

ARGUMENTS = {
    "requirement": "short",
    "policy_text": "none",
    "answer_relevance_category": "x",
    "answer_relevance_analysis": "y",
    "correction_method": "z",
}
"""Of every intrinsic."""


def find(text: str) -> list[Span]:
    """Sentences end with a full stop and white space."""
    return [match.span() for match in re.finditer(r"\S.*?(?:\.(?=\s|$)|$)", text, re.DOTALL)]


def published(dialect: str, intrinsic: str) -> DialectCodec:
    """The codec whose requests are exactly those that were published, with the splitter above."""
    return codec(dialect, intrinsic, exact=False, find=find)


def exact(dialect: str, intrinsic: str) -> DialectCodec:
    """The codec that scores labels as slots."""
    return codec(dialect, intrinsic, find=find)


ALL = {
    **{f"chat {kind.name}": kind.default_codec() for kind in catalog()},
    **{
        f"{dialect} {name} {make.__name__}": make(dialect, name)
        for dialect in DIALECTS
        for name in intrinsics_of(dialect)
        for make in (exact, published)
    },
}
"""Every codec there is."""


def state(*turns: str, documents: tuple[str, ...] = (), **arguments: str) -> State:
    """User and assistant by turns, so that the last one is a user's if their number is odd."""
    messages = tuple(Message("assistant" if i % 2 else "user", text) for i, text in enumerate(turns))
    passages = tuple(Passage(str(i), text) for i, text in enumerate(documents))
    return State(messages, passages, arguments)


def token(*pairs: tuple[str, float]) -> TokenLogprob:
    """A generated token, the first pair, and its alternatives, as probabilities."""
    top = tuple((text, math.log(p)) for text, p in pairs)
    return TokenLogprob(*top[0], top)


def plain(text: str) -> tuple[TokenLogprob, ...]:
    """A token that had no alternative."""
    return (token((text, 1.0)),)
