"""The paper's flows, composed ones, and conversations of several turns: who sees the rewrite, and who does not."""

import json

import pytest
from answering import Answering, failing, judging, scoring, writing
from intrinsic_rows import turns
from json_files import table
from refusals import refused
from scripted import ScriptedEngine
from swept import sweep
from written import PROMPTING, RESPONSE, Searches, passages, reply, scripted

from retrieval.passage import Passage
from selfrag.api import SelfRAG
from selfrag.common.errors import UserError
from selfrag.decoding.policy import Decoding
from selfrag.intrinsics import (
    Answerability,
    CitationGeneration,
    ContextRelevance,
    HallucinationDetection,
    QueryRewrite,
    Uncertainty,
    flows,
)
from selfrag.intrinsics.flows import (
    CertaintyFilter,
    ChatWriter,
    Cite,
    Flow,
    HallucinationFilter,
    RelevanceFilter,
    Search,
    SearchAgain,
    SelfRAGWriter,
    Take,
    Write,
    named_flow,
    run,
)
from selfrag.judges.wire import Completion
from selfrag.reflection.weights import Weights

ASKED, REWRITE = "and for Microsoft?", "Who founded Microsoft?"
TALK = turns("Who founded Apple?", "Steve Jobs and others.", ASKED)
MICROSOFT = Passage(
    "ms", "Microsoft was founded by Bill Gates and Paul Allen. It is big.", "Microsoft"
)
BOTH, TOGETHER = f"{ASKED} {REWRITE}", f"Who founded Apple? {ASKED}"
KNOWN = {
    ASKED: passages("d1"),
    REWRITE: (MICROSOFT,),
    BOTH: (MICROSOFT,),
    TOGETHER: passages("d1"),
}
PLAIN = SelfRAGWriter(PROMPTING)
WRITER = SelfRAGWriter(PROMPTING, Decoding(mode="always"))
NEVER = SelfRAGWriter(PROMPTING, Decoding(mode="never"))


def engine():
    """Wants evidence, and writes one answer after any passage."""

    def model(request):
        segment = "[Relevant]Found.[Fully supported][Utility:5]</s>"
        return reply("{~retrieve .9 .1 0}x" if request.max_tokens == 1 else segment)

    return ScriptedEngine(model, 0, limits=scripted({}).limits)


def rewriter(text=f'{{"rewritten_question": "{REWRITE}"}}'):
    return QueryRewrite.on(writing(text))


def gate(probability):
    return Answerability.on(
        scoring(answerable=probability, unanswerable=1 - probability)
    )


def go(flow, conversation=TALK, search=KNOWN):
    """The answer, the engine that wrote it, and what was searched for."""
    searches, serving = Searches(search), engine()
    (answer,) = run(flow, [conversation], serving, searches)
    if isinstance(answer, UserError):
        raise answer
    return answer, serving, searches.queries


def prompts(serving):
    """Text of every prompt, without control ids."""
    return [
        "".join(chr(i - 100) for i in request.prompt_ids if i >= 100)
        for request in serving.requests
    ]


def found_ids(answer):
    return [passage.id for passage in answer.citations]


@pytest.mark.parametrize("name", ["none", "qr", "ad", "qr+ad"])
def test_the_papers_flows(name):
    judge, rewrites, gated = gate(0.9), "qr" in name, "ad" in name
    flow = named_flow(name, WRITER, rewrite=rewriter(), answerability=judge)
    answer, serving, queries = go(flow)
    evidence = "ms" if rewrites else "d1"
    assert queries == [REWRITE if rewrites else ASKED]  # section 7.1
    assert found_ids(answer) == [evidence]
    # the gate sees the original, and the passages of the search; so does the writer
    states = [request.state for request in judge.by.executor.requests]
    assert len(states) == gated
    for state in states:
        assert [m.content for m in state.messages] == [t["content"] for t in TALK]
        assert [p.id for p in state.passages] == [evidence]
    for text in prompts(serving):
        assert REWRITE not in text
        assert text.split(RESPONSE)[0].endswith("Who founded Apple?\n\n")
    assert answer.question == ASKED
    steps = ["rewrite"] * rewrites + ["search"] + ["answerability"] * gated + ["write"]
    assert [step.name for step in answer.steps] == steps
    assert json.dumps(answer.as_dict())
    assert (answer.usage.searches, answer.usage.requests) == (1, len(serving.requests))


