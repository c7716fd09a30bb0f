"""Encodes a whole corpus, block by block, resumably. Knows no index and no file layout."""

from __future__ import annotations

from pathlib import Path

from retrieval.corpus import Corpus
from retrieval.encoders.card import Encoder, checked_encode
from retrieval.template import Template
from retrieval.vectorfile import GrowingMatrix

BLOCK_ROWS = 1024
"""Rows that are encoded and saved together. A block is sorted by length and does not depend on other blocks, so an
encoding that was interrupted ends with the same vectors as one that was not."""


def encode_corpus(
    corpus: Corpus,
    encoder: Encoder,
    template: Template,
    file: Path,
    journal: Path,
    *,
    batch_size: int = 64,
    progress: bool | None = None,
) -> None:
    """Write the vectors of all passages, in row order, as a `.npy` matrix [n, d].

    Args:
        corpus: what to encode.
        encoder: gives the vectors.
        template: how a passage becomes a text.
        file: where to write; rows that an earlier call saved there are kept.
        journal: a small file beside it that says how many rows are safe.
        batch_size: texts that go through the encoder at once.
        progress: show a bar on stderr; None shows it on a terminal only.

    Raises:
        UserError: the disk is full, or the encoder returned nonsense. Finished blocks stay for the next call.
    """
    from tqdm import tqdm

    matrix = GrowingMatrix(file, journal, len(corpus), encoder.card.dim)
    disable = None if progress is None else not progress
    with tqdm(total=len(corpus), initial=matrix.done, desc="encoding", unit="passage", disable=disable) as bar:
        while matrix.done < len(corpus):
            passages = corpus[matrix.done : matrix.done + BLOCK_ROWS]
            texts = [template.of_passage(passage) for passage in passages]
            matrix.append(checked_encode(encoder, texts, batch_size))
            bar.update(len(passages))
