"""Joins the lines of a paragraph: with a space, without one, or across a hyphen.

There is no dictionary. Whether a hyphen at the end of a line belongs to the word is decided by the other words of the
document, then by the form of both parts; see `LineJoiner`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

_SOFT_HYPHEN = "\u00ad"
_HYPHENS = "-\u2010\u2011"
_LIGATURES = {
    0xFB00: "ff",
    0xFB01: "fi",
    0xFB02: "fl",
    0xFB03: "ffi",
    0xFB04: "ffl",
    0xFB05: "st",
    0xFB06: "st",
}
_WORD = re.compile(rf"[^\W\d_]+(?:[{_HYPHENS}][^\W\d_]+)*")
_LAST_WORD = re.compile(rf"((?:[^\W\d_]+[{_HYPHENS}])*)([^\W\d_]+)$")
_FIRST_WORD = re.compile(r"[^\W\d_]+")
UNSPACED = re.compile(
    "[\u0e00-\u0eff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u2e80-\u303f\u3040-\u30ff\u3100-\u312f\u31a0-\u31ff"
    "\u3400-\u9fff\uf900-\ufaff\ufe30-\ufe4f\uff01-\uff65\U00020000-\U0003ffff]"
)
"""Characters of scripts that are written without spaces: Chinese, Japanese, Thai, Lao, Tibetan, Burmese, Khmer."""
_KEEPS_HYPHEN = frozenset(("well", "self"))
"""First parts that nearly always keep their hyphen."""
_CONJUNCTIONS_NAMES = "and or to und oder bis sowie et ou y o e en of och"
_CONJUNCTIONS = frozenset(_CONJUNCTIONS_NAMES.split())
"""Words after a hyphen that stands for a part left out, as in `pre- and post-war`."""


def clean_text(text: str) -> str:
    """Return a text with ligatures as letters and without NUL characters and soft hyphens inside words."""
    if text.isascii():
        return text.replace("\0", "")
    text = text.translate(_LIGATURES).replace("\0", "")
    return text[:-1].replace(_SOFT_HYPHEN, "") + text[-1:]


class LineJoiner:
    """Joins lines by the words of their document.

    Args:
        lines: all lines of the document.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        # words that are not cut at the end of a line
        words: Counter[str] = Counter()
        after_hyphen = False
        for line in lines:
            in_line = _WORD.findall(line)
            is_cut = line.endswith(tuple(_HYPHENS))
            if in_line and is_cut and line[:-1].endswith(in_line[-1]):
                in_line.pop()
            if in_line and after_hyphen and line.startswith(in_line[0]):
                del in_line[0]
            words.update(in_line)
            after_hyphen = is_cut
        self._counts: Counter[str] = Counter()
        for word, count in words.items():
            self._counts[_folded(word)] += count

    def join(self, lines: Sequence[str]) -> str:
        """Return the text of a paragraph."""
        parts: list[str] = []
        for line in lines:
            if parts:
                parts[-1], line = self._join_pair(parts[-1], line)
            parts.append(line)
        return "".join(parts)

    def _join_pair(self, line: str, following: str) -> tuple[str, str]:
        """Return two lines so that one can be appended to the other."""
        if not line or not following:
            return line, following
        last, first = line[-1], following[0]
        if last == _SOFT_HYPHEN:
            return line[:-1], following
        if last in _HYPHENS and len(line) > 1 and not line[-2].isspace():
            return self._join_hyphen(line[:-1], following)
        if UNSPACED.match(last) and UNSPACED.match(first):
            return line, following
        if last in "\u2013\u2014/" and len(line) > 1 and not line[-2].isspace():
            return line, following
        return line + " ", following

    def _join_hyphen(self, line: str, following: str) -> tuple[str, str]:
        """Return two lines joined by the hyphen between them, or without it."""
        before, after = _LAST_WORD.search(line), _FIRST_WORD.match(following)
        if before is None or after is None:  # numbers, signs
            return line + "-", following
        if after[0] in _CONJUNCTIONS:
            return line + "- ", following
        if self._keeps_hyphen(before[1], before[2], after[0]):
            return line + "-", following
        if before[2][-1] == "ß" and after[0][0] == "ß":  # no German word has two
            following = following[1:]
        return line, following

    def _keeps_hyphen(self, compound: str, first: str, second: str) -> bool:
        """Return whether a hyphen at the end of a line is part of the word.

        1. A word that the document also holds within a line, with or without the hyphen, decides.
        2. By form: single letters (`e-mail`), acronyms (`GPU-based`), names (`Rhein-Main`), and words with a hyphen
           before (`state-of-the-art`) keep it.
        3. Where the document holds both parts as words, but never joined, it is a compound.
        4. Else the word was cut where the line was full.
        """
        joined = self._counts[_folded(first + second)]
        hyphenated = self._counts[_folded(f"{compound}{first}-{second}")]
        if joined or hyphenated:
            return hyphenated >= joined
        if len(first) == 1 or compound or first.lower() in _KEEPS_HYPHEN:
            return True
        if second[0].isupper() or first.isupper():
            return not (first.isupper() and second.isupper())
        return min(self._counts[_folded(first)], self._counts[_folded(second)]) > 0


def _folded(word: str) -> str:
    return word.lower().replace("\u2010", "-").replace("\u2011", "-")
