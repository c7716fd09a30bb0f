"""Defects that an outside audit found in the search, its replay and failures on the way: one named test each."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from rich.console import Console
from scripted_critics import Scripted, says
from written import Run, passages, run

from retrieval.passage import Passage
from selfrag.cli.ask import render
from selfrag.decoding.reflectors import Moment
from selfrag.decoding.requests import Failed
from selfrag.decoding.trace import Trace
from selfrag.errors import DecodingError, UserError
from selfrag.intrinsics.labels import ANSWERABLE
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.weights import Weights
from selfrag.rendering import html

YES, NO = says(1, 0, 0), says(0, 0, 1)


def rejecting(name: str, cost: int, *texts: str) -> Scripted:
    """A critic that is sure that these texts are not supported and all others are."""
    return Scripted(name, lambda moment: NO if moment.text in texts else YES, cost, needs_evidence=False)


def after_one(*branches: tuple[str, float]) -> dict[str, Any]:
    """`One.` without evidence, then a candidate for each passage, `(text, probability)`, that ends the answer."""
    first = {"": "{~retrieve .1 .9 0}x", "[No Retrieval]": "One.{retrieve .9 .1 0}"}
    second = {f"One.[Retrieval]<d{i}>": (f"{text}</s>", p) for i, (text, p) in enumerate(branches, 1)}
    return first | second


def steps(tree: Any, *critics: Scripted, passages: int = 3, **options: Any) -> Run:
    """Decode `tree` with the critics joined, each rejecting below 0.5."""
    names = [f"d{i}" for i in range(1, passages + 1)]
    joined = [f"{critic.name}>=0.5" for critic in critics]
    options = {"history": "text", "beam": 1, "survivors": (1, 1, 1)} | options
    return run(tree, *names, reflectors=joined, given={"critics": list(critics)}, **options)


# --- reflectors of different cost ---------------------------------------------------------------------------------


def test_each_of_three_tiers_lets_more_through_where_the_next_one_runs_out() -> None:
    critics = rejecting("one", 1, "C."), rejecting("two", 2, "B."), rejecting("three", 3, "A.")
    ranked = [(f"{letter}.", 0.9 - i / 10) for i, letter in enumerate("ABCD")]
    found = steps(after_one(*ranked), *critics, passages=4)
    assert found.answer.text == "One. D."
    assert [[m.text for m in critic.moments[1:]] for critic in critics] == [
        ["A.", "B.", "C.", "D."],
        ["A.", "B.", "D."],
        ["A.", "D."],
    ]
    assert found.answer.rescore() == found.answer


# --- rescoring ----------------------------------------------------------------------------------------------------


def test_rejected_passages_take_no_place_where_another_threshold_writes_without_them() -> None:
    tree = {
        "": "{~retrieve .5 .5 0}x",
        "[Retrieval]<d1>": ("{isrel 1 0}Bad.</s>", 0.9),
        "[Retrieval]<d2>": ("{isrel 1 0}Worse.</s>", 0.8),
        "[No Retrieval]": ("Own.</s>", 0.1),
    }

    def decoded(threshold: float) -> Run:
        critics = rejecting("cheap", 1), rejecting("dear", 3, "Bad.", "Worse.")
        return steps(
            tree, *critics, passages=2, threshold=threshold, no_retrieval_branch=True, survivors=(2, 2, 2), beam=2
        )

    rescored = decoded(0.2).answer.rescore(threshold=0.9)
    assert (rescored.text, rescored.exact) == ("Own.", True)
    assert decoded(0.9).answer.text == "Own."


def test_a_reflector_of_two_gates_routes_the_start_only() -> None:
    def certain(moment: Moment) -> Judgment:
        return says(0.9, 0.1, labels=ANSWERABLE) if moment.passages else says(0.1, 0.9, labels=ANSWERABLE)

    tree = {
        "": "{~retrieve .5 .5 0}x",
        "[Retrieval]<d1>": "[Relevant]One.{retrieve .5 .5 0}",
        "One.[Retrieval]<d1>": "[Relevant]Two.</s>",
        "One.[No Retrieval]": "Own.</s>",
    }

    def decoded(threshold: float) -> Any:
        critic = Scripted("ad", certain, needs_evidence=False)
        gates = ["ad<0.5:retrieve", "ad<0.5:write"]
        return run(tree, "d1", gates=gates, threshold=threshold, history="text", given={"critics": [critic]}).answer

    assert (decoded(0.2).text, decoded(0.9).text) == ("One. Two.", "One. Own.")
    assert not decoded(0.2).rescore(threshold=0.9).exact
    assert decoded(0.2).rescore(threshold=0.3).exact


def test_a_route_gate_that_was_undefined_leaves_the_decision_to_the_model() -> None:
    def certain(moment: Moment) -> Judgment | None:
        return says(0.9, 0.1, labels=ANSWERABLE) if moment.passages else None

    tree = {"": "{~retrieve .5 .5 0}x", "[Retrieval]<d1>": "[Relevant]One.</s>", "[No Retrieval]": "Own.</s>"}

    def decoded(threshold: float) -> Any:
        critic = Scripted("ad", certain, needs_evidence=False)
        gates = ["ad<0.5:retrieve", "ad<0.5:drop"]
        return run(tree, "d1", gates=gates, threshold=threshold, given={"critics": [critic]}).answer

    assert (decoded(0.2).text, decoded(0.9).text) == ("One.", "Own.")
    assert not decoded(0.2).rescore(threshold=0.9).exact


def test_a_threshold_stays_where_an_answer_is_rescored_again() -> None:
    tree = {
        "": "{~retrieve .5 .5 0}x",
        "[Retrieval]<d1>": ("[Relevant]Found.</s>", 0.9),
        "[No Retrieval]": ("Own.</s>", 0.1),
    }
    answer = run(tree, "d1", no_retrieval_branch=True).answer
    without = answer.rescore(threshold=0.9)
    assert (answer.text, without.text) == ("Found.", "Own.")
    assert without.rescore() == without
    assert without.rescore(weights=Weights(2)).text == "Own."
    assert not run(tree, "d1").answer.rescore(threshold=0.9).rescore().exact


def test_a_side_of_which_every_candidate_failed_raises_as_a_decode_does() -> None:
    tree = {
        "": "{~retrieve .5 .5 0}x",
        "[Retrieval]<d1>": ("[Relevant]Found.</s>", 0.9),
        "[No Retrieval]": Failed("no memory"),
    }
    answer = run(tree, "d1", no_retrieval_branch=True).answer
    assert answer.rescore().text == "Found."
    with pytest.raises(DecodingError, match=r"^no candidate could be generated: no memory$"):
        run(tree, "d1", threshold=0.9)
    with pytest.raises(DecodingError, match=r"^no candidate could be generated: no memory$"):
        answer.rescore(threshold=0.9)


# --- failures on the way ------------------------------------------------------------------------------------------

TWO = {
    "[Retrieval]<d1>": "[Relevant]One.{retrieve 1 0 0}",
    "One.[Retrieval]<d1>": Failed("no memory"),
}
PARTIAL = "segment 2 could not be written: no memory"


def shown(found: Run) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(render(found.answer))
    return console.export_text()


def check_partial(found: Run, text: str, reason: str) -> None:
    """Every place that shows an answer says that it is partial, and why."""
    answer = found.answer
    assert (answer.text, answer.partial) == (text, reason)
    assert answer.as_dict()["partial"] == reason
    assert answer.trace.as_dict()["partial"] == reason
    assert json.loads(answer.trace.to_json())["partial"] == reason
    read = Trace.from_json(answer.trace.to_json())
    assert read == answer.trace
    assert read.partial == reason
    assert answer.rescore() == answer
    assert answer.rescore(Weights(3, 1, 0)).partial == reason
    assert f"partial: {reason}" in str(answer)
    assert f"partial: {reason}" in shown(found)
    assert reason in html(answer)


def test_an_answer_that_a_failed_generation_cut_off_says_so() -> None:
    check_partial(run(TWO, "d1", mode="always", history="text"), "One.", PARTIAL)


def test_the_other_sides_failures_make_no_rescored_answer_partial() -> None:
    tree = TWO | {"": "{~retrieve 1 0 0}x", "One.[No Retrieval]": "[No Retrieval]"}
    tree["[Retrieval]<d1>"] = "[Relevant]One.{retrieve .5 .5 0}"
    tree["[No Retrieval]"] = "[Utility:1]</s>"
    answer = run(tree, "d1", no_retrieval_branch=True, history="text").answer
    assert (answer.text, answer.partial) == ("One.", PARTIAL)
    without = answer.rescore(threshold=0.9)
    assert (without.text, without.partial, without.exact) == ("One.", None, True)
    fresh = run(tree, "d1", no_retrieval_branch=True, history="text", threshold=0.9).answer
    assert (fresh.text, fresh.partial) == ("One.", None)


def failing(*queries: str) -> Callable[[str], Sequence[Passage]]:
    """A retriever that finds d1 and d2, but fails for these queries."""

    def search(query: str) -> Sequence[Passage]:
        if query in queries:
            raise UserError("the index is gone")
        return passages("d1", "d2")

    return search


def test_a_later_search_that_fails_ends_the_answer_there_and_says_so() -> None:
    tree = {"[Retrieval]<d1>": "[Relevant]One.{retrieve 1 0 0}", "[Retrieval]<d2>": "[Relevant]One.{retrieve 1 0 0}"}
    found = run(tree, search=failing("Q One."), mode="always", history="text")
    check_partial(found, "One.", "the search for segment 2 failed: the index is gone")
    assert [s.text for s in found.commits] == ["One."]
    assert found.answer.trace.decisions[-1].reason == "mode=always; search failed: the index is gone"


def test_a_later_search_that_fails_leaves_finished_hypotheses() -> None:
    tree = {
        "[Retrieval]<d1>": ("{isrel .9 .1}Whole.</s>", 0.9),
        "[Retrieval]<d2>": ("{isrel .5 .5}Half.{retrieve 1 0 0}", 0.5),
    }
    found = run(tree, search=failing("Q Half."), mode="always", history="text")
    assert (found.answer.text, found.answer.partial) == ("Whole.", None)
    assert found.statuses() == {"Whole.": "finished", "Half.": "finished"}
    other = found.answer.rescore(Weights(isrel=-9))
    assert (other.text, other.exact) == ("Half.", True)
    assert other.partial == "the search for segment 2 failed: the index is gone"
    fresh = run(tree, search=failing("Q Half."), mode="always", history="text", weights=Weights(isrel=-9)).answer
    assert (fresh.text, fresh.partial) == (other.text, other.partial)
