"""Calibrators against what is known of the data they are fitted on; certainty rows; deciles."""

import numpy as np
import pytest
from intrinsic_rows import asked

from selfrag.errors import UserError
from selfrag.evaluation.metrics.classification import calibration_error
from selfrag.training.intrinsics.certainty import (
    Answered,
    Question,
    certainty_rows,
    confidences,
    facts,
    fit,
    of_other_data_sets,
    out_of_fold,
    parse_question,
    parse_row,
)


def answered(logprobs, right, dataset="x"):
    questions = (Question(f"{dataset}{n}", dataset, "Q?", ("a", "b", "c", "d"), one) for n, one in enumerate(right))
    return [Answered(one.id, one, tuple(row)) for one, row in zip(questions, logprobs, strict=True)]


def drawn(count, temperature, seed=0, dataset="x"):
    """Answers whose right options are drawn from their probabilities softened by `temperature`: too sure above 1."""
    random = np.random.default_rng(seed)
    logprobs = np.log(random.dirichlet([0.6] * 4, count))
    softened = np.exp(logprobs / temperature)
    softened /= softened.sum(axis=1, keepdims=True)
    right = [int(random.choice(4, p=row)) for row in softened]
    return answered(logprobs.tolist(), right, dataset)


def correct(answers):
    return [float(one.is_right) for one in answers]


def test_the_temperature_that_made_the_answers_is_found():
    answers = drawn(4000, 2.5)
    found = fit(answers, isotonic=False)
    assert found.temperature == pytest.approx(2.5, rel=0.1)
    before = calibration_error(confidences(answers).tolist(), correct(answers)).value
    after = calibration_error(found(answers).tolist(), correct(answers)).value
    assert before > 0.15
    assert after < 0.04


def test_out_of_fold_certainties_do_not_come_from_their_own_answers():
    """Pure noise: a calibrator fitted on its own rows would look informed, one of other rows may not."""
    random = np.random.default_rng(3)
    logprobs = np.log(random.dirichlet([1.0] * 4, 400)).tolist()
    answers = answered(logprobs, random.integers(0, 4, 400).tolist())
    found = out_of_fold(answers)
    hits = np.array(correct(answers))
    assert abs(np.corrcoef(found, hits)[0, 1]) < 0.15
    assert found.mean() == pytest.approx(hits.mean(), abs=0.05)


def test_too_few_questions_are_refused():
    with pytest.raises(UserError, match="too few"):
        fit(drawn(3, 1.0))
    with pytest.raises(UserError, match="tiny: 50 questions are too few"):
        out_of_fold(drawn(50, 1.0, dataset="tiny"))
    with pytest.raises(UserError, match="options and written answers"):
        fit([*drawn(10, 1.0), written(0, 1.0, True)])


def written(number, score, right, dataset="nq"):
    asked = {"id": f"{dataset}{number}", "conversation": [{"role": "user", "content": f"Q{number}?"}]}
    documents = [{"doc_id": "p", "title": "Goethe", "text": "He wrote it."}]
    said = {"dataset": dataset, "documents": documents, "answer": "Goethe", "score": score, "right": right}
    return parse_row(asked | said)


def test_written_answers_are_calibrated_by_their_score_and_keep_their_passages():
    # A score of 2 is right three times of four, one of 1 once of four.
    answers = [written(n, 1.0 + n % 2, (n // 2) % 4 != 0 if n % 2 else (n // 2) % 4 == 0) for n in range(160)]
    assert of_other_data_sets(answers) == [None] * 160  # there is no other data set
    after, before, *_ = certainty_rows(answers)
    assert [one.text for one in after.state.passages] == ["He wrote it."]
    assert after.state.messages[-1].content == "Goethe"
    assert [one.role for one in before.state.messages] == ["user"]
    found = fit(answers)(answers)
    assert found[:2].tolist() == pytest.approx([0.25, 0.75])
    other = [written(n, 1.0 + n % 2, True, "trivia") for n in range(20)]
    unseen = of_other_data_sets([*answers, *other])
    assert unseen[160:162] == pytest.approx([0.25, 0.75])  # as nq taught it
    assert unseen[0] == unseen[1] == 1.0  # as trivia taught it


@pytest.mark.parametrize(("changes", "said"), [({"score": "high"}, "'score'"), ({"right": 1}, "'right'")])
def test_a_written_answer_needs_a_score_and_a_verdict(changes, said):
    row = {"id": "1", "dataset": "d", "conversation": [{"role": "user", "content": "Q?"}], "answer": "A", "score": 1.0}
    with pytest.raises(UserError, match=said):
        parse_row(row | {"right": True} | changes)


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
