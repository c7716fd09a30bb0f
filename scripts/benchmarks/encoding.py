"""Times encoding against sentence-transformers, in turn on the same texts: wall and processor time, and cosines.

python -m scripts.benchmarks.encoding passages.jsonl.gz --encoder DIR --texts 1000 --rounds 3
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from retrieval.encoders import BLOCK_ROWS, Template
from retrieval.local_encoders import TransformerEncoder
from retrieval.readers import read_files


def main() -> None:
    """Print a line for each way of encoding."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("passages", help="a table with id, title and text")
    parser.add_argument("--encoder", required=True, help="directory or hub name")
    parser.add_argument(
        "--texts", type=int, default=1000, help="texts, spread over the table"
    )
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    texts = [
        Template().of_passage(row.passage) for row in read_files([arguments.passages])
    ]
    texts = texts[:: max(1, len(texts) // arguments.texts)][: arguments.texts]
    ways = encoders(arguments.encoder)
    for encode in ways.values():  # libraries set themselves up
        encode(texts[:64])
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    vectors: dict[str, Any] = {}
    for _ in range(arguments.rounds):
        for name, encode in ways.items():
            wall, processor = time.perf_counter(), time.process_time()
            vectors[name] = encode(texts)
            spent[name].append(
                (time.perf_counter() - wall, time.process_time() - processor)
            )
    reference = next(iter(vectors.values()))
    base = np.median(spent["sentence-transformers"], axis=0)
    print(f"{len(texts)} texts, {arguments.rounds} rounds in turn, medians")
    for name, times in spent.items():
        wall, processor = (median(column) for column in zip(*times, strict=True))
        cosines = (vectors[name] * reference).sum(1)
        cosines /= np.linalg.norm(vectors[name], axis=1) * np.linalg.norm(
            reference, axis=1
        )
        gains = f"{base[0] / wall:.2f} and {base[1] / processor:.2f} times as fast"
        print(
            f"{name:<24} {len(texts) / wall:6.1f} texts/s, {processor:6.1f} s CPU, {gains}, cosine {cosines.min():.4f}"
        )


def encoders(source: str) -> dict[str, Callable[[Sequence[str]], Any]]:
    """Return functions that encode texts: sentence-transformers as it is by default, and ours in both formats."""
    from sentence_transformers import SentenceTransformer

    theirs = SentenceTransformer(source, device="cpu", trust_remote_code=False)
    ways: dict[str, Callable[[Sequence[str]], Any]] = {
        "sentence-transformers": lambda texts: theirs.encode(
            list(texts), show_progress_bar=False
        )
    }
    for precision in ("float32", "bfloat16"):
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
