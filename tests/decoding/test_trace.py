"""The trace as a value: JSON there and back, paths, decisions."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from random_model import random_model, random_search
from written import passages, run

from selfrag.decoding.answer import Step
from selfrag.decoding.trace import Trace
from selfrag.errors import UserError
from selfrag.reflection.weights import Weights

TREE = {
    "": "{~retrieve .9 .1 0}x",
    "[Retrieval]<d1>": "{isrel .9 .1}A.{issup .6 .3 .1}{retrieve 0 0 1}",
    "[Retrieval]<d2>": "[Irrelevant]B.</s>",
    "[Retrieval]<d1>[Relevant]A.[Fully supported][Continue to Use Evidence]": "C.[Utility:5]</s>",
}


def test_json_there_and_back() -> None:
    trace = run(TREE, "d1", "d2", weights=Weights(0.123456789, 1, 1), forbid={"isuse": ["1", "2"]}).answer.trace
    again = Trace.from_json(trace.to_json())
    assert again == trace
    assert Trace.from_json(trace.to_json(indent=None)) == trace


@pytest.mark.parametrize("seed", range(10, 40))
def test_random_traces_come_back_and_rescore_the_same(seed: int) -> None:
    choices = ["A", "AB"] if seed % 3 == 0 else None
    answer = run(random_model(seed, failures=0.1), search=random_search(seed), threshold=0.1, choices=choices).answer
    again = Trace.from_json(answer.trace.to_json())
    assert again == answer.trace
    other = Weights(0.1, 2, -1)
    assert replace(answer, trace=again).rescore(other) == answer.rescore(other)


def test_json_is_plain_and_readable() -> None:
    data = json.loads(run(TREE, "d1", "d2").answer.trace.to_json())
    assert data["question"] == "Q"
    written = run({"[No Retrieval]": "Zürich.</s>"}, mode="never").answer.trace.to_json()
    assert '"text": "Zürich."' in written
    assert data["decoding"]["weights"] == {"isrel": 1.0, "issup": 1.0, "isuse": 0.5}
    first = data["nodes"][0]
    assert first["passage_id"] == "d1"
    assert first["judgments"]["issup"]["distribution"] == pytest.approx(
        {"Fully supported": 0.6, "Partially supported": 0.3, "No support / Contradictory": 0.1}, abs=1e-6
    )
    assert data["decisions"][0]["passages"][0]["title"] == "Title of d1"


@pytest.mark.parametrize("text", ["", "[]", "{}", "null", '{"decisions": [], "nodes": [{}], "question": "Q"}', "{"])
def test_wrong_json_is_one_line(text: str) -> None:
    with pytest.raises(UserError, match="this is no trace in JSON"):
        Trace.from_json(text)


def test_path_and_decisions() -> None:
    trace = run(TREE, "d1", "d2").answer.trace
    assert [node.text for node in trace.path(trace.best)] == ["A.", "C."]
    assert trace.path(None) == []
    first, second = trace.decisions
    assert first.judgment is not None
    assert first.judgment.site == "start"
    assert trace.decision_before(trace.nodes[0]) is first
    assert second.after == 0
    assert second.passages == passages("d1")
    assert second.query is None


def test_an_answer_shows_what_a_flow_did() -> None:
    answer = replace(run(TREE, "d1", "d2").answer, steps=(Step("rewrite", "Who wrote it?"),))
    assert answer.as_dict()["steps"] == [{"name": "rewrite", "outcome": "Who wrote it?", "judgments": []}]
