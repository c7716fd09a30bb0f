"""Finds the sentences of a text, as spans of it.

`rules` is the finder for all languages, in time that grows linearly with the text. English, and all scripts that write
a space after a full stop, have the rules of spaCy's sentencizer: a sentence ends after a full stop that is a token of
its own, and the next one begins with the first token that is no punctuation. Full stops of other scripts (`。`, `।`,
`؟`, `።`, ..) end a sentence without a space behind them too. In Thai and Lao, which have no full stops, a space ends a
sentence that is long enough. Models of spaCy follow their own rules. Where spaCy is not installed, the same rules work
on the letters and the last sign of each word, with a few abbreviations.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any, TypeAlias

from selfrag.common.errors import UserError, require

Span: TypeAlias = tuple[int, int]
SentenceFinder: TypeAlias = Callable[[str], Sequence[Span]]

_BLOCK = re.compile(r"\S.*(?:\n[^\S\n]*\S.*)*")
_SURROGATES = re.compile(r"[\ud800-\udfff]")
_MAX_CHARACTERS = 100_000
"""Characters that a sentence finder gets at once; its memory grows with them."""


def sentence_finder(name: str = "rules") -> SentenceFinder:
    """Return the finder by rules, or the sentences of a spaCy model. It is loaded once, here."""
    if name == "rules":
        return _RuleFinder()
    spacy = require("spacy", extra="cpu")
    try:
        nlp = spacy.load(name, exclude=["ner", "lemmatizer", "attribute_ruler"])
    except OSError as error:
        raise UserError(
            f"no spaCy model {name!r}; run: python -m spacy download {name}"
        ) from error
    if not {"parser", "senter", "sentencizer"} & set(nlp.pipe_names):
        nlp.add_pipe("sentencizer")

    def find(text: str) -> list[Span]:
        document = nlp(_without_surrogates(text))
        return [(sentence.start_char, sentence.end_char) for sentence in document.sents]

    return find


@cache
def has_spacy() -> bool:
    """Return whether the rules can use spaCy's tokenizer and abbreviations."""
    return find_spec("spacy") is not None


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
    return start + len(body) - len(body.lstrip()), end - (
        len(body) - len(body.rstrip())
    )


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


def _without_surrogates(text: str) -> str:
    """Replace lone surrogates, which spaCy cannot read, by one character each, so that offsets stay."""
    return _SURROGATES.sub("\ufffd", text)


_MAX_LENGTH, _MAX_SIGNS = 64, 16
"""Characters of a word, and how many of them are no letters or figures, up to which spaCy looks at it: its time grows
with the product."""
_MORE_SIGNS = 4
"""How many more such characters than letters and figures there may be, too."""
_CACHED_WORDS = 1 << 16
_MIN_THAI = 20
"""Characters of a sentence that a space can end."""

_MORE_STOPS = "\u037e\u0f0d\u0f0e\u0f0f\u0f10\u0f11\u0f14\u17d4\u17d5"
"""Greek, Tibetan and Khmer full stops, which spaCy does not have."""
_NO_STOPS = ".!?\u104a\uff0e"
"""Of spaCy's full stops, those that do not end a sentence everywhere: Latin ones, a Burmese comma, and the wide one."""
_CLOSING = "\"'\u2019\u201d\u00bb\u203a\u3009\u300b\u300d\u300f\u3011\u3015\u3017\uff09\uff3d\uff5d\uff63)]}"
_THAI = "[\u0e01-\u0e2e\u0e30-\u0e45\u0e47-\u0e4e\u0e81-\u0ec5\u0ec8-\u0ecf]"
_THAI_SPACE = re.compile(rf"(?<={_THAI})\s+(?={_THAI})")
# Scripts after whose letters the English rules see no full stop; fewer of them may be an initial.
_OTHER_LETTERS = "[\u0530-\u1dff\u2d00-\u2dff\u3040-\uabff\uac00-\ud7ff]"
_OTHER_STOP = re.compile(rf"(?<={_OTHER_LETTERS}{{3}})\.(?=\W*$)")
_STOPS = ".!?։؟۔।॥။።፧‼⁇⁈⁉！．？｡。"
"""Full stops of common scripts, for the rules without spaCy."""
_ABBREVIATIONS = re.compile(
    r"\W*(?:[^\W\d_]\.)+|\W*(?:mrs?|ms|dr|prof|st|jr|sr|vs|no|vol|pp?|fig|ca?|etc|inc|approx|bzw|nr)\.",
    re.IGNORECASE,
)
"""Words with a full stop that ends no sentence, likewise: single letters with full stops, and a few titles."""
_PLAIN = re.compile(r"[A-Za-z]*[a-z]{2}[.!?]")
"""Words whose full stop spaCy splits off unless they are among its abbreviations."""
_SPACE, _WORD = re.compile(r"\s*"), re.compile(r"\S+")

_Tokens: TypeAlias = tuple[tuple[int, bool], ...]
"""Offset of each token of a word, and whether it is a full stop; other punctuation is left out."""


def _is_simple(word: str) -> bool:
    if len(word) > _MAX_LENGTH:
        return False
    letters = sum(map(str.isalnum, word))
    signs = len(word) - letters
    return signs <= min(_MAX_SIGNS, letters + _MORE_SIGNS)


