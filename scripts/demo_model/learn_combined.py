"""Learn the weights by which reflection tokens and words in common judge together, with an ablation.

    python scripts/demo_model/learn_combined.py hallucination_detection --rows FILE --limit 400 --out FOLDER

FILE holds training rows of the intrinsic (of `make_support_rows.py`, too); a row counts if it is one text and one
passage. The ablation leaves out one data set after the other and judges it by what the others taught. FOLDER gets
`combined.json`, `ablation.md` and `pairs.jsonl`, from which a second run goes on.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scripts.command import command
from selfrag.common.atomic import write_text
from selfrag.common.errors import UserError, require
from selfrag.common.jsonl import json_line, read_jsonl
from selfrag.evaluation.intervals import bracketed, pooled_auc
from selfrag.intrinsics.model_library import prompting_of
from selfrag.judges.learned import FEATURES, Weighing, features
from selfrag.judges.tokens import TokenCritiques
from selfrag.loading import WEIGHTS, load_tokenizer, resolve_model
from selfrag.reflection.judgment import Judgment
from selfrag.training.intrinsics.rows import IntrinsicRow, read_labelled

GOOD = {"answerable": True, "unanswerable": False, "faithful": True, "partial": False, "unfaithful": False}
ABLATION = (("token",), ("overlap",), FEATURES)
CHUNK = 32


@dataclass(frozen=True, slots=True)
class Example:
    """One pair with what is right."""

    id: str  # of its row
    dataset: str
    good: bool  # supported in full, or relevant
    features: tuple[float, ...]  # as `FEATURES`

    @classmethod
    def parse(cls, record: dict[str, Any]) -> Example:
        """One line of `pairs.jsonl`."""
        return cls(record["id"], record["dataset"], record["good"], tuple(record["features"]))


def known(row: IntrinsicRow) -> bool | None:
    """Whether the row's text is good; None where its label says nothing."""
    label = row.label or row.response or (row.spans[0][1] if row.spans and len(row.spans) == 1 else "")
    return GOOD.get(label)


def judged(judge: TokenCritiques, engine: Any, rows: Sequence[IntrinsicRow], kept: Path) -> list[Example]:
    """The examples of rows; those of an earlier run are read from `kept`."""
    from selfrag.runtime import finish

    found = {one.id: one for one in read_jsonl(kept, Example.parse)} if kept.exists() else {}
    view = judge.view
    waiting = []
    for row in rows:
        pairs = view.pairs(row.state)
        if row.id not in found and known(row) is not None and len(pairs) == 1:
            waiting.append((row, pairs[0]))
    for start in range(0, len(waiting), CHUNK):
        some = waiting[start : start + CHUNK]
        judgments = finish(judge.judge_pairs([(row.state, pair) for row, pair in some]), engine)
        with kept.open("a", encoding="utf-8") as file:
            for (row, pair), judgment in zip(some, judgments, strict=True):
                if isinstance(judgment, Judgment):
                    values = tuple(features(judgment, pair)[name] for name in FEATURES)
                    found[row.id] = Example(row.id, row.source.split("/")[0], bool(known(row)), values)
                    file.write(json_line(asdict(found[row.id])))
        print(f"{min(start + CHUNK, len(waiting))} of {len(waiting)}", file=sys.stderr, flush=True)
    return [found[row.id] for row in rows if row.id in found]


def fit(examples: Sequence[Example], names: Sequence[str]) -> tuple[float, Mapping[str, float]]:
    """Bias and weights of a logistic regression; each label of each data set has the same weight in all.

    Raises:
        UserError: the examples have only one label.
    """
    require("sklearn", extra="eval")
    from sklearn.linear_model import LogisticRegression

    if len({one.good for one in examples}) < 2:
        raise UserError("all examples have one label; give rows with both")
    counts = Counter((one.dataset, one.good) for one in examples)
    labels = Counter(good for _, good in counts)
    weights = [len(examples) / counts[one.dataset, one.good] / labels[one.good] for one in examples]
    x = _matrix(examples, names)
    model = LogisticRegression(max_iter=1000).fit(x, [one.good for one in examples], sample_weight=weights)
    return float(model.intercept_[0]), dict(zip(names, map(float, model.coef_[0]), strict=True))


