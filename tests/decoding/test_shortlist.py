"""A shortlist: many passages are judged by IsRel in one token each, the best few are written from."""

from __future__ import annotations

from typing import Any

import pytest
from written import passages, run

from selfrag.decoding.policy import Decoding
from selfrag.decoding.requests import Failed
from selfrag.decoding.trace import Trace
from selfrag.errors import UserError

RELEVANCE = {"d1": 0.2, "d2": 0.9, "d3": 0.4, "d4": 0.95}
SETTINGS = {"mode": "always", "shortlist": 4, "passages": 2, "max_segments": 1}


def tree(**changes: Any) -> dict[str, Any]:
    written = {
        f"[Retrieval]<{name}>": f"{{isrel {p} {1 - p:.2f}}}From {name}.{{issup .8 .1 .1}}{{isuse .1 .1 .1 .2 .5}}</s>"
        for name, p in RELEVANCE.items()
    }
    return {"": "x", **written, **changes}


def test_the_best_of_the_shortlist_are_written_from() -> None:
    found = run(tree(), *RELEVANCE, **SETTINGS)
    (decision,) = found.answer.trace.decisions
    assert decision.passages == passages("d4", "d2")
    assert [node.text for node in found.answer.trace.nodes] == ["From d4.", "From d2."]
    assert found.answer.text == "From d4."
    judged = [(name, judgment.evidence, round(judgment.score, 2)) for name, judgment in decision.gates]
    assert judged == [("isrel", name, p) for name, p in RELEVANCE.items()]
    assert Trace.from_json(found.answer.trace.to_json()) == found.answer.trace


def test_the_prompts_of_those_that_are_written_from_are_known_to_the_engine() -> None:
    found = run(tree(), *RELEVANCE, **SETTINGS)
    asked = [(request.prompt_ids, request.max_tokens) for request in found.engine.requests]
    judged = [prompt for prompt, most in asked if most == 1]
    assert len(judged) == 4
    assert all(prompt in judged for prompt, most in asked if most > 1)
    assert found.answer.usage.searches == 1


def test_one_that_cannot_be_judged_comes_last() -> None:
    (decision,) = run(tree(**{"[Retrieval]<d4>": Failed("no memory")}), *RELEVANCE, **SETTINGS).answer.trace.decisions
    assert decision.passages == passages("d2", "d3")


def test_multiple_choice_reads_the_best_of_the_shortlist() -> None:
    short = {f"[Retrieval]<{name}>{label}": "x" for name in RELEVANCE for label in ("", "[Relevant]", "[Irrelevant]")}
    ends = {f"{place}{option}{end}": "x" for place in short for option in "AB" for end in ("", "[Fully supported]")}
    written = {**ends, **short, **tree()}
    found = run(written, *RELEVANCE, choices=["A", "B"], **SETTINGS)
    assert found.answer.trace.decisions[0].passages == passages("d4", "d2")


def test_a_shortlist_is_no_shorter_than_what_is_written_from() -> None:
    with pytest.raises(UserError, match="shortlist=4"):
        Decoding(shortlist=4)
    assert Decoding().searched == 5
