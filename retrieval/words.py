"""Search by words: BM25 over stems, in an index of tantivy that is memory-mapped."""

from __future__ import annotations

import os
import re
import shutil
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from errno import EDQUOT, EFBIG, ENOSPC
from itertools import chain, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from retrieval.normalisation import (
    spaced_words,
    without_accents,
    word_terms,
    written_together,
)
from retrieval.vectors import Mask, VectorHits
from selfrag.common.errors import UserError
from selfrag.common.untrusted import replace_surrogates

if TYPE_CHECKING:
    from retrieval.compounds import Compounds

_CODES = (
    "arabic=ar bengali=bn bulgarian=bg burmese=my catalan=ca chinese=zh croatian=hr czech=cs danish=da "
    "dutch=nl english=en estonian=et finnish=fi french=fr german=de greek=el hebrew=he hindi=hi "
    "hungarian=hu indonesian=id italian=it japanese=ja khmer=km korean=ko lao=lo latvian=lv lithuanian=lt "
    "malay=ms marathi=mr nepali=ne norwegian=no persian=fa polish=pl portuguese=pt romanian=ro russian=ru "
    "serbian=sr slovak=sk slovenian=sl spanish=es swahili=sw swedish=sv tamil=ta telugu=te thai=th "
    "turkish=tr ukrainian=uk urdu=ur vietnamese=vi other=und "
)
LANGUAGES = dict(pair.split("=") for pair in _CODES.split())
"""Names and ISO 639-1 codes. `other` stands for any other language: its words are compared without stems."""
_STEMMED_NAMES = (
    "arabic danish dutch english finnish french german greek hungarian italian norwegian portuguese "
    "romanian russian spanish swedish tamil turkish "
)
STEMMED = frozenset(_STEMMED_NAMES.split())
"""Languages whose words are compared by their stems."""
_NAMES_WITHOUT_LATIN = (
    "bengali burmese chinese hebrew hindi japanese khmer korean lao marathi nepali persian telugu thai "
    "urdu "
)
_WITHOUT_LATIN = frozenset(_NAMES_WITHOUT_LATIN.split())
_NAMES = {code: name for name, code in LANGUAGES.items()} | {
    "nb": "norwegian",
    "nn": "norwegian",
    "iw": "hebrew",
}


def language_name(language: str) -> str:
    """Return the name of a language that is given by name or code, in any case: `german` for `de`, `DE` or `de-AT`.

    Raises:
        UserError: no such language.
    """
    name = language.strip().casefold()
    if name in LANGUAGES:
        return name
    code = name.replace("_", "-").partition("-")[0]
    if code in _NAMES:
        return _NAMES[code]
    known = ", ".join(f"{name} ({code})" for name, code in LANGUAGES.items())
    raise UserError(f"language={language!r:.80}: choose auto, none, or one of {known}")


def stemmer_name(language: str) -> str | None:
    """Return the language whose stems and stop words a language uses, or None for words as they are.

    Where no word of a language is written in Latin letters, the Latin ones in its texts are stemmed as English.
    """
    if language in STEMMED:
        return language
    return "english" if language in _WITHOUT_LATIN else None


_COMPOUNDING_NAMES = "danish dutch estonian finnish german hungarian norwegian swedish"
COMPOUNDING = frozenset(_COMPOUNDING_NAMES.split())
"""Languages that write compounds as one word."""
ANALYZER = 3
"""The version of the rules that make terms of a text. Words of an older one are made anew before they are searched."""
# tantivy has none for them
_WITHOUT_STOP_WORDS = frozenset(["arabic", "greek", "romanian", "tamil", "turkish"])
_LONGEST_WORD = 100
_MOST_WORDS = 200  # bytes of a word, and different words of a query that count
_LISTED_ROWS = 20_000  # so few allowed rows are named in the query
_MOST_FETCHED = 50_000
# endings of tantivy's files
_PIECES = frozenset([".fast", ".fieldnorm", ".idx", ".pos", ".store", ".term"])
_CHECKED = 1 << 26  # bytes of an index up to which every opening reads all of it
_SECOND_FORM = 0.1  # share of the score that the weaker form of a word adds, so that the exact form comes first
_MOST_REMEMBERED = 100_000  # words whose forms an analyzer remembers
_COMPOUND = 0.5  # share of the score of a word that a compound with it has

