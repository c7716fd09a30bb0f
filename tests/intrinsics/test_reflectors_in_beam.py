"""Intrinsics, functions and reflection tokens as reflectors of the beam, on its engine and beside it."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from answering import Answering, scoring, writing
from written import PROMPTING, TWO_WAYS, Searches, passages, run, scripted

from retrieval.search import RerankedRetriever
from selfrag.api import SelfRAG
from selfrag.decoding.policy import Decoding
from selfrag.errors import EngineError, UserError
from selfrag.intrinsics import (
    Answerability,
    CitationGeneration,
    ContextRelevance,
    HallucinationDetection,
    QueryRewrite,
    Uncertainty,
)
from selfrag.intrinsics.contract import Completion, Cost, Failed, Message, Request
from selfrag.intrinsics.execution.tokens import RelevanceScorer, TokenReflector
from selfrag.intrinsics.labels import FAITHFULNESS
from selfrag.intrinsics.reflectors import FunctionReflector, IntrinsicReflector, critic
from selfrag.reflection.judgment import Source
from selfrag.reflection.labels import ISSUP, ISUSE, Role
from selfrag.reflection.weights import Weights

TREE = TWO_WAYS | {
    "[Retrieval]<d1>": ("[Relevant]Close.{issup .1 .1 .8}{isuse 0 0 1 0 0}</s>", 0.5),
    "[Retrieval]<d2>": ("[Relevant]Sure. It is.{issup .9 .1 0}{isuse 0 0 1 0 0}</s>", 0.5),
    # where a critic with the same tokens looks
    "[Retrieval]<d1>[Relevant]Close.": "{~issup .1 .1 .8}x",
    "[Retrieval]<d2>[Relevant]Sure. It is.": "{~issup .9 .1 0}x",
}


def rag(*reflectors: Any, questions: tuple[str, ...] = ("Q",), tree: Any = TREE) -> SelfRAG:
    engine = scripted(dict.fromkeys(questions, tree))
    return SelfRAG(PROMPTING, engine, Searches(lambda query: passages("d1", "d2")), reflectors=reflectors)


def by_passage(**faithful: float) -> Answering:
    """Faithfulness by the id of the only passage."""

    def answer(request: Request) -> Completion:
        (passage,) = request.state.passages
        yes = faithful[passage.id]
        row = {"faithful": yes, "unfaithful": 1 - yes}
        scores = [[row.get(surface.strip(), 0.0) for surface in slot.surfaces] for slot in request.slots]
        return Completion(scores=tuple(tuple(math.log(p) if p else -math.inf for p in s) for s in scores))

    return Answering(answer)


def test_reflection_tokens_as_a_reflector_change_nothing_but_the_question_who_asked() -> None:
    tokens = run(TREE, "d1", "d2").answer
    reflector = TokenReflector(PROMPTING, ISSUP)
    model = rag(reflector)
    judged = model.generate("Q", reflectors="token_issup=issup")
    mine, theirs = judged.trace.as_dict(), tokens.trace.as_dict()
    assert (mine["decoding"].pop("reflectors"), mine["decoding"].pop("survivors")) == (["token_issup=issup"], [8, 4, 2])
    assert mine.pop("costs") == {"token_issup": Cost.ONE_TOKEN}
    assert json.dumps(mine) == json.dumps(theirs)
    assert judged.usage.requests == tokens.usage.requests + 2
    with pytest.raises(UserError, match="no critique"):
        TokenReflector(PROMPTING, FAITHFULNESS)


def test_utility_of_an_answer_that_somebody_else_wrote() -> None:
    from selfrag.engines.base import pump
    from selfrag.intrinsics.state import read_state

    engine = scripted(
        {
            "Q": {
                "[Retrieval]<d1>[Relevant]Hm.[Fully supported]": "{~isuse 0 0 0 0 1}x",
                "[No Retrieval]Hm.": "{~isuse 1 0 0 0 0}x",
            }
        }
    )
    turns = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "Hm."}]
    states = [read_state(turns, passages("d1")), read_state(turns)]
    found = pump(engine, TokenReflector(PROMPTING, ISUSE).reflect(states))
    assert [one.judgments[0].label for one in found] == ["5", "1"]
    assert found[0].judgments[0].score == pytest.approx(1.0)


def test_hallucination_detection_stands_in_for_issup_on_another_model() -> None:
    executor = by_passage(d1=0.9, d2=0.2)
    answer = rag(IntrinsicReflector(HallucinationDetection(executor))).generate(
        "Q", reflectors="hallucination_detection=issup", weights=Weights(issup=2)
    )
    assert answer.text == "Close."
    (judgment,) = [s.judgments[Role.SUPPORT] for s in answer.segments]
    assert judgment is not None
    assert (judgment.label, judgment.source, judgment.evidence) == ("faithful", Source.JUDGE, "d1")
    assert judgment.site == "segment 1, passage d1"
    turns = [request.state.messages for request in executor.requests]
    assert turns == [(Message("user", "Q"), Message("assistant", text)) for text in ("Close.", "Sure. It is.")]
    d2 = next(node for node in answer.trace.nodes if node.text == "Sure. It is.")
    assert len(d2.places["hallucination_detection"]) == 2  # one a sentence
    assert answer.rescore(Weights(issup=0, isrel=0)).exact
    read = type(answer.trace).from_json(answer.trace.to_json())
    assert read.as_dict() == answer.trace.as_dict()
    assert read.nodes == answer.trace.nodes


def test_citations_count_by_length_and_certainty_needs_no_passage() -> None:
    def cite(request: Request) -> Completion:
        rows = []
        for slot in request.slots:
            none = 0.9 if slot.site.text == "It is." else 0.1
            rest = (1 - none) / (len(slot.surfaces) - 1)
            rows.append(tuple(math.log(none if i == 0 else rest) for i in range(len(slot.surfaces))))
        return Completion(scores=tuple(rows))

    cg = IntrinsicReflector(CitationGeneration(Answering(cite)))
    uq = IntrinsicReflector(Uncertainty(scoring(**{"7": 1.0})))
    answer = rag(cg, uq).generate(
        "Q", reflectors=["citation_generation", "uncertainty"], weights=Weights(joined={"uncertainty": 0})
    )
    node = next(node for node in answer.trace.nodes if node.text == "Sure. It is.")
    cited = node.joined["citation_generation"]
    assert cited is not None
    assert cited.score == pytest.approx((0.9 * 5 + 0.1 * 6) / 11)
    certainty = node.joined["uncertainty"]
    assert certainty is not None
    assert certainty.score == pytest.approx(0.75)
    own = rag(cg, uq).generate("Q", mode="never", reflectors=["citation_generation", "uncertainty"])
    (only,) = own.trace.nodes
    assert only.joined["citation_generation"] is None
    assert only.joined["uncertainty"] is not None


def test_context_relevance_is_asked_once_a_passage() -> None:
    executor = Answering(scoring(relevant=0.25, irrelevant=0.75).answer)
    answer = rag(IntrinsicReflector(ContextRelevance(executor))).generate(
        "Q", reflectors="context_relevance=isrel", gates="context_relevance<0.2:drop"
    )
    assert len(executor.requests) == 2
    assert answer.citations == ()  # judged irrelevant
    assert answer.trace.nodes[0].judgments[Role.RELEVANCE].score == pytest.approx(0.25)  # type: ignore[union-attr]


def test_only_the_segment_counts_where_the_answer_before_it_is_in_sight() -> None:
    tree = {
        "": "{~retrieve .9 .1 0}x",
        "[Retrieval]<d1>": "[Relevant]One.[Fully supported]{retrieve .1 .1 .8}",
        "[Retrieval]<d1>[Relevant]One.[Fully supported][Continue to Use Evidence]": "Two.{isuse 0 0 0 0 1}</s>",
    }

    def by_sentence(request: Request) -> Completion:
        rows = [[float("One" in slot.site.text) + 1e-9] + [0.1] * 3 for slot in request.slots]
        return Completion(scores=tuple(tuple(math.log(p / (sum(row) + 1)) for p in row) for row in rows))

    executor = Answering(by_sentence)
    reflector = IntrinsicReflector(HallucinationDetection(executor), context="answer")
    model = rag(reflector, tree=tree)
    model.retriever = Searches(lambda query: passages("d1"))
    answer = model.generate("Q", reflectors="hallucination_detection")
    assert executor.requests[-1].state.response == "One. Two."
    assert [s.text for s in executor.requests[-1].sites] == ["One.", "Two."]
    one, two = (node.joined["hallucination_detection"] for node in answer.trace.nodes)
    assert one is not None
    assert two is not None
    assert one.probability("faithful") > 0.7
    assert two.probability("faithful") < 0.01
    assert answer.trace.nodes[1].places == {}


def test_a_function_is_a_reflector_and_what_fails_or_makes_no_sense_is_undefined() -> None:
    broken = IntrinsicReflector(HallucinationDetection(Answering(lambda request: Failed("no memory"))))
    answer = rag(broken).generate("Q", reflectors="hallucination_detection=issup")
    assert answer.segments[0].judgments[Role.SUPPORT] is None
    plain = run(TREE, "d1", "d2", weights=Weights(issup=0)).answer
    assert answer.text == plain.text
    function = FunctionReflector(
        "nli", ISSUP, lambda states: [[0, 0, 3.0] if "Sure" in s.response else [2.0, 0, 0] for s in states]
    )
    answer = rag(function).generate("Q", reflectors="nli=issup")
    assert answer.text == "Close."
    assert answer.segments[0].judgments[Role.SUPPORT].source is Source.JUDGE  # type: ignore[union-attr]
    rows: list[Any] = [[1.0, 0, 0], [0.1, 0.2]]
    function = FunctionReflector("nli", ISSUP, lambda states: [rows[i] for i, _ in enumerate(states)])
    found = rag(function).generate("Q", reflectors="nli").trace.nodes
    assert [node.joined["nli"] is not None for node in found] == [False, True]  # the better one was asked about first

    def fails(states: object) -> Any:
        raise RuntimeError("boom")

    assert rag(FunctionReflector("nli", ISSUP, fails)).generate("Q", reflectors="nli").text == "Sure. It is."


def test_tiers_and_roles() -> None:
    executor = scoring()
    assert IntrinsicReflector(Answerability(executor)).cost is Cost.ONE_TOKEN
    assert IntrinsicReflector(Answerability(executor, adapter="ad")).cost is Cost.PREFILL
    assert IntrinsicReflector(QueryRewrite(writing("x"))).cost is Cost.GENERATED
    assert IntrinsicReflector(Answerability(executor), name="gate", cost=Cost.GENERATED).cost is Cost.GENERATED
    with pytest.raises(UserError, match="query_rewrite judges rewrite"):
        critic(IntrinsicReflector(QueryRewrite(executor)), None)
    with pytest.raises(UserError, match="two reflectors are called 'answerability'"):
        rag(IntrinsicReflector(Answerability(executor)), IntrinsicReflector(Answerability(executor))).generate("Q")
    with pytest.raises(UserError, match="no reflector 'gate'; there is answerability"):
        rag(IntrinsicReflector(Answerability(executor))).generate("Q", gates="gate<0.5:abstain")


@pytest.mark.engine
def test_on_the_decoders_own_engine_and_beside_it(tmp_path: Any) -> None:
    """A real model judges its own segments; the same numbers come from the intrinsic called by itself afterwards."""
    import tiny

    from selfrag.engines.transformers import TransformersConfig, TransformersEngine
    from selfrag.intrinsics.execution.engine import EngineExecutor
    from selfrag.prompting import Prompting
    from selfrag.reflection.vocabulary import Vocabulary
    from selfrag.tokenization import HFTextCodec

    path = tiny.save_llama(tmp_path / "llama", context=2048)
    tokenizer = tiny.byte_level_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    prompting = Prompting(HFTextCodec(tokenizer), Vocabulary.from_tokenizer(tokenizer))
    given = passages("d1", "d2")
    policy = Decoding(mode="always", max_segments=1, segment_tokens=12, reflectors="uncertainty")  # type: ignore[arg-type]
    answers = []
    engine = TransformersEngine.load(TransformersConfig(str(path)))
    other = TransformersEngine.load(TransformersConfig(str(path)))
    for where in (engine, other):
        judge = Uncertainty(EngineExecutor(where, tokenizer))
        model = SelfRAG(prompting, engine, reflectors=(IntrinsicReflector(judge),))
        answers.append(model.generate("Who?", evidence=given, decoding=policy))
    inside, beside = answers
    assert inside.text == beside.text
    assert inside.usage.requests > beside.usage.requests  # beside the engine is somebody else's account
    for node, twin in zip(inside.trace.nodes, beside.trace.nodes, strict=True):
        assert node.text == twin.text
        assert node.score == pytest.approx(twin.score, abs=1e-4)
        joined = node.joined["uncertainty"]
        assert joined is not None
        assert node.passage is not None
        turns = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": node.text.strip()}]
        assert joined.score == pytest.approx(judge(turns, [node.passage]).certainty, abs=1e-4)
    assert inside.rescore() == inside
    engine.close()
    other.close()


def test_relevance_tokens_rerank_what_a_retriever_finds() -> None:
    tree: dict[str, Any] = {"[Retrieval]<d1>": "{~isrel .2 .8}x", "[Retrieval]<d2>": "{~isrel .9 .1}x"}
    scorer = RelevanceScorer(PROMPTING, scripted({"Q": tree, "R": tree}))
    found = scorer(["Q", "R"], [passages("d1", "d2"), passages("d2")])
    assert [pytest.approx(scores) for scores in found] == [[0.2, 0.9], [0.9]]
    reranked = RerankedRetriever(Searches(lambda query: passages("d1", "d2")), scorer)
    assert [[passage.id for passage in one] for one in reranked(["Q"], 1)] == [["d2"]]

    tree["[Retrieval]<d1>"] = Failed("too long")
    with pytest.raises(EngineError, match="IsRel of a passage could not be read: too long"):
        scorer(["Q"], [passages("d1")])
