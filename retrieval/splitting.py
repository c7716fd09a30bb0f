"""Cuts a text into passages of whole sentences with a word budget and overlap.

Everything is a span of the original text, so offsets are free and nothing is lost: every character that is not white
space is in at least one passage.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from retrieval.checks import whole
from retrieval.errors import UserError

Span: TypeAlias = tuple[int, int]
SentenceFinder: TypeAlias = Callable[[str], Sequence[Span]]

# Scripts without spaces count one word a character; a run without spaces counts a word per 64 characters, so that
# neither can make a passage that no encoder reads.
_CJK = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_CJK}]|[^\s{_CJK}]{{1,64}}")
_BLOCK = re.compile(r"\S.*(?:\n[^\S\n]*\S.*)*")
_SURROGATES = re.compile(r"[\ud800-\udfff]")
_MOST = 100_000  # characters that a sentence finder gets at once; its memory grows with them


@dataclass(frozen=True, slots=True)
class Splitting:
    """How documents become passages."""

    words: int = 100  # most words of a passage, >= 1. A longer sentence is cut between words.
    overlap: int = 1  # sentences that a passage repeats from the one before, >= 0, as far as the budget allows
    sentences: str = "rules"  # `rules` for spaCy's rule-based sentencizer, or the name of an installed spaCy model

    def __post_init__(self) -> None:
        whole("words", self.words)
        whole("overlap", self.overlap, 0)


def count_words(text: str) -> int:
    """Words of a text: runs between spaces, and single characters in scripts without spaces."""
    return sum(1 for _ in _WORD.finditer(text))


def sentence_finder(name: str = "rules") -> SentenceFinder:
    """The sentencizer of spaCy, or the sentences of a spaCy model. Loaded once, here."""
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
    # spaCy cannot read lone surrogates; offsets stay, as each is replaced by one character.
    return lambda text: [(one.start_char, one.end_char) for one in nlp(_SURROGATES.sub("\ufffd", text)).sents]


def sentences(text: str, find: SentenceFinder) -> list[Span]:
    """Spans of the sentences of a text of any length, without white space around them; a blank line ends a sentence."""
    found = (
        _trim(text, start + left, start + right)
        for start, end in _blocks(text)
        for left, right in find(text[start:end])
    )
    return [(start, end) for start, end in found if start < end]


def split(text: str, splitting: Splitting, find: SentenceFinder) -> list[Span]:
    """Spans of the passages of `text`, in order; none for a blank text. `find` gives the sentence spans of a text."""
    pieces = [piece for span in sentences(text, find) for piece in _cut(text, span, splitting.words)]
    return _pack([(piece, count_words(text[piece[0] : piece[1]])) for piece in pieces], splitting)


def _blocks(text: str) -> Iterable[Span]:
    """Paragraphs: a blank line ends a sentence. Very long ones come in parts, cut at white space if possible."""
    for block in _BLOCK.finditer(text):
        start, end = block.span()
        while end - start > _MOST:
            space = max(text.rfind(" ", start, start + _MOST), text.rfind("\n", start, start + _MOST))
            cut = space if space > start else start + _MOST
            yield start, cut
            start = cut
        yield start, end


def _trim(text: str, start: int, end: int) -> Span:
    body = text[start:end]
    return start + len(body) - len(body.lstrip()), end - (len(body) - len(body.rstrip()))


def _cut(text: str, span: Span, budget: int) -> Iterable[Span]:
    """A sentence in parts of at most `budget` words; no part for a blank one."""
    words = [match.span() for match in _WORD.finditer(text, *span)]
    for first in range(0, len(words), budget):
        part = words[first : first + budget]
        yield part[0][0], part[-1][1]


def _pack(pieces: Sequence[tuple[Span, int]], splitting: Splitting) -> list[Span]:
    """Greedy: as many pieces as fit, the last `overlap` of them again at the head of the next passage."""
    spans: list[Span] = []
    begin, new = 0, 0  # first piece of the passage, first piece that no passage holds yet
    while new < len(pieces):
        total = sum(words for _, words in pieces[begin : new + 1])
        while total > splitting.words and begin < new:
            total -= pieces[begin][1]
            begin += 1
        end = new + 1
        while end < len(pieces) and total + pieces[end][1] <= splitting.words:
            total += pieces[end][1]
            end += 1
        spans.append((pieces[begin][0][0], pieces[end - 1][0][1]))
        begin, new = max(begin + 1, end - splitting.overlap), end
    return spans
