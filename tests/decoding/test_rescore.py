"""Rescoring hand-worked trees: what changes, what is exact, what is not, and how fast it is."""

from __future__ import annotations

import time

import numpy as np
import pytest
from random_model import random_model
from written import TWO_WAYS, run

from selfrag.decoding.answer import Answer, Usage, sweep
from selfrag.decoding.policy import Decoding
from selfrag.decoding.rescore import replay
from selfrag.decoding.trace import Trace
from selfrag.errors import UserError
from selfrag.reflection.weights import Weights

TREE = TWO_WAYS | {"": "{~retrieve .5 .5 0}x"}


@pytest.mark.parametrize(("threshold", "exact"), [(0.0, True), (0.49, True), (0.5, False), (1.0, False)])
def test_a_threshold_is_exact_as_long_as_it_decides_alike(threshold: float, exact: bool) -> None:
    answer = run(TREE, "d1", "d2").answer.rescore(threshold=threshold)
    assert answer.exact is exact
    assert answer.text == "Sure."  # with nothing else recorded
    assert answer.trace.decoding.threshold == threshold


def test_a_threshold_is_exact_where_both_sides_were_recorded() -> None:
    answer = run(TREE, "d1", "d2", no_retrieval_branch=True).answer
    assert answer.text == "Sure."
    without = answer.rescore(threshold=0.6)
    assert without.exact
    assert (without.text, without.citations) == ("Own.", ())
    assert {n.text: str(n.status) for n in without.trace.nodes} == {
        "Close.": "pruned",
        "Sure.": "pruned",
        "Own.": "finished",
    }
    assert without.rescore(threshold=0.2) == answer


def test_an_answer_that_failed_cannot_be_rescored() -> None:
    failed = Answer("Q", "", (), Usage(), Trace("Q", Decoding(), (), (), None), error="no memory")
    with pytest.raises(UserError, match="no memory"):
        failed.rescore()
    with pytest.raises(UserError, match="threshold"):
        run(TREE, "d1").answer.rescore(threshold=7)
    with pytest.raises(UserError, match=r"weights of shape \(1, 2\)"):
        sweep([run(TREE, "d1").answer], np.ones((1, 2)))
    best, exact = sweep([failed], [Weights()])
    assert (best[0, 0], exact[0, 0]) == (-1, False)


@pytest.mark.parametrize("text", ["[]", "null", '{"decisions": [], "nodes": [{}], "question": "Q"}'])
def test_what_is_no_trace_is_one_line(text: str) -> None:
    with pytest.raises(UserError, match="this is no trace in JSON"):
        Trace.from_json(text)


def test_a_replay_of_nothing_is_nothing() -> None:
    assert list(replay(Trace("Q", Decoding(), (), (), None), [Weights()]).best) == [-1]
    assert sweep([], [Weights()])[0].shape == (0, 1)


def test_a_sweep_of_500_answers_under_1000_settings_takes_under_two_seconds() -> None:
    """Long-form trees: 3 segments, beam 2, 5 passages. Processor time, so that a busy machine may run it."""
    answers = []
    for seed in range(25):
        options = {"mode": "always", "beam": 2, "passages": 5, "max_segments": 3}
        names = tuple(f"d{i}" for i in range(5))
        answers.append(run(random_model(seed), *names, **options).answer)
    answers *= 20
    matrix = np.random.default_rng(0).uniform(0, 2, size=(1000, 3))
    start = time.process_time()
    best, exact = sweep(answers, matrix)
    seconds = time.process_time() - start
    assert best.shape == exact.shape == (500, 1000)
    assert len({tuple(row) for row in best[:25].T}) > 10  # settings do change choices
    assert seconds < 2
