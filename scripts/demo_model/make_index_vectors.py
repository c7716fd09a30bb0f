"""Cut the articles of the default corpus, encode its passages, and put cuts and vectors (int8) into the package.

    python -m scripts.demo_model.make_index_vectors

It takes minutes, and needs spaCy. Copy the two digests that it prints into `ShippedVectors`, and raise `_INDEX_FORMAT`.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from retrieval import index_passages, open_index
from retrieval.sentences import sentence_finder
from retrieval.splitting import Splitting, count_words, split
from retrieval.vector_writing import as_stored
from retrieval.vectors import FlatIndex
from scripts.command import command
from selfrag.common.atomic import write_text
from selfrag.demo import CORPUS, CUTS, VECTORS, encoder_path, file_digest
from selfrag.demo.download import fetch, passages

_WHOLE = 130  # words up to which an article stays one passage
_WORDS = 100  # words of a passage of a longer one


def cuts_of(summaries: Path) -> dict[int, list[tuple[int, int]]]:
    """Return beginning and end of each passage of the articles that are cut, by the number of the article."""
    splitting, sentences = Splitting(words=_WORDS, overlap=1), sentence_finder()
    articles = json.loads(summaries.read_text(encoding="utf-8")).values()
    cuts = {}
    for number, article in enumerate(articles):
        text = article["extract"]
        if count_words(text) > _WHOLE:
            parts = split(text, splitting, sentences)
            cuts[number] = [(part.start, part.end) for part in parts]
    return cuts


@command
def main() -> None:
    """Cut, encode in float32, write, and print the digests of the vectors and of the passages."""
    encoder = encoder_path()
    summaries = fetch(CORPUS) / next(iter(CORPUS.files))
    write_text(CUTS, json.dumps(cuts_of(summaries), separators=(",", ":")) + "\n")
    with TemporaryDirectory() as scratch:
        index = Path(scratch) / "index"
        index_passages(passages(summaries), index, encoder=encoder, language="none")
        vectors = FlatIndex.open(index / "vectors.npy")
        VECTORS.parent.mkdir(exist_ok=True)
        np.save(VECTORS, as_stored(vectors.block(0, len(vectors)), "int8"))
        print(f"vectors {file_digest(VECTORS)}")
        print(f"passages {open_index(index, encoder).corpus.digest}")


if __name__ == "__main__":
    main()
