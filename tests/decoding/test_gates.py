"""Gates before writing: abstain, write without evidence, leave passages out, search only where unsure."""

from __future__ import annotations

from scripted_critics import Scripted, says
from written import TWO_WAYS, passages, reply, run

from selfrag.decoding.reflectors import Moment
from selfrag.decoding.trace import Trace
from selfrag.intrinsics.labels import ANSWERABLE, CERTAINTY, RELEVANCE
from selfrag.prompting import Turn
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.weights import Weights

YES = reply("[Relevant]Yes.[Fully supported]</s>")


def answerable(probability: float) -> Scripted:
    return Scripted(
        "ad", lambda moment: says(probability, 1 - probability, labels=ANSWERABLE), of_passages=True, asks=True
    )


def certain(digit: int) -> Scripted:
    row = [float(i == digit) for i in range(10)]
    return Scripted("uq", lambda moment: says(*row, labels=CERTAINTY), needs_evidence=False)


def test_an_unanswerable_question_gets_the_fixed_text_and_nothing_is_written() -> None:
    gate = answerable(0.2)
    found = run(TWO_WAYS, "d1", "d2", gates="ad<0.5:abstain", given={"critics": [gate]})
    answer = found.answer
    assert (answer.text, answer.segments, answer.abstained) == ("I don't know the answer", (), True)
    assert gate.moments == [Moment("Q", (), passages("d1", "d2"))]
    assert answer.trace.nodes == ()
    (decision,) = answer.trace.decisions
    assert decision.action == "abstain"
    assert decision.reason.endswith("ad 0.200 < 0.5, abstain")
    assert [name for name, _ in decision.gates] == ["ad"]
    assert len(found.engine.requests) == answer.usage.requests == 2  # the first boundary and the gate
    assert answer.rescore(Weights(5)) == answer.rescore(Weights(5)).rescore(Weights(5))
    assert answer.rescore().text == answer.text
    assert answer.rescore(threshold=0.5).exact
    assert not answer.rescore(threshold=0.95).exact  # nothing would have been searched
    assert Trace.from_json(answer.trace.to_json()) == answer.trace


def test_a_gate_can_take_the_evidence_away() -> None:
    answer = run(TWO_WAYS, "d1", "d2", gates="ad<0.5:write", given={"critics": [answerable(0.2)]}).answer
    assert (answer.text, answer.citations) == ("Own.", ())
    assert answer.trace.decisions[0].action == "retrieve"
    assert answer.trace.decisions[0].reason.endswith("ad 0.200 < 0.5, no evidence")
    assert answer.rescore(Weights(issup=3)).exact


def test_passages_that_do_not_help_are_left_out_and_judged_once() -> None:
    def relevance(moment: Moment) -> Judgment:
        return says(*((0, 0, 1) if moment.passages[0].id == "d2" else (1, 0, 0)), labels=RELEVANCE)

    judge = Scripted("cr", relevance, of_passages=True)
    answer = run(TWO_WAYS, "d1", "d2", gates="cr<0.5:drop", reflectors="cr=isrel", given={"critics": [judge]}).answer
    assert answer.text == "Close."
    assert [p.id for p in answer.trace.decisions[0].passages] == ["d1"]
    assert [judgment.site for _, judgment in answer.trace.decisions[0].gates] == ["passage d1", "passage d2"]
    assert "passage d2 left out" in answer.trace.decisions[0].reason
    assert [m.passages[0].id for m in judge.moments] == ["d1", "d2"]  # the score reuses the gate's verdict


def test_certainty_routes_the_search() -> None:
    unsure = run(TWO_WAYS, "d2", gates="uq<0.5:retrieve", threshold=1.0, given={"critics": [certain(1)]})
    assert unsure.answer.text == "Sure."
    assert unsure.answer.rescore(threshold=0.0).exact  # the model's own decision did not matter
    sure = run(TWO_WAYS, "d2", gates="uq<0.5:retrieve", threshold=0.0, given={"critics": [certain(9)]})
    assert (sure.answer.text, sure.searches.queries) == ("Own.", [])
    assert sure.answer.trace.decisions[0].reason == "uq 0.950, no search"
    for threshold in (0.0, 1.0):
        again = sure.answer.rescore(threshold=threshold)
        assert (again.text, again.exact) == ("Own.", True)
    always = certain(9)
    run(TWO_WAYS, "d2", gates="uq<0.5:retrieve", mode="always", given={"critics": [always]})
    assert always.moments == []  # the mode is the caller's own decision


def test_a_query_takes_the_place_of_the_question_in_searches_only() -> None:
    tree = {
        "": "{~retrieve .9 .1 0}x",
        "[Retrieval]<d1>": "[Relevant]One.[Fully supported]{retrieve .9 .1 0}",
        "[Retrieval]<d1>[Relevant]One.[Fully supported][Retrieval]<d2>": "[Relevant]Two.[Fully supported]</s>",
    }
    search = {"Who?": passages("d1"), "Who? One.": passages("d2")}
    found = run(tree, question="and he?", search=search, given={"query": "Who?"})
    assert found.answer.text == "One. Two."
    assert found.searches.queries == ["Who?", "Who? One."]
    assert found.answer.question == "and he?"
    assert [d.query for d in found.answer.trace.decisions] == ["Who?", "Who? One."]


def test_earlier_turns_stand_before_the_prompt() -> None:
    judge = Scripted("ad", lambda moment: says(1, 0, labels=ANSWERABLE), of_passages=True)
    history = (Turn("user", "Hi"), Turn("assistant", "Hello."), Turn("user", "Who?"))
    given = {"history": history, "critics": [judge]}
    engine = run(lambda request: YES, "d1", gates="ad<0.5:abstain", mode="always", given=given).engine
    text = "".join(chr(i - 100) for i in engine.requests[0].prompt_ids if i >= 100)
    before = (
        "### Instruction:\nHi\n\n### Response:\nHello.\n\n"
        "### Instruction:\nWho?\n\n### Response:\n\n\n"
        "### Instruction:\nQ\n\n### Response:\n"
    )
    assert text.startswith(before)
    assert judge.moments == [Moment("Q", history, passages("d1"))]
