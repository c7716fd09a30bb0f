"""Search by words: BM25 over stems, in an index of tantivy that is memory-mapped."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

import numpy as np

from retrieval.checks import choice
from retrieval.errors import UserError
from retrieval.passage import Passage, whole
from retrieval.vectors import Hits, Mask

LANGUAGES = (
    *("arabic", "danish", "dutch", "english", "finnish", "french", "german", "greek", "hungarian", "italian"),
    *("norwegian", "portuguese", "romanian", "russian", "spanish", "swedish", "tamil", "turkish"),
)
_STOP_WORDS = {
    *("danish", "dutch", "english", "finnish", "french", "german", "hungarian", "italian", "norwegian"),
    *("portuguese", "russian", "spanish", "swedish"),
}
_HEAP = 64_000_000  # bytes that are collected before a piece of the index is written
_LONGEST_WORD, _MOST_WORDS = 100, 200  # characters of a word, and different words of a query that count
_LISTED_ROWS = 20_000  # so few allowed rows are named in the query
_MOST_FETCHED = 50_000


def check_language(language: str | None) -> None:
    """Refuse a language that has no stemmer."""
    if language is not None:
        choice("language", language, LANGUAGES)


class WordIndex:
    """BM25 (k1 1.2, b 0.75) over titles and texts, in a folder of `add_words`. Safe to search from many threads."""

    def __init__(self, folder: Path, language: str) -> None:
        import tantivy

        self._analyzer = analyzer(language)
        self._schema = _schema(tantivy)
        self._links: TemporaryDirectory[str] | None = None
        try:
            self._searcher = tantivy.Index.open(str(folder)).searcher()
        except ValueError as error:
            if "Lockfile" not in str(error):
                raise UserError(f"{folder} is no readable word index ({error}); build the index again") from error
            self._links = TemporaryDirectory()  # tantivy writes a lock beside the files, which may not be written here
            for file in folder.resolve().iterdir():
                Path(self._links.name, file.name).symlink_to(file)
            self._searcher = tantivy.Index.open(self._links.name).searcher()

    def __len__(self) -> int:
        return int(self._searcher.num_docs)

    def search(self, query: str, k: int, allowed: Mask | None = None) -> Hits:
        """The rows [1, at most k] that share words with a query, of which none is syntax; `allowed` is bool [n]."""
        import tantivy

        words = query_words(self._analyzer, query)
        count = len(self) if allowed is None else int(np.count_nonzero(allowed))
        if not words or not count or not k:
            return Hits(np.zeros((1, 0), np.float32), np.zeros((1, 0), np.int64))
        should, must = tantivy.Occur.Should, tantivy.Occur.Must
        wanted = tantivy.Query.boolean_query(
            [(should, tantivy.Query.term_query(self._schema, "body", word, index_option="freq")) for word in words]
        )
        limit = min(k, count)
        if allowed is not None and count <= _LISTED_ROWS:
            rows = tantivy.Query.term_set_query(self._schema, "row", np.flatnonzero(allowed).tolist())
            wanted = tantivy.Query.boolean_query([(must, wanted), (must, tantivy.Query.const_score_query(rows, 0.0))])
        elif allowed is not None:
            limit = min(len(self), _MOST_FETCHED, 2 * limit * len(allowed) // count + 100)
        hits = self._searcher.search(wanted, limit, count=False).hits
        found = np.array(self._searcher.fast_field_values("row", [place for _, place in hits]), np.int64)
        scores = np.array([score for score, _ in hits], np.float32)
        known = found < len(allowed) if allowed is not None else np.ones(len(found), bool)
        if allowed is not None:
            known[known] = allowed[found[known]]
        found, scores = found[known], scores[known]
        order = np.lexsort((found, -scores))[:k]
        return Hits(scores[None, order], found[None, order])


def query_words(analyzer: Any, query: str) -> list[str]:
    """The different words of a query, as stems; at most 200."""
    return list(dict.fromkeys(analyzer.analyze(whole(query))))[:_MOST_WORDS]


def add_words(folder: Path, passages: Iterable[Passage], first: int, language: str, older: Path | None = None) -> None:
    """Write an index of words, or one with more passages than an `older` one, which stays as it is.

    `first` is the row of the first passage. The older one's files are linked, not copied, where the file system can.
    """
    import tantivy

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for file in older.iterdir() if older is not None else ():
        if not file.name.endswith(".lock"):
            _link(file, folder / file.name)
    index = tantivy.Index(_schema(tantivy), path=str(folder), reuse=True)
    index.register_tokenizer("words", analyzer(language))
    writer = index.writer(heap_size=_HEAP, num_threads=1)
    for row, passage in enumerate(passages, start=first):
        document = tantivy.Document(body=[f"{passage.title} {passage.text}"])
        document.add_integer("row", row)
        writer.add_document(document)
    writer.commit()
    writer.wait_merging_threads()
    _steady_names(folder, first)


def _steady_names(folder: Path, first: int) -> None:
    """Name the pieces of an index by their number, not at random: the same passages give the same files."""
    meta, managed = folder / "meta.json", folder / ".managed.json"
    values = json.loads(meta.read_text(encoding="utf-8"))
    known = {segment["segment_id"].replace("-", "") for segment in values["segments"]}
    names = {file.name for file in folder.iterdir() if file.name[:32] in known}
    for file in folder.iterdir():
        if file not in (meta, managed) and file.name not in names:
            file.unlink()  # a lock, or a piece that was merged into another
    for number, segment in enumerate(values["segments"]):
        old = segment["segment_id"].replace("-", "")
        new = f"{first:016x}{number:016x}"
        if not old.startswith("00000"):  # else it has been here before
            segment["segment_id"] = str(UUID(new))
            for name in sorted(names):
                if name.startswith(old):
                    (folder / name).rename(folder / name.replace(old, new))
    meta.write_text(json.dumps(values), encoding="utf-8")
    managed.write_text(json.dumps(sorted([*(file.name for file in folder.iterdir() if file != managed)])))


def _link(file: Path, target: Path) -> None:
    """A file that is never changed under another name; JSON files are copied, since tantivy replaces them."""
    try:
        if file.suffix == ".json":
            raise OSError
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)


def _schema(tantivy: Any) -> Any:
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("body", stored=False, tokenizer_name="words", index_option="freq")
    builder.add_integer_field("row", stored=False, indexed=True, fast=True)
    return builder.build()


def analyzer(language: str) -> Any:
    """What `analyze` of a text gives: its words in lower case as stems, without stop words."""
    import tantivy

    check_language(language)
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    builder = builder.filter(tantivy.Filter.remove_long(_LONGEST_WORD)).filter(tantivy.Filter.lowercase())
    if language in _STOP_WORDS:
        builder = builder.filter(tantivy.Filter.stopword(language))
    return builder.filter(tantivy.Filter.stemmer(language)).build()
