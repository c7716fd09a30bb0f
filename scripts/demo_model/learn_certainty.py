"""Fit the calibrator of `uncertainty.tokens` on a model's own RAG answers, and measure it on others.

    python scripts/demo_model/learn_certainty.py --corpus DATA/corpus --trained ROWS/*/rows.jsonl --out FOLDER

FOLDER of the corpus holds passages, `queries.jsonl` and `qrels.tsv`. Questions of its split `train` fit, those of `dev`
measure; passages are the five best by BM25. An answer is right if it contains one of the question's short answers.
ROWS trained the model: a question among them does not fit, since a model is surer of what it has seen.
FOLDER gets `certainty.json`, `certainty.md` and `answers.jsonl`, from which a second run goes on.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from scripts.command import command
from scripts.demo_model.learning import area, in_chunks, model_parser
from selfrag.common.atomic import write_text
from selfrag.common.errors import UserError
from selfrag.common.jsonl import json_line, read_jsonl
from selfrag.evaluation.intervals import bracketed, counted, mean
from selfrag.evaluation.metrics.classification import calibration_error
from selfrag.evaluation.normalisation import contains_any
from selfrag.experiments.intrinsics.conversations import PassageSearch, read_collection
from selfrag.judges.learned import ScoreCalibrator
from selfrag.loading import CALIBRATOR
from selfrag.training.rows import read_rows

PASSAGES = 5
STEPS = 21  # of the table; between two the certainty is interpolated
MOST_WORDS = 10  # of a short answer
CHUNK = 10


@dataclass(frozen=True, slots=True)
class AnsweredQuestion:
    """One answer of the model."""

    id: str  # of the question
    split: str  # `train` or `dev`
    score: float  # of its path
    right: bool


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """A question of a split, and the answers that are right."""

    id: str
    split: str
    text: str
    answers: tuple[str, ...]


def fit_calibrator(answers: Sequence[AnsweredQuestion]) -> ScoreCalibrator:
    """Return the calibrator of these answers: Platt scaling, as a table of scores.

    Isotonic regression needs some 1,000 answers (Niculescu-Mizil and Caruana, 2005), more than training leaves out.

    Raises:
        UserError: all answers are right, or none is.
    """
    from sklearn.linear_model import LogisticRegression

    scores = np.array([answer.score for answer in answers])
    right = [answer.right for answer in answers]
    if len(set(right)) < 2:
        raise UserError(
            f"of {len(right)} answers that fit, {sum(right)} are right; both kinds are needed"
        )
    grid = np.linspace(scores.min(), scores.max(), STEPS)
    logistic = LogisticRegression(C=np.inf).fit(scores[:, None], right)
    certainties = logistic.predict_proba(grid[:, None])[:, 1]
    return ScoreCalibrator(tuple(grid.tolist()), tuple(certainties.tolist()))


def measure(
    answers: Sequence[AnsweredQuestion], calibrator: ScoreCalibrator, seed: int
) -> str:
    """Return figures of certainties on answers that the calibrator has not seen."""
    right = [answer.right for answer in answers]
    truth = list(map(float, right))
    certainties = [calibrator(answer.score) for answer in answers]
    error = bracketed(calibration_error(certainties, truth, seed=seed), scale=100)
    lines = [
        f"Right answers, in percent: {counted(mean(truth, seed=seed))}",
        "",
        "| signal | AUC | ECE |",
        "|---|---|---|",
    ]
    for name, values, calibration in (
        ("certainty", certainties, error),
        ("path score", [answer.score for answer in answers], "-"),
    ):
        lines.append(
            f"| {name} | {bracketed(area(right, values, seed))} | {calibration} |"
        )
    return "\n".join(lines) + "\n"


def choose_questions(
    corpus: Path, counts: Mapping[str, int], trained: Set[str], seed: int
) -> tuple[list[OpenQuestion], PassageSearch]:
    """Return seeded samples of the splits, without `trained` questions, and what searches their passages."""
    questions: list[OpenQuestion] = []
    search = None
    for split, count in counts.items():
        collection = read_collection(corpus, split)
        search = search or PassageSearch(list(collection.passages.values()))
        usable = []
        for key, (text, answers) in sorted(collection.queries.items()):
            # A right answer never contains a paragraph word by word.
            short = tuple(
                answer for answer in answers if len(answer.split()) <= MOST_WORDS
            )
            if short and text not in trained:
                usable.append(OpenQuestion(key, split, text, short))
        questions += random.Random(seed).sample(usable, min(count, len(usable)))  # noqa: S311
    if search is None:
        raise UserError("no split is asked for")
    return questions, search


def answer_questions(
    model: str,
    engine: str | None,
    questions: Sequence[OpenQuestion],
    search: PassageSearch,
    file: Path,
) -> list[AnsweredQuestion]:
    """Return the answers to questions; those of an earlier run are in the file, which gets the others."""
    from selfrag.api import SelfRAG

    answered: dict[str, AnsweredQuestion] = {}
    if file.exists():
        for record in read_jsonl(file, lambda record: AnsweredQuestion(**record)):
            answered[record.id] = record
    waiting = [question for question in questions if question.id not in answered]
    if waiting:
        with (
            SelfRAG.from_pretrained(model, engine=engine) as rag,
            file.open("a", encoding="utf-8") as log,
        ):
            for chunk in in_chunks(waiting, CHUNK):
                texts = [question.text for question in chunk]
                answers = rag.generate(
                    texts,
                    evidence=search(texts, PASSAGES),
                    mode="always",
                    max_segments=1,
                )
                for question, answer in zip(chunk, answers, strict=True):
                    if answer.error is not None or answer.trace.best is None:
                        continue
                    score = answer.trace.nodes[answer.trace.best].path_score
                    right = contains_any(answer.text, question.answers)
                    record = AnsweredQuestion(question.id, question.split, score, right)
                    answered[question.id] = record
                    log.write(json_line(asdict(record)))
                log.flush()
    return [answered[question.id] for question in questions if question.id in answered]


@command
def main() -> int:
    """Run the command line."""
    parser = model_parser(__doc__)
    parser.add_argument(
        "--corpus",
        type=Path,
        required=True,
        help="folder with passages, queries and qrels",
    )
    parser.add_argument(
        "--trained",
        type=Path,
        nargs="*",
        default=[],
        help="rows that the model was trained on",
    )
    parser.add_argument(
        "--fit", type=int, default=200, help="questions of the split train"
    )
    parser.add_argument(
        "--measure", type=int, default=200, help="questions of the split dev"
    )
    arguments = parser.parse_args()
    from selfrag.cli.options import quiet

    quiet()
    arguments.out.mkdir(parents=True, exist_ok=True)
    counts = {"train": arguments.fit, "dev": arguments.measure}
    trained = {row.instruction for file in arguments.trained for row in read_rows(file)}
    questions, search = choose_questions(
        arguments.corpus, counts, trained, arguments.seed
    )
    file = arguments.out / "answers.jsonl"
    answers = answer_questions(
        arguments.model, arguments.engine, questions, search, file
    )
    calibrator = fit_calibrator(
        [answer for answer in answers if answer.split == "train"]
    )
    calibrator.write(arguments.out / CALIBRATOR)
    text = measure(
        [answer for answer in answers if answer.split == "dev"],
        calibrator,
        arguments.seed,
    )
    write_text(arguments.out / "certainty.md", text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