def test_an_unanswerable_question_ends_with_the_fixed_text():
    unanswerable = named_flow("ad", PLAIN, answerability=gate(0.3))
    answer, serving, _ = go(unanswerable)
    assert (answer.text, answer.segments) == (Decoding.abstention, ())
    assert answer.abstained
    assert serving.requests == []
    assert answer.steps[-1].outcome == "answerable 0.30"
    assert answer.rescore().text == answer.text
    broken = Answerability.on(failing("no memory"))
    for judge, threshold in ((gate(0.3), 0.2), (broken, 0.5)):
        flow = named_flow("ad", PLAIN, answerability=judge, threshold=threshold)
        assert go(flow)[0].text == "Found."
    assert go(unanswerable, "Q", lambda query: ())[0].abstained


@pytest.mark.parametrize(
    "first, later, rewrites, queries, evidence, outcome",
    [
        (0.9, None, True, [ASKED], "d1", "not needed"),
        (0.2, 0.8, True, [ASKED, REWRITE], "ms", "answerable 0.80 after 1"),
        (0.2, 0.1, False, [ASKED, TOGETHER], "d1", "answerable 0.20 after 1"),
        (None, 0.3, False, [ASKED, TOGETHER], "ms", "answerable 0.30"),
    ],
)
def test_an_unanswerable_question_is_searched_for_with_other_words(
    first, later, rewrites, queries, evidence, outcome
):
    """The first search finds `d1` or nothing, the others `ms`; how answerable each makes the question is given."""

    def judge(request, _):
        p = {"d1": first, "ms": later}[request.state.passages[0].id] or 0.0
        return {"answerable": p, "unanswerable": 1 - p}

    again = SearchAgain(
        Answerability.on(judging(judge)), rewriter() if rewrites else None
    )
    known = {ASKED: passages("d1") if first else ()}
    answer, _, searched = go(
        Flow((Search(), again, Write(WRITER))),
        search=lambda query: known.get(query, (MICROSOFT,)),
    )
    assert searched == queries
    assert found_ids(answer) == [evidence]
    assert answer.steps[1].outcome.startswith(outcome)
    assert answer.usage.searches == len(queries)


def test_a_flow_by_name_searches_again_and_then_gives_up():
    flow = named_flow(
        "QR + again + ad", WRITER, rewrite=rewriter(), answerability=gate(0.3)
    )
    assert (flow.name, len(flow.stages)) == ("qr+again+ad", 5)
    answer, _, queries = go(flow)
    assert queries == [REWRITE, TOGETHER]
    assert answer.abstained


@pytest.mark.parametrize(
    "scope, last, turns",
    [("retrieval", ASKED, 3), ("conversation", REWRITE, 3), ("alone", REWRITE, 1)],
)
def test_what_a_rewrite_changes_is_a_parameter(scope, last, turns):
    judge = gate(0.9)
    given = {"rewrite": rewriter(), "answerability": judge, "rewrite_scope": scope}
    answer, serving, queries = go(named_flow("qr+ad", WRITER, **given))
    assert (queries, answer.question) == ([REWRITE], ASKED)
    messages = judge.by.executor.requests[0].state.messages
    assert (messages[-1].content, len(messages)) == (last, turns)
    for text in prompts(serving):
        assert f"### Instruction:\n{last}" in text
        assert ("Apple" in text) == (turns > 1)


def test_what_is_searched_for():
    answer, _, queries = go(
        named_flow("qr", PLAIN, rewrite=rewriter("I cannot do that"))
    )
    assert queries == [ASKED]
    assert answer.steps[0].outcome.startswith("kept as asked: ")
    # the model decides
    assert go(named_flow("qr", NEVER, rewrite=rewriter(), k=None))[2] == []
    assert go(named_flow("qr", PLAIN, rewrite=rewriter(), k=None))[2] == [REWRITE]
    assert go(named_flow("qr-both", PLAIN, rewrite=rewriter(), k=None))[2] == [BOTH]