# German is also written without umlauts: `Muenchen`. In `neue` and `Quelle` the letters stand for themselves.
_GERMAN_UMLAUT = re.compile("([ao])e|(?<![aeiouqäöü])(u)e")
_TURKISH_I = str.maketrans({"I": "ı", "İ": "i"})
_LETTERS_OR_DIGITS = re.compile(r"\d+|[^\W\d_]+")
_DIGIT = re.compile(r"\d")


class WordAnalyzer:
    """Makes terms of texts and queries. Safe to use from many threads.

    A word with accents has two terms, the word as it is written and the one without accents, so that either finds the
    other and the same spelling comes first.

    Args:
        language: name or code of a language, whose stems and stop words are used.

    Raises:
        UserError: no such language.
    """

    def __init__(self, language: str) -> None:
        import tantivy

        self.language = language_name(language)
        stemmer = stemmer_name(self.language)
        tokenizer = tantivy.Tokenizer.whitespace()
        filters = [tantivy.Filter.remove_long(_LONGEST_WORD)]
        stems = [] if stemmer is None else [tantivy.Filter.stemmer(stemmer)]
        without_stop_words = filters
        if stemmer is not None and stemmer not in _WITHOUT_STOP_WORDS:
            without_stop_words = [*filters, tantivy.Filter.stopword(stemmer)]
        self._query_tokenizer = _analyzer_of(tokenizer, [*without_stop_words, *stems])
        self.tokenizer = _analyzer_of(tokenizer, [*filters, *stems])
        """Makes terms of what `prepare` returns."""
        self.compounds: Compounds | None = None
        """What finds compounds, in an index of a language that has them."""
        if self.language in COMPOUNDING:
            from retrieval.compounds import Compounds

            self.compounds = Compounds(self.tokenizer, _LONGEST_WORD)
        self._forms: dict[str, tuple[str, ...]] = {}

    def prepare(self, text: str) -> str:
        """Return the words of a text with spaces between them, in all their forms, ready for `tokenizer`."""
        spaced = self._spaced(text)
        german = self.language == "german"
        if german or not spaced.isascii():
            words = spaced.split()
            for place, word in enumerate(words):
                if not word.isascii() or (german and _GERMAN_UMLAUT.search(word)):
                    forms = map(self._written_forms, word_terms(word, singles=True))
                    words[place] = " ".join(chain.from_iterable(forms))
            spaced = " ".join(words)
        if self.compounds is None:
            return spaced
        return f"{spaced} {self.compounds.endings(spaced)}"

    def terms(self, text: str) -> list[str]:
        """Return the terms of a text, in order."""
        terms: list[str] = self.tokenizer.analyze(self.prepare(text))
        return terms

    def query_terms(self, query: str) -> list[tuple[str, ...]]:
        """Return the different words of a query, at most 200, each as the forms that it may have in a text.

        A form is a term, or several terms with spaces between them, of which a text must hold all. Stop words count
        only where the query has no other words.
        """
        query = replace_surrogates(query)
        words = self._query_words(query, self._query_tokenizer)
        if not any(words):
            words = self._query_words(query, self.tokenizer)
        return list(dict.fromkeys(filter(None, words)))[:_MOST_WORDS]

    def _query_words(self, query: str, tokenizer: Any) -> list[tuple[str, ...]]:
        spaced = self._spaced(query)
        if spaced.isascii() and self.language != "german":
            words: list[tuple[str, ...]] = [
                (term,) for term in tokenizer.analyze(spaced)
            ]
        else:
            words = [
                self._query_forms(term, tokenizer)
                for word in spaced.split()
                for term in word_terms(word, singles=False)
            ]
        if _DIGIT.search(spaced):
            words += [(form,) for form in self._number_forms(spaced.split())]
        return words

    def _number_forms(self, words: Sequence[str]) -> Iterator[str]:
        """Yield the other spelling of numbered words: `rfc2119` of `rfc 2119`, `rfc 2119` of `rfc2119`."""
        for word in words:
            parts = _LETTERS_OR_DIGITS.findall(word)
            if len(parts) > 1:
                yield " ".join(self.tokenizer.analyze(" ".join(parts)))
        for first, second in pairwise(words):
            if first.isdecimal() != second.isdecimal():
                yield from self.tokenizer.analyze(first + second)

    def notice(self, query: str) -> str:
        """Return why a search by words cannot find what a query asks for, in one line, or an empty text."""
        if not self.query_terms(query):
            return "the query has no word to search for: signs do not count"
        return ""

    def content_words(self, query: str) -> list[str]:
        """Return the different folded words of a query that are no stop words, at most 200."""
        words = dict.fromkeys(self._spaced(replace_surrogates(query)).split())
        content = [word for word in words if self._query_tokenizer.analyze(word)]
        return content[:_MOST_WORDS]

    def _query_forms(self, word: str, tokenizer: Any) -> tuple[str, ...]:
        stems = tokenizer.analyze(" ".join(self._written_forms(word)))
        return tuple(dict.fromkeys(stems))

    def _spaced(self, text: str) -> str:
        if self.language == "turkish":
            text = text.translate(_TURKISH_I)
        together = written_together(text)
        if together:
            text = f"{text} {together}"
        return spaced_words(text, symbols=True)

    def _written_forms(self, word: str) -> tuple[str, ...]:
        """Return a word and, where its stem is another, the word without accents."""
        forms = self._forms.get(word)
        if forms is None:
            without = without_accents(word)
            if self.language == "german":
                without = _GERMAN_UMLAUT.sub(r"\1\2", without)
            forms = (word,)
            if without != word:
                stems = self.tokenizer.analyze(word)
                if stems and stems != self.tokenizer.analyze(without):
                    forms = (word, without)
            if len(self._forms) < _MOST_REMEMBERED:
                self._forms[word] = forms
        return forms


