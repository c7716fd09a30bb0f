"""The paper's flows, composed ones, and conversations of several turns: who sees the rewrite, and who does not."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from answering import Answering, scoring, writing
from written import PROMPTING, RESPONSE, Searches, passages, reply, scripted

from retrieval.passage import Passage
from selfrag.api import SelfRAG
from selfrag.decoding.answer import Answer, sweep
from selfrag.decoding.policy import Decoding
from selfrag.decoding.requests import Generate
from selfrag.engines.scripted import ScriptedEngine
from selfrag.errors import UserError
from selfrag.intrinsics import (
    Answerability,
    CitationGeneration,
    ContextRelevance,
    HallucinationDetection,
    QueryRewrite,
    Uncertainty,
)
from selfrag.intrinsics.contract import Completion, Failed, Request
from selfrag.intrinsics.flows import (
    AnswerabilityGate,
    CertaintyFilter,
    ChatWriter,
    Cite,
    Flow,
    HallucinationFilter,
    RelevanceFilter,
    Rewrite,
    Search,
    SearchAgain,
    SelfRAGWriter,
    Take,
    Write,
    named,
    run,
)
from selfrag.intrinsics.reflectors import IntrinsicReflector
from selfrag.reflection.weights import Weights

TALK = [
    {"role": "user", "content": "Who founded Apple?"},
    {"role": "assistant", "content": "Steve Jobs and others."},
    {"role": "user", "content": "and for Microsoft?"},
]
REWRITE = "Who founded Microsoft?"
MICROSOFT = Passage("ms", "Microsoft was founded by Bill Gates and Paul Allen. It is big.", "Microsoft")
BOTH = f"and for Microsoft? {REWRITE}"
ASKED = "and for Microsoft?"
TOGETHER = "Who founded Apple? and for Microsoft?"
KNOWN = {"and for Microsoft?": passages("d1"), REWRITE: (MICROSOFT,), BOTH: (MICROSOFT,), TOGETHER: passages("d1")}
YES = "[Relevant]Found.[Fully supported][Utility:5]</s>"


def engine() -> ScriptedEngine:
    """Wants evidence, and writes one answer after any passage."""

    def model(request: Generate) -> Any:
        return reply("{~retrieve .9 .1 0}x" if request.max_tokens == 1 else YES)

    return ScriptedEngine(model, 0, limits=scripted({}).limits)


def rewriter(text: str = REWRITE) -> tuple[IntrinsicReflector, Answering]:
    executor = writing(json.dumps({"rewritten_question": text}))
    return IntrinsicReflector(QueryRewrite(executor)), executor


def gate(probability: float) -> tuple[IntrinsicReflector, Answering]:
    executor = scoring(answerable=probability, unanswerable=1 - probability)
    return IntrinsicReflector(Answerability(executor)), executor


def go(flow: Flow, conversation: Any = TALK, **options: Any) -> tuple[Answer, ScriptedEngine, Searches]:
    searches, serving = Searches(KNOWN), options.pop("engine", None) or engine()
    (answer,) = run(flow, [conversation], serving, searches)
    if isinstance(answer, UserError):
        raise answer
    return answer, serving, searches


def prompts(serving: ScriptedEngine) -> list[str]:
    """Text of every prompt, without control ids."""
    return ["".join(chr(i - 100) for i in request.prompt_ids if i >= 100) for request in serving.requests]


@pytest.mark.parametrize("name", ["none", "qr", "ad", "qr+ad"])
def test_the_papers_flows(name: str) -> None:
    rewrite, _ = rewriter()
    answerability, judge = gate(0.9)
    flow = named(name, SelfRAGWriter(PROMPTING, Decoding(mode="always")), rewrite=rewrite, answerability=answerability)
    answer, serving, searches = go(flow)
    assert searches.queries == [BOTH if "qr" in name else "and for Microsoft?"]
    found = ["ms"] if "qr" in name else ["d1"]
    assert [p.id for p in answer.citations] == found
    for request in judge.requests:  # the gate sees the original, and the passages of the search
        assert [m.content for m in request.state.messages] == [turn["content"] for turn in TALK]
        assert [p.id for p in request.state.passages] == found
    assert len(judge.requests) == ("ad" in name)
    assert all(REWRITE not in text for text in prompts(serving))  # so does the writer
    assert all(text.split(RESPONSE)[0].endswith("Who founded Apple?\n\n") for text in prompts(serving))
    assert answer.question == "and for Microsoft?"
    expected = [*(["rewrite"] if "qr" in name else []), "search", *(["answerability"] if "ad" in name else []), "write"]
    assert [step.name for step in answer.steps] == expected
    assert json.dumps(answer.as_dict())
    assert answer.usage.searches == 1
    assert answer.usage.requests == len(serving.requests)


def test_an_unanswerable_question_ends_with_the_fixed_text() -> None:
    answerability, _ = gate(0.3)
    answer, serving, _ = go(named("ad", SelfRAGWriter(PROMPTING), answerability=answerability))
    assert (answer.text, answer.abstained, answer.segments) == ("I don't know the answer", True, ())
    assert serving.requests == []
    assert [step.outcome for step in answer.steps][-1] == "answerable 0.30"
    assert answer.rescore().text == answer.text
    other = named("ad", SelfRAGWriter(PROMPTING), answerability=answerability, threshold=0.2)
    assert go(other)[0].text == "Found."
    broken = IntrinsicReflector(Answerability(Answering(lambda request: Failed("no memory"))))
    assert go(named("ad", SelfRAGWriter(PROMPTING), answerability=broken))[0].text == "Found."
    nothing = Searches(lambda query: ())
    (empty,) = run(named("ad", SelfRAGWriter(PROMPTING), answerability=answerability), ["Q"], engine(), nothing)
    assert isinstance(empty, Answer)
    assert empty.abstained


@pytest.mark.parametrize(
    ("found", "rewrites", "queries", "evidence", "outcome"),
    [
        ({ASKED: 0.9}, True, [ASKED], "d1", "not needed"),
        (
            {ASKED: 0.2, REWRITE: 0.8},
            True,
            [ASKED, REWRITE],
            "ms",
            "answerable 0.80 after 1",
        ),
        (
            {ASKED: 0.2, TOGETHER: 0.1},
            False,
            [ASKED, TOGETHER],
            "d1",
            "answerable 0.20 after 1",
        ),
        ({ASKED: None, TOGETHER: 0.3}, False, [ASKED, TOGETHER], "ms", "answerable 0.30"),
    ],
)
def test_an_unanswerable_question_is_searched_for_with_other_words(found, rewrites, queries, evidence, outcome) -> None:
    """The first search finds `d1` or nothing, the others `ms`; the answerability of either is given by its search."""
    shown = {"d1": found[ASKED], "ms": next((v for q, v in found.items() if q in queries[1:]), None)}

    def judge(request: Request) -> Completion:
        p = shown[request.state.passages[0].id]
        return Completion(scores=((math.log(p), math.log(1 - p)),))

    rewrite, _ = rewriter()
    searches = Searches(lambda query: (MICROSOFT,) if query != queries[0] else passages("d1") if shown["d1"] else ())
    again = SearchAgain(IntrinsicReflector(Answerability(Answering(judge))), rewrite if rewrites else None)
    writer = SelfRAGWriter(PROMPTING, Decoding(mode="always"))
    (answer,) = run(Flow((Search(), again, Write(writer))), [TALK], engine(), searches)
    assert isinstance(answer, Answer)
    assert searches.queries == queries
    assert [p.id for p in answer.citations] == [evidence]
    (step,) = [one for one in answer.steps if one.name == "search again"]
    assert step.outcome.startswith(outcome)
    assert answer.usage.searches == len(queries)


def test_a_flow_by_name_searches_again_and_then_gives_up() -> None:
    rewrite, _ = rewriter()
    answerability, _ = gate(0.3)
    writer = SelfRAGWriter(PROMPTING, Decoding(mode="always"))
    flow = named("QR + again + ad", writer, rewrite=rewrite, answerability=answerability)
    assert (flow.name, len(flow.stages)) == ("qr+again+ad", 5)
    answer, _, searches = go(flow)
    assert searches.queries == [BOTH, REWRITE, TOGETHER]
    assert answer.abstained


@pytest.mark.parametrize(
    ("scope", "last", "turns"),
    [("retrieval", "and for Microsoft?", 3), ("conversation", REWRITE, 3), ("alone", REWRITE, 1)],
)
def test_what_a_rewrite_changes_is_a_parameter(scope: Any, last: str, turns: int) -> None:
    rewrite, _ = rewriter()
    answerability, judge = gate(0.9)
    writer = SelfRAGWriter(PROMPTING, Decoding(mode="always"))
    flow = named("qr+ad", writer, rewrite=rewrite, answerability=answerability, rewrite_scope=scope)
    answer, serving, searches = go(flow)
    assert searches.queries == [BOTH]
    (request,) = judge.requests
    assert (request.state.messages[-1].content, len(request.state.messages)) == (last, turns)
    assert all(f"### Instruction:\n{last}" in text for text in prompts(serving))
    assert all(("Apple" in text) == (turns > 1) for text in prompts(serving))
    assert answer.question == "and for Microsoft?"


def test_a_model_that_writes_no_rewrite_keeps_the_question() -> None:
    rewrite = IntrinsicReflector(QueryRewrite(writing("I cannot do that")))
    answer, _, searches = go(named("qr", SelfRAGWriter(PROMPTING), rewrite=rewrite))
    assert searches.queries == ["and for Microsoft?"]
    assert answer.steps[0].outcome.startswith("kept as asked: ")


def test_without_a_search_of_its_own_a_flow_lets_the_model_decide() -> None:
    rewrite, _ = rewriter()
    never = SelfRAGWriter(PROMPTING, Decoding(mode="never"))
    assert go(named("qr", never, rewrite=rewrite, k=None))[2].queries == []
    assert go(named("qr", SelfRAGWriter(PROMPTING), rewrite=rewrite, k=None))[2].queries == [BOTH]
    alone = Flow((Rewrite(rewrite, query="rewrite"), Write(SelfRAGWriter(PROMPTING))))
    assert go(alone)[2].queries == [REWRITE]  # as in the paper


def test_flows_compose() -> None:
    relevance = IntrinsicReflector(ContextRelevance(scoring(relevant=0.1, irrelevant=0.9)))
    first = Flow((Search(3), RelevanceFilter(relevance)), "filtered")
    flow = first + Flow((Write(SelfRAGWriter(PROMPTING, Decoding(mode="always"))),), "write")
    assert flow.name == "filtered+write"
    answer, _, searches = go(flow)
    assert (answer.citations, searches.queries) == ((), ["and for Microsoft?"])  # nothing relevant, no second search
    assert [step.outcome for step in answer.steps] == ["1 for and for Microsoft?", "0 of 1 kept", "1 written"]
    with pytest.raises(UserError, match="writes no answer"):
        go(first)


def test_certain_samples_of_a_beam() -> None:
    tree = {
        "": "{~retrieve .9 .1 0}x",
        "[Retrieval]<d1>": ("[Relevant]Close.{issup .1 .1 .8}</s>", 0.5),
        "[Retrieval]<d2>": ("[Relevant]Sure.{issup .9 .1 0}</s>", 0.5),
    }

    def certainty(request: Request) -> Completion:
        digit = "8" if request.state.response == "Close." else "3"
        return Completion(scores=(tuple(0.0 if s == digit else -math.inf for s in request.slots[0].surfaces),))

    uq = IntrinsicReflector(Uncertainty(Answering(certainty)))
    write = Write(SelfRAGWriter(PROMPTING, Decoding(max_segments=1)), samples=3)
    searches = Searches(lambda query: passages("d1", "d2"))

    def text(flow: Flow) -> str:
        (answer,) = run(flow, ["Q"], scripted({"Q": tree}), searches)
        assert isinstance(answer, Answer)
        return answer.text

    assert text(Flow((write,))) == "Sure."
    assert text(Flow((write, CertaintyFilter(uq)))) == "Close."
    assert text(Flow((write, CertaintyFilter(uq, threshold=0.9)))) == "I don't know the answer"
    assert text(Flow((write, CertaintyFilter(uq, threshold=0.9, text="Unsure.")))) == "Unsure."


def test_rescoring_an_answer_that_a_flow_chose_is_not_exact() -> None:
    """Stages after the writing have not seen what other settings choose: they may have rejected it already."""
    certainty = IntrinsicReflector(Uncertainty(scoring(**{str(digit): float(digit == 8) for digit in range(10)})))
    write = Write(SelfRAGWriter(PROMPTING, Decoding(mode="always")), samples=2)
    cite = Cite(IntrinsicReflector(CitationGeneration(Answering(lambda request: Failed("no memory")))))
    assert go(Flow((Search(1), write)))[0].rescore().exact
    chosen = go(Flow((Search(1), write, CertaintyFilter(certainty))))[0]
    assert not chosen.rescore().exact
    assert not sweep([chosen], [Weights()])[1].any()
    assert not go(Flow((Search(1), write, CertaintyFilter(certainty, threshold=0.95))))[0].rescore().exact
    assert not go(Flow((Search(1), write, cite)))[0].rescore().exact
    answerability, _ = gate(0.3)
    unanswerable = go(named("ad", SelfRAGWriter(PROMPTING), answerability=answerability))[0]
    assert unanswerable.abstained
    assert unanswerable.rescore(threshold=0.9).exact  # nothing was written: the gate would say the same


def test_any_chat_model_writes_and_is_checked() -> None:
    texts = iter(["Bill Gates.", "Bill Gates.", "Paul Allen."])
    executor = Answering(lambda request: Completion(next(texts), "stop"))
    flow = Flow((Search(1), Write(ChatWriter(executor, temperature=0.7), samples=3)))
    answer, _, _ = go(flow, REWRITE)
    assert answer.text == "Bill Gates."
    assert answer.steps[-1].outcome == "2 written"
    assert [p.id for p in answer.trace.decisions[0].passages] == ["ms"]
    (turn,) = executor.requests[0].prompt.messages  # type: ignore[union-attr]
    assert "founded by Bill Gates" in turn.content
    unfaithful = IntrinsicReflector(HallucinationDetection(scoring(unfaithful=1.0)))
    checked = Flow((Search(1), Write(ChatWriter(writing("Elvis."))), HallucinationFilter(unfaithful)))
    assert go(checked, REWRITE)[0].abstained
    with pytest.raises(UserError, match="temperature"):
        go(Flow((Write(ChatWriter(executor), samples=2),)))
    with pytest.raises(UserError, match="no memory"):
        go(Flow((Write(ChatWriter(Answering(lambda request: Failed("no memory")))),)))


def test_citing_what_another_model_wrote() -> None:
    def first_sentence(request: Request) -> Completion:
        rows = []
        for slot in request.slots:
            wanted = 1 if "Gates" in slot.site.text else 0
            rows.append(tuple(math.log(0.9) if i == wanted else math.log(0.01) for i in range(len(slot.surfaces))))
        return Completion(scores=tuple(rows))

    executor = Answering(first_sentence)
    cite = Cite(IntrinsicReflector(CitationGeneration(executor)))
    wrote = [{"role": "user", "content": REWRITE}, {"role": "assistant", "content": "  Bill Gates did.  I like him. "}]
    found = Searches(lambda query: (MICROSOFT,))
    (answer,) = run(Flow((Take(), Search(2, by="answer"), cite)), [wrote], engine(), found)
    assert isinstance(answer, Answer)
    assert found.queries == [f"{REWRITE} Bill Gates did.", f"{REWRITE} I like him."]
    assert [(s.text, s.citation.id if s.citation else None) for s in answer.segments] == [
        ("Bill Gates did.", "ms"),
        ("I like him.", None),
    ]
    assert all(answer.text[s.start : s.end] == s.text for s in answer.segments)
    assert answer.cited_text().startswith("Bill Gates did. [1]")
    assert wrote[1]["content"] == "  Bill Gates did.  I like him. "
    given = run(Flow((Take(), cite)), [wrote], engine())[0]
    assert isinstance(given, Answer)
    assert given.steps[-1].outcome == "no passages to cite"
    with pytest.raises(UserError, match="must end with the assistant turn"):
        go(Flow((Take(), cite)))


def test_a_search_that_fails_after_the_writing_loses_no_answer() -> None:
    def search(query: str) -> tuple[Passage, ...]:
        if query.endswith("him."):
            raise ConnectionError("no route")
        return (MICROSOFT,)

    wrote = [{"role": "user", "content": REWRITE}, {"role": "assistant", "content": "Bill Gates did. I like him."}]
    (answer,) = run(Flow((Take(), Search(2, by="answer"))), [wrote], engine(), Searches(search))
    assert isinstance(answer, Answer)
    assert answer.text == "Bill Gates did. I like him."
    assert answer.steps[-1].outcome.startswith("1 for ")
    assert answer.steps[-1].outcome.endswith("; search failed: ConnectionError: no route")
    (lost,) = run(Flow((Search(2), Take())), [f"{REWRITE} him."], engine(), Searches(search))
    assert str(lost) == "search failed: ConnectionError: no route"


def test_one_conversation_that_fails_costs_no_other() -> None:
    flow = Flow((Write(SelfRAGWriter(PROMPTING)),))
    bad = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]
    first, second, third = run(flow, [TALK, bad, "Q"], engine(), Searches(lambda query: passages("d1")))
    assert isinstance(first, Answer)
    assert str(second) == "the conversation must end with the user's turn; the last one is of another role"
    assert isinstance(third, Answer)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: named("qa", SelfRAGWriter(PROMPTING)), "unknown flow 'qa'; known: none, and qr, again, ad joined by"),
        (lambda: named("qr", SelfRAGWriter(PROMPTING)), "needs rewrite="),
        (lambda: named("ad", SelfRAGWriter(PROMPTING)), "needs answerability="),
        (lambda: named("ad", SelfRAGWriter(PROMPTING), answerability=gate(1)[0], k=None), "k=5"),
        (lambda: Rewrite(gate(0.5)[0]), "Rewrite needs a reflector that judges rewrite, and answerability judges"),
        (lambda: Rewrite(rewriter()[0], "all"), "rewrite_scope='all'"),  # type: ignore[arg-type]
        (lambda: AnswerabilityGate(rewriter()[0]), "AnswerabilityGate needs"),
        (lambda: CertaintyFilter(gate(0.5)[0]), "CertaintyFilter needs"),
        (lambda: Search(0), "k=0"),
        (lambda: Search(1, by="luck"), "by='luck'"),  # type: ignore[arg-type]
        (lambda: Write(SelfRAGWriter(PROMPTING), samples=0), "samples=0"),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_made(make: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


# --- SelfRAG.generate on conversations ----------------------------------------------------------------------------


def rag(*reflectors: Any) -> SelfRAG:
    return SelfRAG(PROMPTING, engine(), Searches(KNOWN), reflectors=reflectors)


def test_a_follow_up_searches_with_the_rewrite() -> None:
    before = json.dumps(TALK)
    model = rag(rewriter()[0])
    answer = model.generate(TALK)
    assert [p.id for p in answer.citations] == ["ms"]
    assert isinstance(model.retriever, Searches)
    assert model.retriever.queries == [BOTH]
    assert isinstance(model.engine, ScriptedEngine)
    assert "Steve Jobs and others." in prompts(model.engine)[0]
    assert [(step.name, step.outcome) for step in answer.steps] == [("rewrite", REWRITE), ("write", "1 written")]
    assert json.dumps(TALK) == before
    assert answer.rescore() == answer


def test_without_a_rewriter_the_last_turn_is_searched_for() -> None:
    model = rag()
    assert [p.id for p in model.generate(TALK).citations] == ["d1"]
    first = rag(rewriter()[0])
    first.generate(TALK[:1], mode="never")
    many = rag(rewriter()[0]).generate([TALK, "and for Microsoft?", []])
    assert [[p.id for p in a.citations] for a in many] == [["ms"], ["d1"], []]
    assert many[2].error is not None


def test_flows_by_name_with_the_reflectors_at_hand() -> None:
    assert rag(rewriter()[0], gate(0.1)[0]).generate(TALK, flow="qr+ad").abstained
    answer = rag(rewriter()[0], gate(0.9)[0]).generate(TALK, flow="QR+AD", rewrite_scope="alone")
    assert [p.id for p in answer.citations] == ["ms"]
    with pytest.raises(UserError, match="needs rewrite="):
        rag().generate(TALK, flow="qr")
    given = rag(gate(0.1)[0]).generate("Q", flow="ad", evidence=passages("d1"), abstention="No idea.")
    assert given.text == "No idea."
    own = Flow((Write(SelfRAGWriter(PROMPTING, Decoding(mode="never"))),))
    assert rag().generate("Q", flow=own).citations == ()