def test_flows_compose():
    relevance = ContextRelevance.on(scoring(relevant=0.1, irrelevant=0.9))
    first = Flow((Search(3), RelevanceFilter(relevance)), "filtered")
    flow = first + Flow((Write(WRITER),), "write")
    assert flow.name == "filtered+write"
    answer, _, queries = go(flow)
    # nothing relevant, no second search
    assert (answer.citations, queries) == (
        (),
        [ASKED],
    )
    outcomes = [f"1 for {ASKED}", "0 of 1 kept", "abstained: nothing found"]
    assert [step.outcome for step in answer.steps] == outcomes
    with refused("writes no answer"):
        go(first)


def test_certain_samples_of_a_beam():
    tree = {
        "": "{~retrieve .9 .1 0}x",
        "[Retrieval]<d1>": ("[Relevant]Close.{issup .1 .1 .8}</s>", 0.5),
        "[Retrieval]<d2>": ("[Relevant]Sure.{issup .9 .1 0}</s>", 0.5),
    }
    sure = {"Close.": "8"}
    uq = Uncertainty.on(judging(lambda r, _: {sure.get(r.state.response, "3"): 1.0}))
    write = Write(SelfRAGWriter(PROMPTING, Decoding(max_segments=1)), samples=3)
    larger = Write(ChatWriter(writing("Larger.")))
    for more, text in (
        ((), "Sure."),
        ((CertaintyFilter(uq),), "Close."),
        ((CertaintyFilter(uq, threshold=0.9),), Decoding.abstention),
        ((CertaintyFilter(uq, threshold=0.9, text="Unsure."),), "Unsure."),
        ((CertaintyFilter(uq, threshold=0.9, otherwise=larger),), "Larger."),
        ((CertaintyFilter(uq, otherwise=larger),), "Close."),
    ):
        searches = Searches(lambda query: passages("d1", "d2"))
        (answer,) = run(Flow((write, *more)), ["Q"], scripted({"Q": tree}), searches)
        assert answer.text == text


def test_rescoring_an_answer_that_a_flow_chose_is_not_exact():
    """Stages after the writing have not seen what other settings choose: they may have rejected it already."""
    certainty = Uncertainty.on(scoring(**{"8": 1.0}))
    write = (Search(1), Write(WRITER, samples=2))
    cite = Cite(CitationGeneration.on(failing("no memory")))
    assert go(Flow(write))[0].rescore().exact
    chosen = go(Flow((*write, CertaintyFilter(certainty))))[0]
    assert not chosen.rescore().exact
    assert not sweep([chosen], [Weights()])[1].any()
    for stage in (CertaintyFilter(certainty, threshold=0.95), cite):
        assert not go(Flow((*write, stage)))[0].rescore().exact
    unanswerable = go(named_flow("ad", PLAIN, answerability=gate(0.3)))[0]
    assert unanswerable.rescore(
        threshold=0.9
    ).exact  # nothing was written: the gate would say the same


def test_any_chat_model_writes_and_is_checked():
    texts = iter(["Bill Gates.", "Bill Gates.", "Paul Allen."])
    executor = Answering(lambda request: Completion(next(texts), "stop"))
    several = Write(ChatWriter(executor, temperature=0.7), samples=3)
    answer, _, _ = go(Flow((Search(1), several)), REWRITE)
    assert (answer.text, answer.steps[-1].outcome) == ("Bill Gates.", "2 written")
    assert answer.trace.decisions[0].passages == (MICROSOFT,)
    (turn,) = executor.requests[0].prompt.messages
    assert "founded by Bill Gates" in turn.content
    unfaithful = HallucinationFilter(HallucinationDetection.on(scoring(unfaithful=1.0)))
    elvis = Write(ChatWriter(writing("Elvis.")))
    assert go(Flow((Search(1), elvis, unfaithful)), REWRITE)[0].abstained
    with refused("temperature"):
        go(Flow((Write(ChatWriter(executor), samples=2),)))
    with refused("no memory"):
        go(Flow((Write(ChatWriter(failing("no memory"))),)))


