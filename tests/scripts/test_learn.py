"""What is learned about a judge: a calibrator of certainty, and weights of tokens and words."""

import numpy as np
import pytest
import tiny
from refusals import refused

from scripts.demo_model.learn_certainty import fit_calibrator
from scripts.demo_model.learn_combined import LabelledPair, fit
from selfrag.common.jsonl import write_jsonl
from selfrag.judges.learned import Weighing


def test_the_calibrator_says_how_often_such_answers_are_right():
    """An answer with a high score is right nine times of ten, one with a low score three times."""
    made = np.random.default_rng(0)
    scores = ((3.0, 0.9), (1.0, 0.3)) * 100
    answers = [(score, bool(made.random() < accuracy)) for score, accuracy in scores]
    calibrator = fit_calibrator(answers)
    assert calibrator(1.0) == pytest.approx(0.3, abs=0.1)
    assert calibrator(3.0) == pytest.approx(0.9, abs=0.07)
    with refused("of 1 answer that fit, 0 are right"):
        fit_calibrator([(1.0, False)])


def test_what_tells_labels_apart_gets_the_weight():
    """Words tell all, tokens nothing, in three data sets."""
    made = np.random.default_rng(0)
    pairs = []
    for number in range(60):
        values = made.normal(), (0.9, 0.2)[number % 2]
        pairs.append(LabelledPair("abc"[number % 3], number % 2 == 0, values))
    bias, weights = fit(pairs)
    assert weights["overlap"] > 5 * abs(weights["token"])
    assert bias < 0
    with refused("all examples have one label"):
        fit(pairs[::2])


@pytest.mark.engine
def test_a_file_of_weights_is_written(tmp_path, run_script):
    model = tiny.save_llama(tmp_path / "model", context=512)
    rows = []
    for place in range(12):
        row = {"id": str(place), "dataset": "ab"[place // 6]}
        row["label"] = ("answerable", "unanswerable")[place % 2]
        row["conversation"] = [{"role": "user", "content": "Q?"}]
        row["documents"] = [{"doc_id": "d", "title": "T", "text": f"Text {place}."}]
        rows.append(row)
    rows[0]["documents"] *= 2  # two passages: left out
    write_jsonl(tmp_path / "rows.jsonl", rows)
    words = f"answerability --model {model} --engine transformers --rows".split()
    out = tmp_path / "out"
    code, said, _ = run_script(
        "learn_combined", *words, tmp_path / "rows.jsonl", "--out", out
    )
    assert code == 0
    assert (
        "11 of 12 rows are one text and one passage: a 2 good and 3 bad, b 3 good and 3 bad"
        in said
    )
    assert Weighing.read(out / "combined.json").intrinsic == "answerability"