class _RuleFinder:
    """Finds sentences by rules. Safe to call from several threads."""

    def __init__(self) -> None:
        self._tokenizer: Any = None
        self._stops = frozenset(_STOPS)
        if has_spacy():
            import spacy
            from spacy.pipeline import Sentencizer

            self._tokenizer = spacy.blank("en").tokenizer
            self._stops = frozenset(Sentencizer.default_punct_chars)
        stops = "".join(sorted(self._stops - set(_NO_STOPS))) + _MORE_STOPS
        ends = re.escape(stops + _CLOSING + ".!?\uff0e")
        self._hard_stop = re.compile(
            rf"(?:[{re.escape(stops)}]|\uff0e(?![0-9A-Za-z\uff10-\uff5a]))[{ends}]*+(?:\s++[\u0f0d\u0f0e]++)*+"
        )
        latin = re.escape("".join(sorted(self._stops)))
        self._word_with_stop = re.compile(rf"(?<!\S)[^\s{latin}]*+[{latin}]\S*+")
        self._tokens: Callable[[str], _Tokens] = lru_cache(_CACHED_WORDS)(
            self._tokens_by_spacy if has_spacy() else self._tokens_by_signs
        )

    def __call__(self, text: str) -> list[Span]:
        """Return the spans of the sentences; a space behind a sentence belongs to none."""
        text = _without_surrogates(text)
        spans: list[Span] = []
        for start, end in self._parts(text):
            starts = self._starts(text[start:end])
            for number, left in enumerate(starts):
                right = starts[number + 1] if number + 1 < len(starts) else end - start
                if (
                    right - left > 1
                    and text[start + right - 1] == " "
                    and not text[start + right - 2].isspace()
                ):
                    right -= 1
                spans.append((start + left, start + right))
        return spans

    def _parts(self, text: str) -> Iterator[Span]:
        """Yield the parts between full stops of other scripts, and between spaces in Thai and Lao."""
        if text.isascii():
            yield 0, len(text)
            return
        start = 0
        ends = [match.end() for match in self._hard_stop.finditer(text)]
        for end in [*ends, len(text)]:
            for space in _THAI_SPACE.finditer(text, start, end):
                if space.start() - start >= _MIN_THAI:
                    yield start, space.start()
                    start = space.end()
            yield start, end
            start = _SPACE.match(text, end).end()  # type: ignore[union-attr]

    def _starts(self, text: str) -> list[int]:
        """Return where the sentences of a part begin."""
        if not text:
            return []
        starts, position = [0], 0
        while match := self._word_with_stop.search(text, position):
            position = match.end()
            after_stop = self._read_word(match[0], match.start(), False, starts)
            # The next token that is no punctuation begins a sentence. White space is one, except a single space.
            while after_stop and position < len(text):
                after_space = _SPACE.match(text, position).end()  # type: ignore[union-attr]
                attached = text[position] == " "
                if after_space - position > attached:
                    starts.append(position + attached)
                    break
                if after_space == len(text) or text[after_space].isalnum():
                    starts += [after_space] * (after_space < len(text))
                    position = after_space
                    break
                word = _WORD.match(text, after_space)[0]  # type: ignore[index]
                after_stop = self._read_word(word, after_space, True, starts)
                position = after_space + len(word)
        return starts

    def _read_word(
        self, word: str, offset: int, after_stop: bool, starts: list[int]
    ) -> bool:
        """Add the starts of sentences inside a word, and return whether a full stop is the last token that counts."""
        tokens = self._tokens if _is_simple(word) else self._tokens_of_long
        for begin, is_stop in tokens(word):
            if is_stop:
                after_stop = True
            elif after_stop:
                starts.append(offset + begin)
                after_stop = False
        return after_stop

    def _tokens_by_spacy(self, word: str) -> _Tokens:
        """Return the tokens of a word as spaCy's English rules have them."""
        if _PLAIN.fullmatch(word) and word not in self._tokenizer.rules:
            return (0, False), (len(word) - 1, True)
        tokens: list[tuple[int, bool]] = []
        for token in self._tokenizer(word):
            is_stop = token.text in self._stops
            if is_stop or not token.is_punct:
                tokens.append((token.idx, is_stop))
        if not word.isascii() and not any(is_stop for _, is_stop in tokens):
            stop = _OTHER_STOP.search(word)
            if stop is not None:
                tokens.append((stop.start(), True))
        return tuple(tokens)

    def _tokens_by_signs(self, word: str) -> _Tokens:
        """Return the tokens of a word without spaCy: an abbreviation has no full stop."""
        tokens = self._tokens_of_long(word)
        return tokens[:1] if _ABBREVIATIONS.fullmatch(word) else tokens

    def _tokens_of_long(self, word: str) -> _Tokens:
        """Return the first letter of a long word, and a full stop behind its last one."""
        letters = [
            offset for offset, character in enumerate(word) if character.isalnum()
        ]
        tokens = [(letters[0], False)] if letters else []
        tail = letters[-1] + 1 if letters else 0
        for offset in range(tail, len(word)):
            is_ellipsis = word[offset] == "." and "." in (
                word[offset - 1 : offset],
                word[offset + 1 : offset + 2],
            )
            if word[offset] in self._stops and not is_ellipsis:
                tokens.append((offset, True))
                break
        return tuple(tokens)
