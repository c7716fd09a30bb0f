"""Encode the default corpus, and put its vectors into the package as int8.

    python -m scripts.demo_model.make_index_vectors

It takes minutes. Copy the two digests that it prints into `ShippedVectors`, and raise `_INDEX_FORMAT`.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from retrieval import index_passages, open_index
from retrieval.vector_writing import as_stored
from retrieval.vectors import FlatIndex
from scripts.command import command
from selfrag.demo import CORPUS, VECTORS, encoder_path, file_digest
from selfrag.demo.download import fetch, passages


@command
def main() -> None:
    """Encode in float32, write, and print the digests of the vectors and of the passages."""
    encoder = encoder_path()
    summaries = fetch(CORPUS) / next(iter(CORPUS.files))
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
