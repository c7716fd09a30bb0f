"""Fit the calibrator of `uncertainty.tokens` on a model's own RAG answers, and measure it on others.

    python scripts/demo_model/learn_certainty.py --corpus DATA/corpus --trained ROWS/*/rows.jsonl --out FOLDER

FOLDER of the corpus holds passages, `queries.jsonl` and `qrels.tsv`. Questions of its split `train` fit, those of `dev`
measure; passages are the five best by BM25. An answer is right if it contains one of the question's short answers.
ROWS trained the model: a question among them does not fit, since a model is surer of what it has seen.
FOLDER gets `certainty.json`, `certainty.md` and `answers.jsonl`, from which a second run goes on.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scripts.command import command
from selfrag.common.atomic import write_text
from selfrag.common.errors import UserError
from selfrag.common.jsonl import json_line, read_jsonl
from selfrag.decoding.trace import UNUSABLE, Trace
from selfrag.evaluation.intervals import bracketed, counted, mean, pooled_auc
from selfrag.evaluation.metrics.classification import calibration_error
from selfrag.evaluation.normalisation import contains_any
from selfrag.experiments.intrinsics.flows import PassageSearch, read_collection
from selfrag.judges.learned import ScoreCalibrator
from selfrag.loading import CALIBRATOR
from selfrag.training.rows import read_rows

PASSAGES = 5
STEPS = 21  # of the table; between two the certainty is interpolated
MOST_WORDS = 10  # of a short answer
CHUNK = 10


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer of the model."""

    id: str  # of the question
    split: str  # `train` or `dev`
    score: float  # of its path
    margin: float  # see `margin`
    right: bool

    @classmethod
    def parse(cls, record: dict[str, Any]) -> Answered:
        """One line of `answers.jsonl`."""
        return cls(record["id"], record["split"], record["score"], record["margin"], record["right"])


def fitted(answers: Sequence[Answered]) -> ScoreCalibrator:
    """The calibrator of these answers: Platt scaling, as a table of scores.

    Isotonic regression needs some 1,000 answers (Niculescu-Mizil and Caruana, 2005), more than training leaves out.

    Raises:
        UserError: all answers are right, or none is.
    """
    from sklearn.linear_model import LogisticRegression

    scores, right = np.array([one.score for one in answers]), [one.right for one in answers]
    if len(set(right)) < 2:
        raise UserError(f"of {len(right)} answers that fit, {sum(right)} are right; both kinds are needed")
    grid = np.linspace(scores.min(), scores.max(), STEPS)
    logistic = LogisticRegression(C=np.inf).fit(scores[:, None], right)
    return ScoreCalibrator(tuple(grid.tolist()), tuple(logistic.predict_proba(grid[:, None])[:, 1].tolist()))


def measured(answers: Sequence[Answered], calibrator: ScoreCalibrator, seed: int) -> str:
    """Figures of certainties on answers that the calibrator has not seen."""
    truth = [float(one.right) for one in answers]
    signals = {
        "certainty": [calibrator(one.score) for one in answers],
        "path score": [one.score for one in answers],
        "margin to the second": [one.margin for one in answers],
    }
    error = bracketed(calibration_error(signals["certainty"], truth, seed=seed), scale=100)
    lines = ["| signal | AUC | ECE |", "|---|---|---|"]
    for name, values in signals.items():
        right = [[value] if one.right else [] for one, value in zip(answers, values, strict=True)]
        wrong = [[] if one.right else [value] for one, value in zip(answers, values, strict=True)]
        area = bracketed(pooled_auc(right, wrong, seed=seed))
        lines.append(f"| {name} | {area} | {error if name == 'certainty' else '-'} |")
    return f"Right answers, in percent: {counted(mean(truth, seed=seed))}\n\n" + "\n".join(lines) + "\n"


def margin(trace: Trace) -> float:
    """How far the answer is ahead of the best candidate of its depth with another text; its score where it is alone."""
    best = trace.nodes[trace.best or 0]
    text = [node.text_ids for node in trace.path(best.id)]
    rivals = [
        node.path_score
        for node in trace.nodes
        if node.depth == best.depth
        and node.status not in UNUSABLE
        and [one.text_ids for one in trace.path(node.id)] != text
    ]
    return best.path_score - max(rivals, default=0.0)


def short(answers: Sequence[str]) -> tuple[str, ...]:
    """Those that a right answer can be expected to contain; it never contains a paragraph word by word."""
    return tuple(answer for answer in answers if len(answer.split()) <= MOST_WORDS)


def asked(
    model: str, engine: str | None, corpus: Path, wanted: Mapping[str, int], trained: Set[str], kept: Path, seed: int
) -> list[Answered]:
    """Answers to seeded samples of the splits, without `trained` questions; those of an earlier run are in `kept`."""
    from selfrag.api import SelfRAG

    found = {one.id: one for one in read_jsonl(kept, Answered.parse)} if kept.exists() else {}
    order: list[str] = []
    waiting: list[tuple[str, str, str, tuple[str, ...]]] = []
    search = None
    for split, count in wanted.items():
        collection = read_collection(corpus, split)
        search = search or PassageSearch(list(collection.passages.values()))
        queries = {key: (text, short(answers)) for key, (text, answers) in collection.queries.items()}
        known = sorted(key for key, (text, answers) in queries.items() if answers and text not in trained)
        chosen = random.Random(seed).sample(known, min(count, len(known)))  # noqa: S311
        order += chosen
        waiting += [(split, key, *queries[key]) for key in chosen if key not in found]
    if waiting and search is not None:
        with SelfRAG.from_pretrained(model, engine=engine) as rag:
            for start in range(0, len(waiting), CHUNK):
                some = waiting[start : start + CHUNK]
                texts = [text for _, _, text, _ in some]
                given = rag.generate(texts, evidence=search(texts, PASSAGES), mode="always", max_segments=1)
                with kept.open("a", encoding="utf-8") as file:
                    for (split, key, _, answers), answer in zip(some, given, strict=True):
                        trace = answer.trace
                        if answer.error is None and trace.best is not None:
                            score, right = trace.nodes[trace.best].path_score, contains_any(answer.text, answers)
                            found[key] = Answered(key, split, score, margin(trace), right)
                            file.write(json_line(asdict(found[key])))
                print(f"{min(start + CHUNK, len(waiting))} of {len(waiting)}", file=sys.stderr, flush=True)
    return [found[key] for key in order if key in found]


@command
def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help="checkpoint directory, hub name, or demo")
    parser.add_argument("--engine", choices=["vllm", "transformers"], help="default: the best one installed")
    parser.add_argument("--corpus", type=Path, required=True, help="folder with passages, queries and qrels")
    parser.add_argument("--trained", type=Path, nargs="*", default=[], help="rows that the model was trained on")
    parser.add_argument("--fit", type=int, default=200, help="questions of the split train")
    parser.add_argument("--measure", type=int, default=200, help="questions of the split dev")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    from selfrag.cli.options import quiet

    quiet()
    given.out.mkdir(parents=True, exist_ok=True)
    wanted = {"train": given.fit, "dev": given.measure}
    trained = {row.instruction for file in given.trained for row in read_rows(file)}
    kept = given.out / "answers.jsonl"
    answers = asked(given.model, given.engine, given.corpus, wanted, trained, kept, given.seed)
    calibrator = fitted([one for one in answers if one.split == "train"])
    calibrator.write(given.out / CALIBRATOR)
    text = measured([one for one in answers if one.split == "dev"], calibrator, given.seed)
    write_text(given.out / "certainty.md", text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
