"""Fit the calibrator of `uncertainty.tokens` on a model's own RAG answers, and measure it on others.

    python scripts/demo_model/learn_certainty.py ROWS/*/rows.jsonl --corpus DATA/corpus --out FOLDER

FOLDER of the corpus holds passages, `queries.jsonl` and `qrels.tsv`. Questions of its split `train` fit, those of `dev`
measure; passages are the five best by BM25. An answer is right if it contains one of the question's short answers.
ROWS trained the model: a question among them does not fit, since a model is surer of what it has seen.
FOLDER gets `certainty.json`, `certainty.md` and `answers.jsonl`, from which a second run goes on.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from scripts.command import command
from scripts.demo_model.learning import area, complete
from selfrag.api import SelfRAG
from selfrag.cli.options import quiet
from selfrag.common.atomic import write_text
from selfrag.common.errors import UserError, count_of
from selfrag.evaluation.intervals import NONE, bracketed, counted, mean
from selfrag.evaluation.metrics.classification import calibration_error
from selfrag.evaluation.normalisation import contains_any
from selfrag.experiments.intrinsics.conversations import PassageSearch, read_collection
from selfrag.judges.learned import ScoreCalibrator
from selfrag.loading import CALIBRATOR
from selfrag.render.tables import compact
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
            f"of {count_of(len(right), 'answers')} that fit, {sum(right)} are right; both kinds are needed"
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
    scores = [answer.score for answer in answers]
    rows = [
        ("certainty", bracketed(area(right, certainties, seed)), error),
        ("path score", bracketed(area(right, scores, seed)), NONE),
    ]
    share = counted(mean(truth, seed=seed))
    table = compact(("signal", "AUC", "ECE"), rows)
    return f"Right answers, in percent: {share}\n\n{table}"


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
    rag: SelfRAG, search: PassageSearch, questions: Sequence[OpenQuestion]
) -> Iterator[AnsweredQuestion]:
    """Yield the answers to questions; one that fails is left out."""
    texts = [question.text for question in questions]
    evidence = search(texts, PASSAGES)
    answers = rag.generate(texts, evidence=evidence, mode="always", max_segments=1)
    for question, answer in zip(questions, answers, strict=True):
        if answer.error is None and answer.trace.best is not None:
            score = answer.trace.nodes[answer.trace.best].path_score
            right = contains_any(answer.text, question.answers)
            yield AnsweredQuestion(question.id, question.split, score, right)


@command
def main(
    trained: list[Path] | None = None,
    *,
    corpus: Path,
    model: str = "demo",
    engine: str | None = None,
    fit: int = 200,
    measured: int = 200,
    seed: int = 0,
    out: Path,
) -> None:
    """Answer, fit and measure.

    Args:
        trained: rows that the model was trained on.
        corpus: folder with passages, queries and qrels.
        model: checkpoint directory, hub name, or demo.
        engine: vllm or transformers; the best one installed by default.
        fit: questions of the split train.
        measured: questions of the split dev.
        seed: of the samples and the intervals.
        out: folder of the results.
    """
    quiet()
    out.mkdir(parents=True, exist_ok=True)
    counts = {"train": fit, "dev": measured}
    seen = {row.instruction for file in trained or () for row in read_rows(file)}
    questions, search = choose_questions(corpus, counts, seen, seed)
    work = {question.id: question for question in questions}
    with SelfRAG.from_pretrained(model, engine=engine) as rag:
        answer = partial(answer_questions, rag, search)
        file = out / "answers.jsonl"
        answers = complete(work, AnsweredQuestion, file, answer, CHUNK)
    fitting = [answer for answer in answers if answer.split == "train"]
    calibrator = fit_calibrator(fitting)
    calibrator.write(out / CALIBRATOR)
    others = [answer for answer in answers if answer.split == "dev"]
    text = measure(others, calibrator, seed)
    write_text(out / "certainty.md", text)
    print(text)


if __name__ == "__main__":
    main()
