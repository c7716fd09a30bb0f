"""Certainty of an answer from its own trace: the score of its path, calibrated."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from written import PROMPTING, TWO_WAYS, passages, run, scripted

from selfrag.api import SelfRAG
from selfrag.errors import UserError
from selfrag.intrinsics import Library, Uncertainty
from selfrag.intrinsics.execution.tokens import ScoreCalibrator, deciles
from selfrag.intrinsics.flows import CertaintyFilter, Flow, SelfRAGWriter, Write
from selfrag.intrinsics.flows import run as run_flow
from selfrag.intrinsics.reflectors import IntrinsicReflector
from selfrag.intrinsics.state import read_state


def library(file: Path) -> Library:
    executor: Any = SimpleNamespace(engine=scripted({"Q": TWO_WAYS}))
    return Library(executor, prompting=PROMPTING, weights={"uncertainty": file})


def test_the_path_score_is_calibrated_and_only_an_answer_has_one(tmp_path: Path) -> None:
    file = tmp_path / "certainty.json"
    calibrator = ScoreCalibrator((1.0, 2.0, 3.0), (0.2, 0.4, 0.8))
    calibrator.write(file)
    assert ScoreCalibrator.read(file) == calibrator
    answer = run(TWO_WAYS, "d1", "d2", max_segments=1).answer
    score = answer.segments[0].score
    assert 2 < score < 3
    judge = library(file).get(Uncertainty)  # the default where the model brings a calibrator
    result = judge(answer)
    assert result.certainty == pytest.approx(0.4 + 0.4 * (score - 2))
    assert (result.execution, result.judgment.source) == ("tokens", "token")
    without = judge([{"role": "user", "content": "Q"}, {"role": "assistant", "content": "Sure."}])
    assert without.certainty is None
    assert "an answer of this library" in without.diagnostics[0].message
    model = SelfRAG(PROMPTING, scripted({"Q": TWO_WAYS}), reflectors=(IntrinsicReflector(judge),))
    with pytest.raises(UserError, match=r"finished answer.*ask for uncertainty\.prompt"):
        model.generate("Q", evidence=passages("d1"), reflectors=["uncertainty"], max_segments=1)
    state = read_state(answer)
    assert pickle.loads(pickle.dumps(state)).answer.text == "Sure."


def test_a_flow_keeps_the_answers_that_are_certain(tmp_path: Path) -> None:
    file = tmp_path / "certainty.json"
    ScoreCalibrator((2.0, 3.0), (0.0, 1.0)).write(file)
    answer = run(TWO_WAYS, "d1", "d2", max_segments=1).answer
    engine = scripted({"Q": TWO_WAYS})
    judge = IntrinsicReflector(library(file)["uncertainty.tokens"])
    judge.executor.engine = engine
    writing = Write(SelfRAGWriter(PROMPTING, answer.trace.decoding))
    certainty = answer.segments[0].score - 2
    for threshold, kept in ((certainty - 0.01, "Sure."), (certainty + 0.01, "I don't know the answer")):
        flow = Flow((writing, CertaintyFilter(judge, threshold, by="expectation")), "sure")
        (found,) = run_flow(flow, [read_state("Q", passages("d1", "d2"))], engine)
        assert found.text == kept


@pytest.mark.parametrize("certainty", [0.0, 0.05, 0.33, 0.5, 0.949, 0.95, 1.0])
def test_deciles_have_the_certainty_as_their_expectation(certainty: float) -> None:
    found = deciles(certainty)
    assert sum(found) == pytest.approx(1)
    middles = [(5 + 10 * at) / 100 for at in range(10)]
    assert sum(a * b for a, b in zip(found, middles, strict=True)) == pytest.approx(min(max(certainty, 0.05), 0.95))


def test_a_calibrator_that_is_none_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "certainty.json"
    good = {"scores": [0.1, 0.2], "accuracy": [0.1, 0.2]}
    for bad in (
        [],
        {},
        {**good, "scores": [], "accuracy": []},
        {**good, "accuracy": [0.2, 0.1]},
        {**good, "accuracy": [1]},
    ):
        file.write_text(json.dumps(bad))
        with pytest.raises(UserError, match=r"certainty\.json cannot be used"):
            library(file).get(Uncertainty, "tokens")
    executor: Any = SimpleNamespace(engine=None)
    with pytest.raises(UserError, match="no calibrator was fitted"):
        Library(executor, prompting=PROMPTING).get(Uncertainty, "tokens")