def _analyzer_of(tokenizer: Any, filters: Sequence[Any]) -> Any:
    """Return an analyzer of tantivy: a tokenizer and filters in their order."""
    import tantivy

    builder = tantivy.TextAnalyzerBuilder(tokenizer)
    for each in filters:
        builder = builder.filter(each)
    return builder.build()


class WordIndex:
    """BM25 (k1 1.2, b 0.75) over titles and texts, in a folder of `add_words`. Safe to search from many threads.

    Nothing is written into the folder, so that it may be read-only.

    Args:
        folder: of `add_words`.
        language: that it was made with.

    Raises:
        UserError: the folder holds no such index.
    """

    def __init__(self, folder: Path, language: str) -> None:
        import tantivy

        self._folder = folder
        self.analyzer = WordAnalyzer(language)
        self._schema = _schema(tantivy)
        try:
            _check_sums(folder)
            with _linked(folder) as links:
                self._searcher = tantivy.Index.open(links).searcher()
        except BaseException as error:
            if not _is_damage(error):
                raise
            raise _unreadable(folder, error) from error

    def __len__(self) -> int:
        return int(self._searcher.num_docs)

    def search(self, query: str, k: int, allowed: Mask | None = None) -> VectorHits:
        """Return the rows [1, at most k] that share words with a query, of which none is syntax; `allowed` is bool [n].

        Raises:
            UserError: the files of the index are damaged.
        """
        words = self.analyzer.query_terms(query)
        count = len(self) if allowed is None else int(np.count_nonzero(allowed))
        if not words or not count or not k:
            return VectorHits(np.zeros((1, 0), np.float32), np.zeros((1, 0), np.int64))
        try:
            queries = [self._word_query(forms) for forms in words]
            queries += self._compound_queries(query)
            hits, values = self._matches(queries, min(k, count), count, allowed)
        except BaseException as error:
            if not _is_damage(error):
                raise
            raise _unreadable(self._folder, error) from error
        if values and (None in values or min(values) < 0 or max(values) >= len(self)):
            raise _unreadable(self._folder, "it names rows that no passage has")
        rows = np.array(values, np.int64)
        scores = np.array([score for score, _ in hits], np.float32)
        if allowed is not None:
            fits = allowed[rows]
            rows, scores = rows[fits], scores[fits]
        order = np.lexsort((rows, -scores))[:k]
        return VectorHits(scores[None, order], rows[None, order])

    def _matches(
        self, queries: Sequence[Any], limit: int, count: int, allowed: Mask | None
    ) -> tuple[list[Any], list[Any]]:
        """Return the best hits and their rows; where many rows are allowed, others are among them."""
        import tantivy

        should, must = tantivy.Occur.Should, tantivy.Occur.Must
        query = tantivy.Query.boolean_query([(should, each) for each in queries])
        if allowed is not None and count <= _LISTED_ROWS:
            rows = tantivy.Query.term_set_query(
                self._schema, "row", np.flatnonzero(allowed).tolist()
            )
            query = tantivy.Query.boolean_query(
                [(must, query), (must, tantivy.Query.const_score_query(rows, 0.0))]
            )
        elif allowed is not None:
            limit = min(
                len(self), _MOST_FETCHED, 2 * limit * len(allowed) // count + 100
            )
        hits = self._searcher.search(query, limit, count=False).hits
        return hits, self._searcher.fast_field_values(
            "row", [place for _, place in hits]
        )

    def _word_query(self, forms: Sequence[str]) -> Any:
        """Return the query of a word: its only form, or the best of its forms and a little of the others."""
        import tantivy

        queries = [self._form_query(form) for form in forms]
        if len(queries) == 1:
            return queries[0]
        return tantivy.Query.disjunction_max_query(queries, tie_breaker=_SECOND_FORM)

    def _form_query(self, form: str) -> Any:
        """Return the query of a form: of its only term, or of all its terms."""
        import tantivy

        if " " in form:
            terms = [
                (tantivy.Occur.Must, self._form_query(term)) for term in form.split()
            ]
            return tantivy.Query.boolean_query(terms)
        return tantivy.Query.term_query(self._schema, "body", form, index_option="freq")

    def _compound_queries(self, query: str) -> Iterator[Any]:
        """Yield the queries of the compounds with a word of a query, and of the parts of a word that is a compound."""
        import tantivy

        if self.analyzer.compounds is not None:
            for word in self.analyzer.content_words(query):
                forms = self.analyzer.compounds.forms(self._searcher, word)
                if forms:
                    compound = self._word_query(forms)
                    yield tantivy.Query.boost_query(compound, _COMPOUND)


