"""The default corpus: introductions of English Wikipedia's vital articles as passages, indexed once.

The texts are by the contributors of the articles named in the passages' titles, CC BY-SA 4.0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from retrieval.passage import Passage
from selfrag.demo.download import CORPUS, ENCODER, alone, cache_home, encoder_path, fetch, make_room

_FORMAT = 1  # raised when splitting or indexing changes its output
_INDEX_BYTES = 60 * 2**20
_WHOLE = 130  # words up to which an article stays one passage
_WORDS = 100  # words of a passage of a longer one


def index_path() -> Path:
    """Folder of the index over the default corpus, built on the first call; an interrupted build continues.

    Raises:
        UserError: the corpus or the encoder cannot be downloaded, or the disk is full.
    """
    target = cache_home() / "indexes" / f"wikipedia-{CORPUS.fingerprint}-{ENCODER.fingerprint}-{_FORMAT}"
    if target.exists():
        return target
    encoder, summaries = encoder_path(), fetch(CORPUS) / next(iter(CORPUS.files))

    from retrieval import index_passages

    with alone(target.parent):
        if not target.exists():
            make_room(target.parent, 2 * _INDEX_BYTES)
            index_passages(passages(summaries), target, encoder=encoder, language="none")  # as it was measured
    return target


def passages(summaries: Path) -> Iterator[Passage]:
    """Passages of the downloaded file, in its order; a long article gives several that overlap by a sentence.

    Ids are like `wiki-00042` and `wiki-00042-2`, stable because the file is pinned.
    """
    from retrieval.splitting import Splitting, count_words, sentence_finder, split

    splitting, sentences = Splitting(words=_WORDS, overlap=1), sentence_finder()
    articles = json.loads(summaries.read_text(encoding="utf-8")).values()
    for number, article in enumerate(articles):
        text, whole = article["extract"], [(0, len(article["extract"]))]
        spans = split(text, splitting, sentences) if count_words(text) > _WHOLE else whole
        for part, (start, end) in enumerate(spans, 1):
            name = f"wiki-{number:05d}" + (f"-{part}" if part > 1 else "")
            yield Passage(name, text[start:end], article["title"])
