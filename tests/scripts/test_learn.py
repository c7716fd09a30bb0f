"""What is learned about a judge: a calibrator of certainty, and weights of tokens and words; runs that go on."""

import numpy as np
import pytest
import tiny
from refusals import refused

from scripts.demo_model.learn_certainty import AnsweredQuestion, fit_calibrator, measure
from scripts.demo_model.learn_combined import LabelledPair, ablation, fit, left_out
from selfrag.common.jsonl import write_jsonl
from selfrag.judges.learned import FEATURES, Weighing


def answers(split, seed=0):
    """An answer with a high score is right nine times of ten, one with a low score three times."""
    made = np.random.default_rng(seed)
    answered = []
    for number, (score, accuracy) in enumerate(((3.0, 0.9), (1.0, 0.3)) * 100):
        answered.append(
            AnsweredQuestion(str(number), split, score, bool(made.random() < accuracy))
        )
    return answered


def test_the_calibrator_says_how_often_such_answers_are_right():
    calibrator = fit_calibrator(answers("train"))
    assert calibrator(1.0) == pytest.approx(0.3, abs=0.1)
    assert calibrator(3.0) == pytest.approx(0.9, abs=0.07)
    text = measure(answers("dev", seed=1), calibrator, 0)
    assert "| certainty | 8" in text


def test_what_tells_labels_apart_gets_the_weight():
    """Words tell all, tokens nothing, in three data sets."""
    made = np.random.default_rng(0)
    examples = []
    for number in range(60):
        overlap = (0.9, 0.2)[number % 2]
        examples.append(
            LabelledPair(
                str(number),
                "abc"[number % 3],
                number % 2 == 0,
                (made.normal(), overlap),
            )
        )
    bias, weights = fit(examples, FEATURES)
    assert weights["overlap"] > 5 * abs(weights["token"])
    assert bias < 0
    assert [score > 0 for score in left_out(examples, FEATURES)] == [
        pair.good for pair in examples
    ]
    table = ablation(examples, 0).splitlines()
    assert table[3].startswith(
        "| overlap | 100.0 [88.4, 100.0] | 1.000 (3) | 100 % | 100 % |"
    )
    with refused("all examples have one label"):
        fit(examples[::2], FEATURES)


@pytest.mark.engine
def test_a_file_of_weights_is_written_and_a_second_run_asks_nothing(
    tmp_path, run_script
):
    model = tiny.save_llama(tmp_path / "model", context=512)
    rows = [
        {
            **{
                "id": f"{name}{at}",
                "dataset": name,
                "label": ("answerable", "unanswerable")[at % 2],
            },
            "conversation": [{"role": "user", "content": "Q?"}],
            "documents": [{"doc_id": "d", "title": "T", "text": f"Text {at}."}],
        }
        for name in "ab"
        for at in range(6)
    ]
    rows[0]["documents"] *= 2  # two passages: left out
    write_jsonl(tmp_path / "rows.jsonl", rows)
    words = [
        *f"answerability --model {model} --engine transformers --rows".split(),
        tmp_path / "rows.jsonl",
    ]
    first, second = (
        run_script("learn_combined", *words, "--out", tmp_path / "out")
        for _ in range(2)
    )
    assert first[:2] == second[:2]
    assert first[0] == 0
    assert (
        "11 of 12 rows are one text and one passage: a 2 good and 3 bad, b 3 good and 3 bad"
        in first[1]
    )
    assert "11 of 11" in first[2]
    assert "11 of 11" not in second[2]
    assert (
        Weighing.read(tmp_path / "out" / "combined.json").intrinsic == "answerability"
    )
