"""Finds compounds by their parts, and parts by a compound, in the words of an index; no dictionary is needed.

An index holds the end of each long word as a term of its own: the stem from its last letter to its first. So words that
begin or end with a word are neighbours in the list of terms.
"""

from __future__ import annotations

from typing import Any

_LEAST_COMPOUND = 8  # letters of the stem of a compound
_LEAST_PART = 4  # letters of a part of it
_ANY_HEAD = "feder"  # stands for the first part of any compound
_MOST_COMPOUNDS = (
    50  # that begin, and that end, with a word of a query; the most frequent
)
_MOST_REMEMBERED = 100_000  # words whose ends are remembered


class Compounds:
    """Compounds of a language. Safe to use from many threads.

    Args:
        tokenizer: analyzer of tantivy that makes the terms of the index.
        longest: bytes of the longest word that it keeps.
    """

    def __init__(self, tokenizer: Any, longest: int) -> None:
        self._tokenizer = tokenizer
        self._longest = longest - len(_ANY_HEAD)
        self._endings: dict[str, str] = {}

    def endings(self, spaced: str) -> str:
        """Return the ends of the long words of a text, with spaces between them."""
        words = [word for word in spaced.split() if len(word) >= _LEAST_COMPOUND]
        return " ".join(self._ending_of(word) for word in words)

    def _ending_of(self, word: str) -> str:
        """Return the term that stands for a word by its end, or an empty text where its stem is too short."""
        ending = self._endings.get(word)
        if ending is None:
            stem = "".join(self._tokenizer.analyze(word))
            # no stemmer changes a word that ends with a sign
            ending = f"<{stem[::-1]}>" if len(stem) >= _LEAST_COMPOUND else ""
            if len(self._endings) < _MOST_REMEMBERED:
                self._endings[word] = ending
        return ending

    def forms(self, searcher: Any, word: str) -> list[str]:
        """Return the terms of an index for compounds with a folded word, and both parts of a compound as one form."""
        if len(word) < _LEAST_PART or len(word.encode()) > self._longest:
            return []
        forms: list[str] = []
        (stem,) = self._tokenizer.analyze(word)
        # in a longer word a stemmer takes more away
        (as_end,) = self._tokenizer.analyze(_ANY_HEAD + word)
        for beginning in (stem, f"<{as_end.removeprefix(_ANY_HEAD)[::-1]}"):
            terms = searcher.terms_with_prefix("body", beginning, limit=_MOST_COMPOUNDS)
            least = max(_LEAST_COMPOUND, len(beginning) + 3)
            forms += [term for term, _ in terms if len(term) >= least]
        if len(word) >= _LEAST_COMPOUND:
            forms += self._parts(searcher, word)
        return forms

    def _parts(self, searcher: Any, word: str) -> list[str]:
        """Return the two words of the index that make a compound, as one form; or none.

        Of several pairs it is the one whose rarer word is the most frequent. A stem of the first word lacks what joins
        the two, such as the `s` of `Kündigungsfrist`.
        """
        best, most = list[str](), 0
        for cut in range(_LEAST_PART, len(word) - _LEAST_PART + 1):
            stems = self._tokenizer.analyze(f"{word[:cut]} {word[cut:]}")
            rarer = min(searcher.doc_freq("body", stem) for stem in stems)
            if len(stems) == 2 and rarer > most:
                best, most = [" ".join(stems)], rarer
        return best
