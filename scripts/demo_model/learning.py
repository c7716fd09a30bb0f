"""What scripts share that learn from a model's own answers: options, work in chunks, the AUC of a signal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from selfrag.evaluation.intervals import Estimate, pooled_auc

T = TypeVar("T")


def model_parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of the model, the seed and the output."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", default="demo", help="checkpoint directory, hub name, or demo"
    )
    parser.add_argument(
        "--engine",
        choices=["vllm", "transformers"],
        help="default: the best one installed",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    return parser


def in_chunks(work: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield work in chunks, and say on the error stream how much is done."""
    for start in range(0, len(work), size):
        yield work[start : start + size]
        print(
            f"{min(start + size, len(work))} of {len(work)}",
            file=sys.stderr,
            flush=True,
        )


def area(truth: Sequence[bool], scores: Sequence[float], seed: int) -> Estimate:
    """Return the AUC of scores [n] for what is true [n]."""
    positives: list[list[float]] = []
    negatives: list[list[float]] = []
    for true, score in zip(truth, scores, strict=True):
        positives.append([score] if true else [])
        negatives.append([] if true else [score])
    return pooled_auc(positives, negatives, seed=seed)
