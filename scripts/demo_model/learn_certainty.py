"""Fit the calibrator of `uncertainty.tokens` on a model's own RAG answers.

    python scripts/demo_model/learn_certainty.py ROWS/*/rows.jsonl --corpus DATA/corpus --out FOLDER

FOLDER of the corpus holds passages, `queries.jsonl` and `qrels.tsv`. Questions of its split `train` are asked; passages
are the five best by BM25. An answer is right if it contains one of the question's short answers. ROWS trained the
model: a question among them does not fit, since a model is surer of what it has seen. FOLDER gets `certainty.json`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence, Set
from pathlib import Path

import numpy as np

from scripts.command import command
from selfrag.api import SelfRAG
from selfrag.cli.options import quiet
from selfrag.common.errors import UserError, count_of
from selfrag.evaluation.normalisation import contains_any
from selfrag.experiments.intrinsics.conversations import PassageSearch, read_collection
from selfrag.judges.learned import ScoreCalibrator
from selfrag.loading import CALIBRATOR
from selfrag.training.rows import read_rows

PASSAGES = 5
STEPS = 21  # of the table; between two the certainty is interpolated
MOST_WORDS = 10  # of a short answer


def fit_calibrator(answers: Sequence[tuple[float, bool]]) -> ScoreCalibrator:
    """Return the calibrator of path scores, each with whether its answer is right: Platt scaling, as a table.

    Isotonic regression needs some 1,000 answers (Niculescu-Mizil and Caruana, 2005), more than training leaves out.

    Raises:
        UserError: all answers are right, or none is.
    """
    from sklearn.linear_model import LogisticRegression

    scores = np.array([score for score, _ in answers])
    right = [is_right for _, is_right in answers]
    if len(set(right)) < 2:
        raise UserError(
            f"of {count_of(len(right), 'answers')} that fit, {sum(right)} are right; both kinds are needed"
        )
    grid = np.linspace(scores.min(), scores.max(), STEPS)
    logistic = LogisticRegression(C=np.inf).fit(scores[:, None], right)
    certainties = logistic.predict_proba(grid[:, None])[:, 1]
    return ScoreCalibrator(tuple(grid.tolist()), tuple(certainties.tolist()))


def score_answers(
    rag: SelfRAG, corpus: Path, count: int, trained: Set[str], seed: int
) -> Iterator[tuple[float, bool]]:
    """Yield path score and correctness of answers to a seeded sample of the questions; one that fails is left out."""
    collection = read_collection(corpus, "train")
    usable = []
    for _, (text, answers) in sorted(collection.queries.items()):
        # A right answer never contains a paragraph word by word.
        short = [answer for answer in answers if len(answer.split()) <= MOST_WORDS]
        if short and text not in trained:
            usable.append((text, short))
    sample = random.Random(seed).sample(usable, min(count, len(usable)))  # noqa: S311
    texts = [text for text, _ in sample]
    evidence = PassageSearch(list(collection.passages.values()))(texts, PASSAGES)
    written = rag.generate(texts, evidence=evidence, mode="always", max_segments=1)
    for (_, short), answer in zip(sample, written, strict=True):
        if answer.error is None and answer.trace.best is not None:
            score = answer.trace.nodes[answer.trace.best].path_score
            yield score, contains_any(answer.text, short)


@command
def main(
    trained: list[Path] | None = None,
    *,
    corpus: Path,
    model: str = "demo",
    engine: str | None = None,
    fit: int = 200,
    seed: int = 0,
    out: Path,
) -> None:
    """Answer and fit.

    Args:
        trained: rows that the model was trained on.
        corpus: folder with passages, queries and qrels.
        model: checkpoint directory, hub name, or demo.
        engine: vllm or transformers; the best one installed by default.
        fit: questions.
        seed: of the sample.
        out: folder of the result.
    """
    quiet()
    seen = {row.instruction for file in trained or () for row in read_rows(file)}
    with SelfRAG.from_pretrained(model, engine=engine) as rag:
        answers = list(score_answers(rag, corpus, fit, seen, seed))
    calibrator = fit_calibrator(answers)
    out.mkdir(parents=True, exist_ok=True)
    calibrator.write(out / CALIBRATOR)
    right = sum(is_right for _, is_right in answers)
    print(
        f"{out / CALIBRATOR}: fitted on {count_of(len(answers), 'answers')}, {right} right"
    )


if __name__ == "__main__":
    main()