def test_citing_what_another_model_wrote():
    def found(_, slot):
        return {"01" if "Gates" in slot.site.text else "00": 0.9}

    cite = Cite(CitationGeneration.on(judging(found, remainder=0.01)))
    text = "  Bill Gates did.  I like him. "
    wrote = wrote_of(text)
    flow = Flow((Take(), Search(2, by="answer"), cite))
    answer, _, queries = go(flow, wrote, lambda query: (MICROSOFT,))
    assert queries == [f"{REWRITE} Bill Gates did.", f"{REWRITE} I like him."]
    cited = [(segment.text, segment.citation) for segment in answer.segments]
    assert cited == [("Bill Gates did.", MICROSOFT), ("I like him.", None)]
    assert all(answer.text[s.start : s.end] == s.text for s in answer.segments)
    assert answer.cited_text().startswith("Bill Gates did. [1]")
    assert wrote == wrote_of(text)
    assert go(Flow((Take(), cite)), wrote)[0].steps[-1].outcome == "no passages to cite"
    with refused("assistant turn"):
        go(Flow((Take(), cite)))


def wrote_of(text):
    return turns(REWRITE, text)


def test_a_search_that_fails_after_the_writing_loses_no_answer():
    def search(query):
        if query.endswith("him."):
            raise ConnectionError("no route")
        return (MICROSOFT,)

    text = "Bill Gates did. I like him."
    flow = Flow((Take(), Search(2, by="answer")))
    answer, _, _ = go(flow, wrote_of(text), search)
    failed = "search failed: ConnectionError: no route"
    assert answer.text == text
    assert answer.steps[-1].outcome.startswith("1 for ")
    assert answer.steps[-1].outcome.endswith(f"; {failed}")
    with refused(f"^{failed}$"):
        go(Flow((Search(2), Take())), f"{REWRITE} him.", search)


def test_one_conversation_that_fails_costs_no_other():
    search = Searches(lambda query: passages("d1"))
    asked = [TALK, wrote_of("A"), "Q"]
    one, bad, other = run(Flow((Write(PLAIN),)), asked, engine(), search)
    assert one.text == other.text == "Found."
    assert "must end with the user's turn" in str(bad)


SENSELESS = """
named_flow("qa", PLAIN) | unknown flow 'qa'; known: none, and qr, qr-both, again, ad joined by
named_flow("qr", PLAIN) | needs rewrite=
named_flow("ad", PLAIN) | needs answerability=
named_flow("ad", PLAIN, answerability=gate(1), k=None) | k=5
Rewrite(gate(0.5)) | Rewrite needs a judge of rewrite, and answerability judges
Rewrite(rewriter(), "all") | rewrite_scope='all'
AnswerabilityGate(rewriter()) | AnswerabilityGate needs
CertaintyFilter(gate(0.5)) | CertaintyFilter needs
Search(0) | k=0
Search(1, by="luck") | by='luck'
Write(PLAIN, samples=0) | samples=0
"""


@pytest.mark.parametrize("made, message", table(SENSELESS))
def test_what_makes_no_sense_is_refused_when_it_is_made(made, message):
    with refused(message):
        eval(made, globals(), vars(flows))


# --- SelfRAG.generate on conversations ----------------------------------------------------------------------------


def rag(*reflectors):
    return SelfRAG(PROMPTING, engine(), Searches(KNOWN), judges=reflectors)


def test_a_follow_up_searches_with_the_rewrite_if_there_is_a_rewriter():
    before = json.dumps(TALK)
    model = rag(rewriter())
    answer = model.generate(TALK)
    assert (found_ids(answer), model.retriever.queries) == (["ms"], [BOTH])
    assert "Steve Jobs and others." in prompts(model.engine)[0]
    steps = [(step.name, step.outcome) for step in answer.steps]
    assert steps == [("rewrite", REWRITE), ("write", "1 written")]
    assert json.dumps(TALK) == before
    assert answer.rescore() == answer
    assert found_ids(rag().generate(TALK)) == ["d1"]
    *many, empty = rag(rewriter()).generate([TALK, ASKED, []])
    assert [*map(found_ids, many)] == [["ms"], ["d1"]]
    assert empty.error is not None


def test_flows_by_name_with_the_reflectors_at_hand():
    assert rag(rewriter(), gate(0.1)).generate(TALK, flow="qr+ad").abstained
    with refused("needs rewrite="):
        rag().generate(TALK, flow="qr")
    given = {"flow": "ad", "evidence": passages("d1"), "abstention": "No idea."}
    assert rag(gate(0.1)).generate("Q", **given).text == "No idea."
    assert rag().generate("Q", flow=Flow((Write(NEVER),))).citations == ()
