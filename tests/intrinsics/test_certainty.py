"""Calibrators against what is known of the data they are fitted on; certainty rows; deciles."""

from __future__ import annotations

import math

import numpy as np
import pytest
from intrinsic_rows import asked

from selfrag.errors import UserError
from selfrag.evaluation.metrics.calibration import calibration_error
from selfrag.training.intrinsics.certainty import (
    Answered,
    Calibrator,
    certainty_rows,
    decile,
    facts,
    fit,
    out_of_fold,
    parse_question,
    top_probability,
)


def drawn(count, temperature, seed=0):
    """Log-probabilities of four options, and answers drawn from them softened by `temperature`: too sure above 1."""
    random = np.random.default_rng(seed)
    logprobs = np.log(random.dirichlet([0.6] * 4, count))
    softened = np.exp(logprobs / temperature)
    softened /= softened.sum(axis=1, keepdims=True)
    right = [int(random.choice(4, p=row)) for row in softened]
    return logprobs.tolist(), right


def correct(logprobs, right):
    return [float(int(np.argmax(row)) == one) for row, one in zip(logprobs, right, strict=True)]


def test_the_temperature_that_made_the_answers_is_found():
    logprobs, right = drawn(4000, 2.5)
    found = fit(logprobs, right, isotonic=False)
    assert found.temperature == pytest.approx(2.5, rel=0.1)
    before = calibration_error(top_probability(logprobs, 1.0).tolist(), correct(logprobs, right)).value
    after = calibration_error(found(logprobs).tolist(), correct(logprobs, right)).value
    assert before > 0.15
    assert after < 0.04


def test_isotonic_steps_rise_and_stay_between_zero_and_one():
    logprobs, right = drawn(500, 1.7, seed=2)
    found = fit(logprobs, right)
    assert list(found.accuracy) == sorted(found.accuracy)
    certainties = found(logprobs)
    assert ((certainties >= 0) & (certainties <= 1)).all()
    assert calibration_error(certainties.tolist(), correct(logprobs, right)).value < 0.06


def test_out_of_fold_certainties_do_not_come_from_their_own_answers():
    """Pure noise: a calibrator fitted on its own rows would look informed, one of other rows may not."""
    random = np.random.default_rng(3)
    logprobs = np.log(random.dirichlet([1.0] * 4, 400)).tolist()
    right = random.integers(0, 4, 400).tolist()
    found = out_of_fold(logprobs, right, ["x"] * 400)
    hits = np.array(correct(logprobs, right))
    assert abs(np.corrcoef(found, hits)[0, 1]) < 0.15
    assert found.mean() == pytest.approx(hits.mean(), abs=0.05)


def test_each_data_set_has_its_own_calibrator():
    easy, easy_right = drawn(300, 0.7, seed=4)
    hard, _ = drawn(300, 1.0, seed=5)
    wrong = [int(np.argmin(row)) for row in hard]  # never right
    found = out_of_fold(easy + hard, easy_right + wrong, ["easy"] * 300 + ["hard"] * 300)
    assert found[:300].mean() > 0.5
    assert found[300:].max() < 0.05


def test_too_few_questions_are_refused():
    with pytest.raises(UserError, match="too few"):
        fit([[0.0, -1.0]] * 3, [0] * 3)
    with pytest.raises(UserError, match="tiny: 50 questions are too few"):
        out_of_fold([[0.0, -1.0]] * 50, [0] * 50, ["tiny"] * 50)


def test_deciles_have_their_borders_below():
    assert [decile(value) for value in (0.0, 0.09, 0.1, 0.55, 0.999, 1.0)] == [0, 0, 1, 5, 9, 9]


def test_a_calibrator_maps_between_its_borders():
    given = Calibrator(1.0, (0.4, 0.8), (0.2, 0.6))
    logprobs = [[math.log(0.6), math.log(0.4)], [math.log(0.99), math.log(0.01)]]
    assert given(logprobs).tolist() == pytest.approx([0.4, 0.6])


def test_rows_say_what_the_model_answered_and_how_certain_that_is():
    answers = []
    for number in range(240):
        question = parse_question(asked(number))
        # Sure and right on every third question, unsure elsewhere and right by luck.
        sure = number % 3 == 0
        logprobs = (-0.01, -6.0, -6.0, -6.0) if sure else (-1.4, -1.39, -1.41, -1.42)
        answers.append(Answered(question.id, question, logprobs))
    rows = certainty_rows(answers)
    assert len(rows) == 480
    after, before = rows[0], rows[1]
    assert [one.role for one in after.state.messages] == ["user", "assistant"]
    assert after.state.messages[-1].content == answers[0].question.options[0]
    assert [one.role for one in before.state.messages] == ["user"]
    assert after.group == before.group
    assert after.label == before.label == "95%"
    assert rows[2].label == "5%"
    found = facts(answers, rows)
    assert found["own_accuracy"] == {"x": pytest.approx(1 / 3), "y": pytest.approx(1 / 3)}
    assert found["deciles"]["95%"] == 160
    assert set(found["calibrators"]) == {"x", "y"}
    assert facts(answers, rows, isotonic=False)["calibrators"]["x"]["confidence"] == ()
    assert certainty_rows(answers, before=False)[1].id == "u1/after"