def _check_sums(folder: Path) -> None:
    """Raise UserError if a file of a small index does not fit its checksum: tantivy panics on some, and never checks.

    A file ends with JSON that holds the CRC-32 of all before it, the length of the JSON, and a number, 4 bytes each.
    """
    files = [file for file in folder.iterdir() if file.suffix in _PIECES]
    if sum(file.stat().st_size for file in files) > _CHECKED:
        return
    for file in files:
        content = file.read_bytes()
        length = int.from_bytes(content[-8:-4], "little")
        footer = content[-8 - length : -8]
        stated = re.search(rb'"crc":(\d{1,10})\}', footer)
        if stated is None or int(stated[1]) != zlib.crc32(content[: -8 - length]):
            raise _unreadable(folder, f"{file.name} is not as it was written")


def _is_damage(error: BaseException) -> bool:
    """Return whether tantivy raises an error for damaged files; a panic of Rust is no `Exception`."""
    return isinstance(error, ValueError | TypeError | OSError | OverflowError) or (
        type(error).__name__ == "PanicException"
    )


def _unreadable(folder: Path, why: object) -> UserError:
    return UserError(
        f"{folder} is no readable word index ({why!s:.200}); build the index again"
    )


@contextmanager
def _linked(folder: Path) -> Iterator[str]:
    """Yield a folder of links to the files: tantivy writes a lock beside what it opens, and holds the files open."""
    try:
        links = TemporaryDirectory(prefix="selfrag-words-", ignore_cleanup_errors=True)
    except OSError as error:
        raise UserError(
            f"search by words needs a folder for temporary files ({error.strerror}); set TMPDIR"
        ) from error
    with links as place:
        for file in folder.resolve().iterdir():
            if not file.name.endswith(".lock"):
                try:
                    _link(file, Path(place, file.name), symbolic=True)
                except OSError as error:
                    if error.errno not in (ENOSPC, EFBIG, EDQUOT):
                        raise
                    raise UserError(
                        f"no space left while writing {place} ({error.strerror}); free some, or set TMPDIR"
                    ) from error
        yield place


def _link(file: Path, target: Path, *, symbolic: bool = False) -> None:
    """Give a file that is never changed another name; JSON files are copied, since tantivy replaces them."""
    try:
        if file.suffix == ".json":
            raise OSError
        if symbolic:
            target.symlink_to(file)
        else:
            os.link(file, target)
    except OSError:  # also of file systems without links
        shutil.copyfile(file, target)


def _schema(tantivy: Any) -> Any:
    builder = tantivy.SchemaBuilder()
    builder.add_text_field(
        "body", stored=False, tokenizer_name="words", index_option="freq"
    )
    builder.add_integer_field("row", stored=False, indexed=True, fast=True)
    return builder.build()
