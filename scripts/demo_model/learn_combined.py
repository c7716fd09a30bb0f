"""Learn the weights by which reflection tokens and words in common judge together, with an ablation.

    python scripts/demo_model/learn_combined.py hallucination_detection --rows FILE --limit 400 --out FOLDER

FILE holds training rows of the intrinsic (of `make_support_rows.py`, too); a row counts if it is one text and one
passage. The ablation leaves out one data set after the other and judges it by what the others taught. FOLDER gets
`combined.json`, `ablation.md` and `pairs.jsonl`, from which a second run goes on.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from scripts.command import command
from scripts.demo_model.learning import area, complete
from selfrag.cli.options import quiet
from selfrag.common.atomic import write_text
from selfrag.common.errors import UserError, count_of, require
from selfrag.common.provenance import model_files
from selfrag.engines import load_engine
from selfrag.engines.base import Engine
from selfrag.evaluation.intervals import bracketed
from selfrag.intrinsics.model_library import prompting_of
from selfrag.judges.learned import FEATURES, Weighing, features
from selfrag.judges.tokens import TokenCritiques
from selfrag.loading import WEIGHTS, load_tokenizer, resolve_model
from selfrag.reflection.judgment import Judgment
from selfrag.render.tables import compact
from selfrag.runtime import finish
from selfrag.training.intrinsics.rows import IntrinsicRow, read_labelled

GOOD = {
    "answerable": True,
    "unanswerable": False,
    "faithful": True,
    "partial": False,
    "unfaithful": False,
}
ABLATION = (("token",), ("overlap",), FEATURES)
CHUNK = 32


@dataclass(frozen=True, slots=True)
class LabelledPair:
    """One pair with what is right."""

    id: str  # of its row
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
    """Yield the pairs of rows of one text and one passage; one that cannot be judged is left out."""
    inputs = []
    for row in rows:
        [pair] = judge.view.pairs(row.state)
        inputs.append((row.state, pair))
    judgments = finish(judge.judge_pairs(inputs), engine)
    for row, (_, pair), judgment in zip(rows, inputs, judgments, strict=True):
        if isinstance(judgment, Judgment):
            values = features(judgment, pair)
            ordered = tuple(values[name] for name in FEATURES)
            dataset = row.source.split("/")[0]
            yield LabelledPair(row.id, dataset, bool(is_good(row)), ordered)


def fit(
    pairs: Sequence[LabelledPair], names: Sequence[str]
) -> tuple[float, Mapping[str, float]]:
    """Return bias and weights of a logistic regression; each label of each data set has the same weight in all.

    Raises:
        UserError: the pairs have only one label.
    """
    require("sklearn", extra="eval")
    from sklearn.linear_model import LogisticRegression

    if len({pair.good for pair in pairs}) < 2:
        raise UserError("all examples have one label; give rows with both")
    counts = Counter((pair.dataset, pair.good) for pair in pairs)
    labels = Counter(good for _, good in counts)
    weights = [
        len(pairs) / counts[pair.dataset, pair.good] / labels[pair.good]
        for pair in pairs
    ]
    model = LogisticRegression(max_iter=1000)
    model.fit(
        _matrix(pairs, names), [pair.good for pair in pairs], sample_weight=weights
    )
    return float(model.intercept_[0]), dict(
        zip(names, map(float, model.coef_[0]), strict=True)
    )


def _matrix(pairs: Sequence[LabelledPair], names: Sequence[str]) -> NDArray[np.float64]:
    """Return the features [n, names]."""
    every = np.array([pair.features for pair in pairs])
    return every[:, [FEATURES.index(name) for name in names]]


def left_out(
    pairs: Sequence[LabelledPair], names: Sequence[str]
) -> NDArray[np.float64]:
    """Return the log-odds of each pair [n] by what the other data sets taught."""
    datasets = np.array([pair.dataset for pair in pairs])
    features_of_pairs = _matrix(pairs, names)
    scores = np.zeros(len(pairs))
    for dataset in set(datasets):
        bias, weights = fit([pair for pair in pairs if pair.dataset != dataset], names)
        places = datasets == dataset
        scores[places] = bias + features_of_pairs[places] @ np.array(
            [weights[name] for name in names]
        )
    return scores


def ablation(pairs: Sequence[LabelledPair], seed: int) -> str:
    """Return a table: AUC over all pairs, mean AUC within a data set, and what the threshold 0.5 gets right."""
    good = np.array([pair.good for pair in pairs])
    datasets = np.array([pair.dataset for pair in pairs])
    head = (
        "features",
        "AUC",
        "mean AUC within a data set",
        "bad ones found",
        "good ones kept",
    )
    rows = []
    for names in ABLATION:
        scores = left_out(pairs, names)
        within = []
        for dataset in sorted(set(datasets)):
            places = datasets == dataset
            if len(set(good[places])) == 2:
                within.append(
                    area(good[places].tolist(), scores[places].tolist(), seed).value
                )
        cells = [
            ", ".join(names),
            bracketed(area(good.tolist(), scores.tolist(), seed)),
            f"{np.mean(within):.3f} ({len(within)})",
            f"{100 * np.mean(scores[~good] < 0):.0f} %",
            f"{100 * np.mean(scores[good] >= 0):.0f} %",
        ]
        rows.append(cells)
    return compact(head, rows)


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
        seed: of the samples and the intervals.
        out: folder of the results.
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
    judge = TokenCritiques(intrinsic, prompting)
    work = {}
    for row in chosen:
        if is_good(row) is not None and len(judge.view.pairs(row.state)) == 1:
            work[row.id] = row
    out.mkdir(parents=True, exist_ok=True)
    loaded = load_engine(engine, path)
    ask = partial(judge_rows, judge, loaded)
    pairs = complete(work, LabelledPair, out / "pairs.jsonl", ask, CHUNK)
    loaded.close()
    counts = Counter((pair.dataset, pair.good) for pair in pairs)
    sizes = [
        f"{name} {counts[name, True]} good and {counts[name, False]} bad"
        for name in sorted({pair.dataset for pair in pairs})
    ]
    text = f"{len(pairs)} of {count_of(len(chosen), 'rows', 'are')} one text and one passage: {', '.join(sizes)}.\n\n"
    text += ablation(pairs, seed)
    write_text(out / "ablation.md", text)
    bias, weights = fit(pairs, FEATURES)
    digest = model_files(path)["model.safetensors"]
    Weighing(intrinsic, digest, bias, weights).write(out / WEIGHTS)
    print(text)


if __name__ == "__main__":
    main()
