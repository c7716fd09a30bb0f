"""Learn the weights by which reflection tokens and words in common judge together.

    python scripts/demo_model/learn_combined.py hallucination_detection --rows FILE --limit 400 --out FOLDER

FILE holds training rows of the intrinsic (of `make_support_rows.py`, too); a row counts if it is one text and one
passage. FOLDER gets `combined.json`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from scripts.command import command
from selfrag.cli.options import quiet
from selfrag.common.errors import UserError, count_of, require
from selfrag.common.provenance import model_files
from selfrag.engines import load_engine
from selfrag.engines.base import Engine
from selfrag.intrinsics.model_library import prompting_of
from selfrag.judges.learned import FEATURES, Weighing, features
from selfrag.judges.tokens import TokenCritiques
from selfrag.loading import WEIGHTS, load_tokenizer, resolve_model
from selfrag.reflection.judgment import Judgment
from selfrag.runtime import finish
from selfrag.training.intrinsics.rows import IntrinsicRow, read_labelled

GOOD = {
    "answerable": True,
    "unanswerable": False,
    "faithful": True,
    "partial": False,
    "unfaithful": False,
}


@dataclass(frozen=True, slots=True)
class LabelledPair:
    """One pair with what is right."""

    dataset: str
    good: bool  # supported in full, or relevant
    features: tuple[float, ...]  # as `FEATURES`


def is_good(row: IntrinsicRow) -> bool | None:
    """Return whether the row's text is good; None where its label says nothing."""
    label = row.label or row.response
    if not label and row.spans and len(row.spans) == 1:
        label = row.spans[0][1]
    return GOOD.get(label or "")


def judge_rows(
    judge: TokenCritiques, engine: Engine, rows: Sequence[IntrinsicRow]
) -> Iterator[LabelledPair]:
    """Yield the pairs of rows of one text and one passage; others, and what cannot be judged, are left out."""
    chosen, inputs = [], []
    for row in rows:
        pairs = judge.view.pairs(row.state)
        if is_good(row) is not None and len(pairs) == 1:
            chosen.append(row)
            inputs.append((row.state, pairs[0]))
    judgments = finish(judge.judge_pairs(inputs), engine)
    for row, (_, pair), judgment in zip(chosen, inputs, judgments, strict=True):
        if isinstance(judgment, Judgment):
            values = features(judgment, pair)
            ordered = tuple(values[name] for name in FEATURES)
            dataset = row.source.split("/")[0]
            yield LabelledPair(dataset, bool(is_good(row)), ordered)


def fit(pairs: Sequence[LabelledPair]) -> tuple[float, dict[str, float]]:
    """Return bias and weights of a logistic regression; each label of each data set has the same weight in all.

    Raises:
        UserError: the pairs have only one label.
    """
    require("sklearn", extra="eval")
    from sklearn.linear_model import LogisticRegression

    good = [pair.good for pair in pairs]
    if len(set(good)) < 2:
        raise UserError("all examples have one label; give rows with both")
    counts = Counter((pair.dataset, pair.good) for pair in pairs)
    labels = Counter(label for _, label in counts)
    weights = []
    for pair in pairs:
        share = len(pairs) / counts[pair.dataset, pair.good]
        weights.append(share / labels[pair.good])
    model = LogisticRegression(max_iter=1000)
    model.fit(np.array([pair.features for pair in pairs]), good, sample_weight=weights)
    learned = dict(zip(FEATURES, map(float, model.coef_[0]), strict=True))
    return float(model.intercept_[0]), learned


@command
def main(
    intrinsic: Literal["answerability", "hallucination_detection"],
    *,
    rows: list[Path],
    limit: int | None = None,
    model: str = "demo",
    engine: str | None = None,
    seed: int = 0,
    out: Path,
) -> None:
    """Judge, fit and write.

    Args:
        intrinsic: what is judged.
        rows: training rows; repeatable.
        limit: a seeded sample of this many rows of each file.
        model: checkpoint directory, hub name, or demo.
        engine: vllm or transformers; the best one installed by default.
        seed: of the samples.
        out: folder of the result.
    """
    quiet()
    chosen: list[IntrinsicRow] = []
    for file in rows:
        every = read_labelled(file, intrinsic)
        random.Random(seed).shuffle(every)  # noqa: S311
        chosen += every[:limit]
    path = resolve_model(model)
    prompting = prompting_of(load_tokenizer(path))
    if prompting is None:
        raise UserError(f"{model} has no reflection tokens")
    loaded = load_engine(engine, path)
    judge = TokenCritiques(intrinsic, prompting)
    pairs = list(judge_rows(judge, loaded, chosen))
    loaded.close()
    counts = Counter((pair.dataset, pair.good) for pair in pairs)
    sizes = [
        f"{name} {counts[name, True]} good and {counts[name, False]} bad"
        for name in sorted({pair.dataset for pair in pairs})
    ]
    rows_read = count_of(len(chosen), "rows", "are")
    bias, weights = fit(pairs)
    digest = model_files(path)["model.safetensors"]
    out.mkdir(parents=True, exist_ok=True)
    Weighing(intrinsic, digest, bias, weights).write(out / WEIGHTS)
    print(f"{len(pairs)} of {rows_read} one text and one passage: {', '.join(sizes)}")


if __name__ == "__main__":
    main()