def _matrix(examples: Sequence[Example], names: Sequence[str]) -> NDArray[np.float64]:
    columns = [FEATURES.index(name) for name in names]
    return np.array([[one.features[at] for at in columns] for one in examples])


def left_out(examples: Sequence[Example], names: Sequence[str]) -> NDArray[np.float64]:
    """Log-odds of each example [n] by what the other data sets taught."""
    scores = np.zeros(len(examples))
    for dataset in {one.dataset for one in examples}:
        bias, weights = fit([one for one in examples if one.dataset != dataset], names)
        places = [at for at, one in enumerate(examples) if one.dataset == dataset]
        x = _matrix([examples[at] for at in places], names)
        scores[places] = bias + x @ np.array([weights[name] for name in names])
    return scores


def ablation(examples: Sequence[Example], seed: int) -> str:
    """A table: AUC over all examples, mean AUC within a data set, and what the threshold 0.5 gets right."""
    good = np.array([one.good for one in examples])
    datasets = np.array([one.dataset for one in examples])
    head = ("features", "AUC", "mean AUC within a data set", "bad ones found", "good ones kept")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for names in ABLATION:
        scores = left_out(examples, names)
        within = [
            _auc(good[datasets == one], scores[datasets == one], seed).value
            for one in sorted(set(datasets))
            if len(set(good[datasets == one])) == 2
        ]
        found = f"{100 * np.mean(scores[~good] < 0):.0f} % | {100 * np.mean(scores[good] >= 0):.0f} %"
        area = bracketed(_auc(good, scores, seed))
        lines.append(f"| {', '.join(names)} | {area} | {np.mean(within):.3f} ({len(within)}) | {found} |")
    return "\n".join(lines) + "\n"


def _auc(good: NDArray[np.bool_], scores: NDArray[np.float64], seed: int) -> Any:
    pairs = list(zip(good.tolist(), scores.tolist(), strict=True))
    return pooled_auc([[s] if g else [] for g, s in pairs], [[] if g else [s] for g, s in pairs], seed=seed)


@command
def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("intrinsic", choices=["answerability", "hallucination_detection"])
    parser.add_argument("--model", default="demo", help="checkpoint directory, hub name, or demo")
    parser.add_argument("--engine", choices=["vllm", "transformers"], help="default: the best one installed")
    parser.add_argument("--rows", type=Path, action="append", required=True, help="training rows; repeatable")
    parser.add_argument("--limit", type=int, help="a seeded sample of this many rows of each file")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    from selfrag.cli.options import quiet
    from selfrag.common.provenance import model_files
    from selfrag.engines import load_engine

    quiet()
    rows: list[IntrinsicRow] = []
    for file in given.rows:
        every = read_labelled(file, given.intrinsic)
        random.Random(given.seed).shuffle(every)  # noqa: S311
        rows += every[: given.limit]
    path = resolve_model(given.model)
    prompting = prompting_of(load_tokenizer(path))
    if prompting is None:
        raise UserError(f"{given.model} has no reflection tokens")
    given.out.mkdir(parents=True, exist_ok=True)
    engine = load_engine(given.engine, path)
    examples = judged(TokenCritiques(given.intrinsic, prompting), engine, rows, given.out / "pairs.jsonl")
    engine.close()
    table = ablation(examples, given.seed)
    counts = Counter((one.dataset, one.good) for one in examples)
    names = sorted({dataset for dataset, _ in counts})
    said = ", ".join(f"{name} {counts[name, True]} good and {counts[name, False]} bad" for name in names)
    text = f"{len(examples)} of {len(rows)} rows are one text and one passage: {said}.\n\n{table}"
    write_text(given.out / "ablation.md", text)
    bias, weights = fit(examples, FEATURES)
    model = model_files(path)["model.safetensors"]
    Weighing(given.intrinsic, model, bias, weights).write(given.out / WEIGHTS)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
