"""Finds the sentences of a text, as spans of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from retrieval.errors import UserError

Span: TypeAlias = tuple[int, int]
SentenceFinder: TypeAlias = Callable[[str], Sequence[Span]]

_BLOCK = re.compile(r"\S.*(?:\n[^\S\n]*\S.*)*")
_SURROGATES = re.compile(r"[\ud800-\udfff]")
_MAX_CHARACTERS = 100_000
"""Characters that a sentence finder gets at once; its memory grows with them."""


def sentence_finder(name: str = "rules") -> SentenceFinder:
    """Return the sentencizer of spaCy, or the sentences of a spaCy model. It is loaded once, here."""
    import spacy

    if name == "rules":
        nlp = spacy.blank("en")
        nlp.add_pipe("sentencizer")
    else:
        try:
            nlp = spacy.load(name, exclude=["ner", "lemmatizer", "attribute_ruler"])
        except OSError as error:
            raise UserError(f"no spaCy model {name!r}; run: python -m spacy download {name}") from error
        if not {"parser", "senter", "sentencizer"} & set(nlp.pipe_names):
            nlp.add_pipe("sentencizer")

    def find(text: str) -> list[Span]:
        # spaCy cannot read lone surrogates; offsets stay, as each is replaced by one character.
        document = nlp(_SURROGATES.sub("\ufffd", text))
        return [(sentence.start_char, sentence.end_char) for sentence in document.sents]

    return find


def sentences(text: str, find: SentenceFinder) -> list[Span]:
    """Return the sentences of a text of any length, without white space around them; a blank line ends a sentence."""
    spans: list[Span] = []
    for start, end in _blocks(text):
        for left, right in find(text[start:end]):
            span = trim(text, start + left, start + right)
            if span[0] < span[1]:
                spans.append(span)
    return spans


def trim(text: str, start: int, end: int) -> Span:
    """Return the part of a span without white space at its ends."""
    body = text[start:end]
    return start + len(body) - len(body.lstrip()), end - (len(body) - len(body.rstrip()))


def _blocks(text: str) -> Iterable[Span]:
    """Yield the paragraphs, in parts that a sentence finder takes; parts are cut at white space if possible."""
    for block in _BLOCK.finditer(text):
        start, end = block.span()
        while end - start > _MAX_CHARACTERS:
            limit = start + _MAX_CHARACTERS
            space = max(text.rfind(" ", start, limit), text.rfind("\n", start, limit))
            cut = space if space > start else limit
            yield start, cut
            start = cut
        yield start, end
