"""Cuts a text into passages of whole sentences, and of whole rows of tables, with a word budget and overlap.

Passages are spans of the original text, so offsets are free and nothing is lost: every character that is not white
space is in at least one passage. A table that is longer than a passage is cut between its rows, and each of its
passages begins with the header row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from retrieval.sentences import SentenceFinder, Span, sentences, trim
from selfrag.common.checks import check_int

if TYPE_CHECKING:
    from retrieval.documents.document import Table

# Scripts without spaces count one word a character (Chinese, Japanese) or one for four (Thai, Lao, Tibetan, Burmese,
# Khmer); a run without spaces counts a word per 64 characters, so that none can make a passage that no encoder reads.
_CJK = "\u3040-\u30ff\u3100-\u312f\u3400-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
_UNSPACED = "\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff"
_MARKS = "\u0e31\u0e34-\u0e3a\u0e47-\u0e4e\u0eb1\u0eb4-\u0ebc\u0ec8-\u0ece\u0f71-\u0fbc\u102b-\u103e\u17b4-\u17d3"
_WORD = re.compile(
    rf"[{_CJK}]|[{_UNSPACED}]{{1,4}}[{_MARKS}]{{0,8}}|[^\s{_CJK}{_UNSPACED}]{{1,64}}"
)


@dataclass(frozen=True, slots=True)
class Splitting:
    """How documents are read and become passages.

    Attributes:
        words: most words of a passage. A longer sentence is cut between words.
        overlap: sentences that a passage repeats from the one before, as far as the budget allows.
        row_words: most words of a row of a table; a longer one becomes passages of at most `words`. None: no bound.
        sentences: `rules` for all languages, or the name of an installed spaCy model.
        ocr: languages of tesseract for scanned pages, such as `eng+deu`, or none. None leaves these out.
        text_column: column of a table with the text of its passages. None takes `text`, else all columns of a row.
        title_column: column of a table with the titles. None takes `title`, if it is there.
        id_column: column of a table with the ids. None takes `id` or `_id`; without them rows are numbered.
    """

    words: int = 100
    overlap: int = 1
    row_words: int | None = 400
    sentences: str = "rules"
    ocr: str | None = None
    text_column: str | None = None
    title_column: str | None = None
    id_column: str | None = None

    def __post_init__(self) -> None:
        check_int("words", self.words)
        check_int("overlap", self.overlap, 0)
        if self.row_words is not None:
            check_int("row_words", self.row_words)


@dataclass(frozen=True, slots=True)
class PassageSpans:
    """Where a passage stands in a text."""

    start: int  # offset of its first character, behind a repeated header
    end: int  # offset after its last
    # header row of a table that is repeated in front; None where there is none to repeat
    header: Span | None = None
    # number of the table row that it is a part of, the header being 0; None for other passages
    row: int | None = None

    def text_in(self, text: str) -> str:
        """Return the passage, given the text that was split."""
        body = text[self.start : self.end]
        if self.header is None:
            return body
        return f"{text[slice(*self.header)]}\n{body}"


@dataclass(frozen=True, slots=True)
class _Piece:
    """A sentence, a row or a small table: what is not cut any further."""

    start: int
    end: int
    words: int
    # header row that a passage repeats which begins with this piece
    header: Span | None = None
    header_words: int = 0
    is_sentence: bool = True  # only sentences are repeated as overlap
    # number of the row that it is a part of; such a piece is a passage of its own
    row: int | None = None


def count_words(text: str) -> int:
    """Count the words of a text: runs between spaces, and one or four characters in scripts without spaces."""
    return sum(1 for _ in _WORD.finditer(text))


def split(
    text: str,
    splitting: Splitting,
    find: SentenceFinder,
    *,
    tables: Sequence[Table] = (),
    within: Span | None = None,
) -> list[PassageSpans]:
    """Return the passages of a text, in order; none for a blank text.

    Args:
        text: a document.
        splitting: the word budget and the overlap.
        find: gives the sentence spans of a text.
        tables: tables in the part that is split, in order.
        within: the part of the text that is split; None for all of it.
    """
    position, end = within or (0, len(text))
    pieces: list[_Piece] = []
    for table in tables:
        start, table_end = table.span
        pieces += _text_pieces(text, (position, start), splitting, find)
        pieces += _table_pieces(text, table, splitting, find)
        position = table_end
    pieces += _text_pieces(text, (position, end), splitting, find)
    return _pack(pieces, splitting)


def _text_pieces(
    text: str, span: Span, splitting: Splitting, find: SentenceFinder
) -> Iterable[_Piece]:
    """Yield the sentences of a part of a text, long ones in parts of as many words as a passage may have."""
    begin, end = span
    part = text[begin:end]
    for sentence in sentences(part, find):
        words = [match.span() for match in _WORD.finditer(part, *sentence)]
        for first in range(0, len(words), splitting.words):
            some = words[first : first + splitting.words]
            yield _Piece(begin + some[0][0], begin + some[-1][1], len(some))


def _table_pieces(
    text: str, table: Table, splitting: Splitting, find: SentenceFinder
) -> Iterable[_Piece]:
    """Yield a table that fits a passage as one piece, and one that does not row by row."""
    start, end = table.span
    words = count_words(text[start:end])
    if words <= splitting.words:
        yield _Piece(start, end, words, is_sentence=False)
        return
    header, header_words = table.header, 0
    rows, first_number = list(table.rows), 1
    if header is not None:
        header_words = count_words(text[slice(*header)])
        # too long to stand in front of other rows: a row itself
        if header_words > splitting.words // 2 or not rows:
            rows.insert(0, header)
            header, header_words, first_number = None, 0, 0
    room = splitting.words - header_words
    position = start if header is None else header[1]
    for number, (_, row_end) in enumerate(rows, first_number):
        # with what a reader left between two rows
        row_start, row_end = trim(text, position, row_end)
        position = row_end
        words = count_words(text[row_start:row_end])
        if words > room:
            for part in split(
                text, replace(splitting, words=room), find, within=(row_start, row_end)
            ):
                words = count_words(text[part.start : part.end])
                yield _Piece(
                    part.start,
                    part.end,
                    words,
                    header,
                    header_words,
                    is_sentence=False,
                    row=number,
                )
        elif number == 1 and header is not None:
            yield _Piece(header[0], row_end, header_words + words, is_sentence=False)
        else:
            yield _Piece(
                row_start, row_end, words, header, header_words, is_sentence=False
            )


def _pack(pieces: Sequence[_Piece], splitting: Splitting) -> list[PassageSpans]:
    """Fill passages greedily, the last `overlap` sentences of each again at the head of the next."""
    passages: list[PassageSpans] = []
    begin = 0
    new = 0  # first piece of the passage, first piece that no passage holds yet
    while new < len(pieces):
        # 1. Drop repeated sentences until the first new piece fits.
        total = pieces[new].header_words + sum(
            piece.words for piece in pieces[begin : new + 1]
        )
        while begin < new and (total > splitting.words or pieces[new].row is not None):
            total -= pieces[begin].words
            begin += 1
        # 2. Add pieces as long as they fit.
        end = new + 1
        while end < len(pieces) and total + pieces[end].words <= splitting.words:
            if pieces[end - 1].row is not None or pieces[end].row is not None:
                break
            total += pieces[end].words
            end += 1
        passages.append(
            PassageSpans(
                pieces[begin].start,
                pieces[end - 1].end,
                pieces[begin].header,
                pieces[begin].row,
            )
        )
        # 3. Go back over the sentences that the next passage repeats.
        first, begin, new = max(begin + 1, end - splitting.overlap), end, end
        while begin > first and pieces[begin - 1].is_sentence:
            begin -= 1
    return passages
