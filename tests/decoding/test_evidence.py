"""Where evidence comes from: searches and their queries, fixed passages, duplicates, nothing found, failures."""

from __future__ import annotations

import pytest
from written import passages, run

from retrieval.passage import Passage
from selfrag.decoding.requests import Failed
from selfrag.errors import DecodingError

D1 = "[Retrieval]<d1>"
TWICE = {
    D1: "[Relevant]One.{retrieve 1 0 0}",
    D1 + "[Relevant]One." + D1: "[Relevant]Two.</s>",
}


def test_the_query_is_the_question_and_the_last_segment() -> None:
    assert run(TWICE, "d1", mode="always").searches.queries == ["Q", "Q One."]


def test_retrieve_once_keeps_the_first_search() -> None:
    found = run(TWICE, "d1", mode="always", retrieve_once=True)
    assert found.searches.queries == ["Q"]
    assert found.answer.text == "One. Two."
    assert found.answer.usage.searches == 1


def test_retrieve_once_searches_once_even_where_two_hypotheses_ask_first() -> None:
    tree = {
        "": "{~retrieve 0 1 0}x",
        "[No Retrieval]": "A.{retrieve 1 0 0}",
        "[No Retrieval]A.[Retrieval]<d1>": "[Relevant]B.</s>",
    }
    found = run(tree, "d1", retrieve_once=True)
    assert found.searches.queries == ["Q"]  # the question, not what happened to be written
    assert found.answer.text == "A. B."


def test_equal_queries_are_searched_once() -> None:
    """Two hypotheses whose last segments are the same ask the same."""
    more = "{retrieve 1 0 0}"
    tree = {
        "[Retrieval]<d1>": "[Relevant]A." + more,
        "[Retrieval]<d2>": "[Relevant]B." + more,
        "A.[Retrieval]<d1>": "[Relevant]Same." + more,
        "A.[Retrieval]<d2>": "[Irrelevant]No." + more,
        "B.[Retrieval]<d1>": "[Relevant]Same." + more,
        "B.[Retrieval]<d2>": "[Irrelevant]No." + more,
        "A.Same.[Retrieval]<d1>": "[Relevant]End.</s>",
        "A.Same.[Retrieval]<d2>": "[Relevant]End.</s>",
        "B.Same.[Retrieval]<d1>": "[Relevant]End.</s>",
        "B.Same.[Retrieval]<d2>": "[Relevant]End.</s>",
    }
    found = run(tree, "d1", "d2", mode="always", history="text")
    assert found.searches.batches == [["Q"], ["Q A.", "Q B."], ["Q Same."]]
    assert found.answer.text == "A. Same. End."
    assert found.answer.usage.searches == 4


def test_passages_given_by_the_caller_serve_every_segment() -> None:
    found = run(TWICE, evidence=passages("d1", "d2"), mode="always", passages=1)
    assert found.answer.text == "One. Two."
    assert found.searches.queries == []
    assert [d.query for d in found.answer.trace.decisions] == [None, None]


def test_repeated_and_blank_passages_are_left_out() -> None:
    d1, d2 = passages("d1", "d2")
    hits = [d1, d1.with_score(0.5), Passage("copy", d1.text, d1.title), Passage("d9", " \n"), d2]
    tree = {D1: ("[Relevant]A.</s>", 0.9), "[Retrieval]<d2>": ("[Relevant]B.</s>", 0.8)}
    found = run(tree, search={"Q": hits}, mode="always", passages=5)
    assert [p.id for p in found.answer.trace.decisions[0].passages] == ["d1", "d2"]
    assert found.answer.usage.requests == 2


@pytest.mark.parametrize("given", [None, ()])
def test_nothing_found_writes_without_evidence(given: tuple[Passage, ...] | None) -> None:
    found = run({"[No Retrieval]": "Own words.</s>"}, evidence=given, mode="always")
    assert found.answer.text == "Own words."
    assert found.answer.segments[0].citation is None
    (decision,) = found.answer.trace.decisions
    assert (decision.action, decision.passages) == ("retrieve", ())
    assert decision.reason == "mode=always; nothing found"
    assert found.answer.retrieved == ()


def test_nothing_found_is_as_exact_under_the_same_threshold() -> None:
    answer = run({"": "{~retrieve 1 0 0}x", "[No Retrieval]": "Own words.</s>"}).answer
    assert answer.rescore(threshold=0.2).exact
    assert answer.rescore(threshold=0.5).exact
    assert answer.rescore(threshold=1.0).exact  # not retrieving would have written the same


def test_a_failed_search_fails_the_question() -> None:
    def broken(query: str) -> list[Passage]:
        raise ConnectionError("no route to the index")

    with pytest.raises(DecodingError, match=r"^search failed: ConnectionError: no route to the index$"):
        run({}, search=broken, mode="always")


def test_a_failed_candidate_leaves_the_others() -> None:
    tree = {D1: Failed("out of memory"), "[Retrieval]<d2>": "[Relevant]Fine.</s>"}
    found = run(tree, "d1", "d2", mode="always")
    assert found.answer.text == "Fine."
    assert [(str(n.status), n.finish) for n in found.answer.trace.nodes] == [
        ("failed", "out of memory"),
        ("finished", "eos"),
    ]


def test_every_candidate_failed_is_one_line() -> None:
    tree = {D1: Failed("out of memory"), "[Retrieval]<d2>": Failed("out of memory")}
    with pytest.raises(DecodingError, match=r"^no candidate could be generated: out of memory$"):
        run(tree, "d1", "d2", mode="always")


def test_a_question_that_cannot_be_read_is_one_line() -> None:
    with pytest.raises(DecodingError, match=r"^the model could not read the question: too long$"):
        run({"": Failed("too long")}, "d1")


def test_an_answer_as_plain_values() -> None:
    found = run({D1: "[Relevant]\nA.{issup .6 .3 .1}</s>"}, "d1", mode="always")
    given = found.answer.as_dict()
    assert list(given) == ["question", "text", "segments", "retrieved", "usage"]
    assert (given["question"], given["text"]) == ("Q", "A.")
    assert given["retrieved"] == [{"id": "d1", "title": "Title of d1", "score": 1.0, "segment": 0}]
    (segment,) = given["segments"]
    assert (segment["text"], segment["start"], segment["end"], segment["citation"]["id"]) == ("A.", 0, 2, "d1")
    assert segment["reflections"]["issup"]["Partially supported"] == pytest.approx(0.3)
    assert segment["reflections"]["isuse"] is None


def test_passage_scores_and_titles_reach_the_citation() -> None:
    passage = Passage("d1", "Text of d1.", "Title of d1", 0.73)
    found = run({D1: "[Relevant]A.</s>"}, search={"Q": [passage]}, mode="always")
    assert found.answer.citations == (passage,)
    assert found.answer.as_dict()["segments"][0]["citation"]["score"] == 0.73
