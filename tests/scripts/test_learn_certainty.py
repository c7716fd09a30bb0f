"""The calibrator of certainty: fitted on answers, measured on others, and a run on a tiny model that goes on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from learn_certainty import Answered, asked, fitted, measured


def answers(split: str, count: int = 200, seed: int = 0) -> list[Answered]:
    """An answer with a high score is right nine times of ten, one with a low score three times."""
    made = np.random.default_rng(seed)
    scores = (3.0, 1.0) * (count // 2)
    return [
        Answered(str(at), split, score, 0.0, bool(made.random() < (0.9 if score > 2 else 0.3)))
        for at, score in enumerate(scores)
    ]


def test_the_calibrator_says_how_often_such_answers_are_right() -> None:
    calibrator = fitted(answers("train"))
    assert calibrator(1.0) == pytest.approx(0.3, abs=0.1)
    assert calibrator(3.0) == pytest.approx(0.9, abs=0.07)
    text = measured(answers("dev", seed=1), calibrator, 0)
    assert "| certainty | 8" in text
    assert "| margin to the second | 50.0 [50.0, 50.0] | - |" in text


@pytest.mark.engine
def test_answers_of_both_splits_are_kept(tmp_path: Path) -> None:
    import tiny

    model = tiny.save_llama(tmp_path / "model", context=2048)
    lines = [{"id": f"p{at}", "title": f"T{at}", "text": f"Thing {at} is green."} for at in range(6)]
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    queries = [
        {"id": f"q{at}", "text": f"Is thing {at} green?", "split": ("train", "dev")[at % 2], "answers": ["green"]}
        for at in range(4)
    ]
    queries += [
        {"id": "none", "text": "No answer?", "split": "dev", "answers": []},
        {"id": "long", "text": "A long answer?", "split": "dev", "answers": ["word " * 11]},
    ]
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(one) + "\n" for one in queries))
    (tmp_path / "qrels.tsv").write_text("query\tpassage\tscore\nq0\tp0\t1\n")
    kept = tmp_path / "answers.jsonl"
    given = (str(model), "transformers", tmp_path, {"train": 5, "dev": 5}, {"Is thing 0 green?"}, kept, 0)
    first = asked(*given)
    assert {one.id for one in first} <= {"q1", "q2", "q3"}  # q0 trained the model, and two have no short answer
    size = kept.stat().st_size
    assert asked(*given) == first
    assert kept.stat().st_size == size
