"""What is learned about a judge: a calibrator of certainty, and weights of tokens and words; runs that go on."""

from __future__ import annotations

import numpy as np
import pytest

from learn_certainty import Answered, fitted, measured
from learn_combined import Example, ablation, fit, left_out
from selfrag.errors import UserError
from selfrag.intrinsics.execution.tokens import FEATURES


def answers(split: str, seed: int = 0) -> list[Answered]:
    """An answer with a high score is right nine times of ten, one with a low score three times."""
    made = np.random.default_rng(seed)
    return [
        Answered(str(at), split, score, 0.0, bool(made.random() < (0.9 if score > 2 else 0.3)))
        for at, score in enumerate((3.0, 1.0) * 100)
    ]


def test_the_calibrator_says_how_often_such_answers_are_right() -> None:
    calibrator = fitted(answers("train"))
    assert calibrator(1.0) == pytest.approx(0.3, abs=0.1)
    assert calibrator(3.0) == pytest.approx(0.9, abs=0.07)
    text = measured(answers("dev", seed=1), calibrator, 0)
    assert "| certainty | 8" in text
    assert "| margin to the second | 50.0 [50.0, 50.0] | - |" in text


def test_what_tells_labels_apart_gets_the_weight() -> None:
    """Words tell all, tokens nothing, in three data sets."""
    made = np.random.default_rng(0)
    examples = [
        Example(str(at), "abc"[at % 3], at % 2 == 0, (made.normal(), 0.9 if at % 2 == 0 else 0.2)) for at in range(60)
    ]
    bias, weights = fit(examples, FEATURES)
    assert weights["overlap"] > 5 * abs(weights["token"])
    assert bias < 0
    assert [score > 0 for score in left_out(examples, FEATURES)] == [one.good for one in examples]
    table = ablation(examples, 0).splitlines()
    assert table[3].startswith("| overlap | 100.0 [100.0, 100.0] | 1.000 (3) | 100 % | 100 % |")
    with pytest.raises(UserError, match="all examples have one label"):
        fit(examples[::2], FEATURES)
