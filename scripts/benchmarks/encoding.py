"""Times encoding against sentence-transformers, in turn on the same texts: wall and processor time, and cosines.

python -m scripts.benchmarks.encoding passages.jsonl.gz --encoder DIR --texts 1000 --rounds 3
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.encoders import BLOCK_ROWS, Template
from retrieval.local_encoders import TransformerEncoder
from retrieval.readers import read_files
from scripts.command import command


@command
def main(passages: Path, *, encoder: str, texts: int = 1000, rounds: int = 3) -> None:
    """Print a line for each way of encoding.

    Args:
        passages: a table with id, title and text.
        encoder: directory or hub name.
        texts: number of texts, spread over the table.
        rounds: each way encodes once in each.
    """
    rows = [Template().of_passage(row.passage) for row in read_files([passages])]
    sample = rows[:: max(1, len(rows) // texts)][:texts]
    ways = encoders(encoder)
    for encode in ways.values():  # libraries set themselves up
        encode(sample[:64])
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    vectors: dict[str, Any] = {}
    for _ in range(rounds):
        for name, encode in ways.items():
            wall, processor = time.perf_counter(), time.process_time()
            vectors[name] = encode(sample)
            times = time.perf_counter() - wall, time.process_time() - processor
            spent[name].append(times)
    reference = next(iter(vectors.values()))
    base = np.median(spent["sentence-transformers"], axis=0)
    print(f"{len(sample)} texts, {rounds} rounds in turn, medians")
    for name, pairs in spent.items():
        wall, processor = np.median(pairs, axis=0)
        cosines = (vectors[name] * reference).sum(1)
        lengths = np.linalg.norm([vectors[name], reference], axis=2)
        cosine = (cosines / lengths.prod(axis=0)).min()
        gains = f"{base[0] / wall:.2f} and {base[1] / processor:.2f} times as fast"
        print(
            f"{name:<24} {len(sample) / wall:6.1f} texts/s, {processor:6.1f} s CPU, {gains}, cosine {cosine:.4f}"
        )


def encoders(source: str) -> dict[str, Callable[[Sequence[str]], Any]]:
    """Return functions that encode texts: sentence-transformers as it is by default, and ours in each format."""
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(source, device="cpu", trust_remote_code=False)
    ways: dict[str, Callable[[Sequence[str]], Any]] = {
        "sentence-transformers": lambda texts: theirs.encode(
            list(texts), show_progress_bar=False
        )
    }
    for precision in ("float32", "bfloat16", "int8"):
        ours = TransformerEncoder(source, precision=precision)
        ways[precision] = (
            lambda texts, ours=ours: np.concatenate(  # type: ignore[misc]
                list(
                    ours.encode_blocks(
                        texts[row : row + BLOCK_ROWS]
                        for row in range(0, len(texts), BLOCK_ROWS)
                    )
                )
            )
        )
    return ways


if __name__ == "__main__":
    main()
