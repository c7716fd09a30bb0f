"""Learn the weights by which reflection tokens and words in common judge together, with an ablation.

    python scripts/demo_model/learn_combined.py hallucination_detection --rows FILE --limit 400 --out FOLDER

FILE holds training rows of the intrinsic (of `make_support_rows.py`, too); a row counts if it is one text and one
passage. The ablation leaves out one data set after the other and judges it by what the others taught. FOLDER gets
`combined.json`, `ablation.md` and `pairs.jsonl`, from which a second run goes on.
"""

from __future__ import annotations

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
from scripts.demo_model.learning import area, in_chunks, model_parser
from selfrag.common.atomic import write_text
from selfrag.common.errors import UserError, require
from selfrag.common.jsonl import json_line, read_jsonl
from selfrag.evaluation.intervals import bracketed
from selfrag.intrinsics.model_library import prompting_of
from selfrag.judges.learned import FEATURES, Weighing, features
from selfrag.judges.tokens import TokenCritiques
from selfrag.loading import WEIGHTS, load_tokenizer, resolve_model
from selfrag.reflection.judgment import Judgment
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

    @classmethod
    def parse(cls, record: dict[str, Any]) -> LabelledPair:
        """Read one line of `pairs.jsonl`."""
        return cls(**record | {"features": tuple(record["features"])})


def is_good(row: IntrinsicRow) -> bool | None:
    """Return whether the row's text is good; None where its label says nothing."""
    label = row.label or row.response
    if not label and row.spans and len(row.spans) == 1:
        label = row.spans[0][1]
    return GOOD.get(label or "")


def judge_rows(
    judge: TokenCritiques, engine: Any, rows: Sequence[IntrinsicRow], file: Path
) -> list[LabelledPair]:
    """Return the pairs of rows; those of an earlier run are in the file, which gets the others."""
    from selfrag.runtime import finish

    known: dict[str, LabelledPair] = {}
    if file.exists():
        known = {pair.id: pair for pair in read_jsonl(file, LabelledPair.parse)}
    waiting = []
    for row in rows:
        pairs = judge.view.pairs(row.state)
        if row.id not in known and is_good(row) is not None and len(pairs) == 1:
            waiting.append((row, pairs[0]))
    with file.open("a", encoding="utf-8") as log:
        for chunk in in_chunks(waiting, CHUNK):
            judgments = finish(
                judge.judge_pairs([(row.state, pair) for row, pair in chunk]), engine
            )
            for (row, pair), judgment in zip(chunk, judgments, strict=True):
                if isinstance(judgment, Judgment):
                    values = features(judgment, pair)
                    dataset = row.source.split("/")[0]
                    record = LabelledPair(
                        row.id,
                        dataset,
                        bool(is_good(row)),
                        tuple(values[name] for name in FEATURES),
                    )
                    known[row.id] = record
                    log.write(json_line(asdict(record)))
            log.flush()
    return [known[row.id] for row in rows if row.id in known]


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
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
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
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


@command
def main() -> int:
    """Run the command line."""
    parser = model_parser(__doc__)
    parser.add_argument(
        "intrinsic", choices=["answerability", "hallucination_detection"]
    )
    parser.add_argument(
        "--rows",
        type=Path,
        action="append",
        required=True,
        help="training rows; repeatable",
    )
    parser.add_argument(
        "--limit", type=int, help="a seeded sample of this many rows of each file"
    )
    arguments = parser.parse_args()
    from selfrag.cli.options import quiet
    from selfrag.common.provenance import model_files
    from selfrag.engines import load_engine

    quiet()
    rows: list[IntrinsicRow] = []
    for file in arguments.rows:
        every = read_labelled(file, arguments.intrinsic)
        random.Random(arguments.seed).shuffle(every)  # noqa: S311
        rows += every[: arguments.limit]
    path = resolve_model(arguments.model)
    prompting = prompting_of(load_tokenizer(path))
    if prompting is None:
        raise UserError(f"{arguments.model} has no reflection tokens")
    arguments.out.mkdir(parents=True, exist_ok=True)
    engine = load_engine(arguments.engine, path)
    judge = TokenCritiques(arguments.intrinsic, prompting)
    pairs = judge_rows(judge, engine, rows, arguments.out / "pairs.jsonl")
    engine.close()
    counts = Counter((pair.dataset, pair.good) for pair in pairs)
    datasets = sorted({pair.dataset for pair in pairs})
    sizes = ", ".join(
        f"{name} {counts[name, True]} good and {counts[name, False]} bad"
        for name in datasets
    )
    text = (
        f"{len(pairs)} of {len(rows)} rows are one text and one passage: {sizes}.\n\n"
    )
    text += ablation(pairs, arguments.seed)
    write_text(arguments.out / "ablation.md", text)
    bias, weights = fit(pairs, FEATURES)
    model = model_files(path)["model.safetensors"]
    Weighing(arguments.intrinsic, model, bias, weights).write(arguments.out / WEIGHTS)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
