"""One intrinsic, many judges: reflection tokens, tokens with words, words alone, adapter and prompt, by name."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
from answering import scoring
from written import LIMITS, PROMPTING, Searches, passages, scripted

from retrieval.passage import Passage
from selfrag.api import SelfRAG
from selfrag.decoding.requests import Failed
from selfrag.errors import UserError
from selfrag.intrinsics import Answerability, Library, QueryRewrite
from selfrag.intrinsics.execution.tokens import Weighing
from selfrag.intrinsics.flows import named
from selfrag.intrinsics.flows.progress import SelfRAGWriter
from selfrag.intrinsics.model_library import split_name
from selfrag.intrinsics.reflectors import IntrinsicReflector, adapters_of, on_engine
from selfrag.reflection.judgment import Source

D1, D2 = passages("d1", "d2")
ASKED = [{"role": "user", "content": "Q"}]
ANSWERED = [*ASKED, {"role": "assistant", "content": "It is. It was."}]
TREE: dict[str, Any] = {
    "[Retrieval]<d1>": "{~isrel .2 .8}x",
    "[Retrieval]<d2>": "{~isrel .9 .1}x",
    "[Retrieval]<d1>[Relevant]It is.": "{~issup .7 .2 .1}x",
    "[Retrieval]<d2>[Relevant]It is.": "{~issup .1 .2 .7}x",
    "[Retrieval]<d1>[Relevant]It was.": "{~issup .1 .1 .8}x",
    "[Retrieval]<d2>[Relevant]It was.": "{~issup .2 .1 .7}x",
    "[Retrieval]<d1>[Relevant]It is. It was.": "{~issup .5 .3 .2}x",
    "[Retrieval]<d2>[Relevant]It is. It was.": "{~issup .1 .1 .8}x",
}


def library(tree: Any = TREE, **more: Any) -> Library:
    engine = scripted({"Q": tree})
    executor: Any = SimpleNamespace(engine=engine, run=scoring(answerable=0.4, unanswerable=0.6).run)
    return Library(executor, prompting=PROMPTING, **more)


def test_a_question_is_as_answerable_as_its_most_relevant_passage_is_relevant() -> None:
    result = library().get(Answerability)(ASKED, [D1, D2])
    assert (result.answerable, result.execution) == (pytest.approx(0.9), "tokens")
    assert result.judgment is not None
    assert (result.judgment.source, result.judgment.evidence) == (Source.TOKEN, "d2")
    assert result.as_dict()["execution"] == "tokens"


def test_each_passage_has_its_own_relevance_and_an_empty_one_has_none() -> None:
    found = library()["context_relevance"](ASKED, [D1, Passage("e", " "), D2]).passages
    assert [one.relevance for one in found] == [pytest.approx(0.2), None, pytest.approx(0.9)]


def test_a_sentence_is_as_faithful_as_its_best_passage_says() -> None:
    result = library()["hallucination_detection"](ANSWERED, [D1, D2])
    assert [(s.label, s.judgment.evidence) for s in result.sentences] == [("faithful", "d1"), ("unfaithful", "d2")]
    assert [s.faithfulness for s in result.sentences] == [pytest.approx(0.8), pytest.approx(0.25)]
    assert result.is_hallucinated


def test_a_supported_sentence_cites_the_sentence_that_supports_it() -> None:
    result = library()["citation_generation.tokens"](ANSWERED, [D1, D2])
    assert [s.is_cited for s in result.sentences] == [True, False]
    assert [record["citation_doc_id"] for record in result.records] == ["d1"]
    assert result.records[0]["citation_text"] == D1.text


def test_a_requirement_of_tokens_is_a_hard_constraint() -> None:
    check = library()["requirement_check.tokens"]
    wanted = "issup=Fully supported,Partially supported"
    assert check(ANSWERED, [D1, D2], requirement=wanted).met == pytest.approx(0.8)
    assert check(ASKED, [D1, D2], requirement="isrel=Relevant").met == pytest.approx(0.9)
    for requirement, message in (
        ("be polite", "reflection tokens check a constraint such as"),
        ("issup=polite", "unknown issup label 'polite'"),
        ("retrieve=Retrieval", "can be constrained"),
    ):
        with pytest.raises(UserError, match=message):
            check(ANSWERED, [D1], requirement=requirement)
    with pytest.raises(UserError, match="judges a reply"):
        check(ASKED, [D1], requirement="issup=Fully supported")


def test_a_passage_that_could_not_be_judged_is_told() -> None:
    judge = library({**TREE, "[Retrieval]<d2>": Failed("too long")}).get(Answerability)
    (result,) = judge.batch([judge.state(ASKED, [D1, D2])])
    assert result.failure == "too long"
    assert result.answerable == pytest.approx(0.2)


def test_words_judge_without_a_model() -> None:
    passage = Passage("tea", "Green tea is brewed at 80 degrees.")
    turns = [{"role": "user", "content": "How hot is green tea brewed?"}]
    bare: Any = SimpleNamespace()
    for name, share in (("overlap", 0.75), ("bm25", None)):
        result = Library(bare)[f"answerability.{name}"](turns, [passage, D1])
        assert result.execution == name
        assert result.judgment.source is Source.WORDS
        assert result.judgment.evidence == "tea"
        assert share is None or result.answerable == pytest.approx(share)
    turns.append({"role": "assistant", "content": "At 80 degrees. At noon."})
    faithful = Library(bare)["hallucination_detection.overlap"](turns, [passage])
    assert [s.faithfulness for s in faithful.sentences] == [1.0, 0.0]


def test_tokens_and_words_are_weighed_by_what_was_learned(tmp_path: Any) -> None:
    file = tmp_path / "combined.json"
    Weighing("answerability", "0", -1.0, {"token": 0.0, "overlap": 2.0}).write(file)
    judge = library(weights={"answerability": file})["answerability.combined"]
    result = judge(ASKED, [Passage("d1", "x", "Title of d1")])
    assert result.execution == "combined"
    assert result.judgment.source is Source.COMBINED
    assert result.answerable == pytest.approx(1 / (1 + 2.718281828))  # no word in common
    for text in ("[]", "{}", json.dumps({"format": 1, "intrinsic": "a", "model": "m", "bias": 0, "weights": {}})):
        file.write_text(text)
        with pytest.raises(UserError, match=r"combined\.json cannot be used"):
            library(weights={"answerability": file})["answerability.combined"]


def test_the_default_follows_what_the_model_has() -> None:
    assert library(adapters={"answerability": "a"}).get(Answerability).execution == "tokens"
    assert library(executions={"answerability": "overlap"}).get(Answerability).execution == "overlap"
    assert library().get(QueryRewrite).execution == "prompt"
    assert library()["hallucination_detection"].execution == "tokens"
    assert library()["citation_generation"].execution == "overlap"
    assert library(dialect="granite-3.2").get(Answerability).execution == "prompt"
    assert library()["answerability.prompt"](ASKED, [D1]).answerable == pytest.approx(0.4)
    engine = scripted({"Q": TREE}, limits=replace(LIMITS, adapters=frozenset("ab"), activated=frozenset("a")))
    executor: Any = SimpleNamespace(engine=engine)
    adapted = Library(executor, {"answerability": "a", "query_rewrite": "b"}, prompting=PROMPTING)
    assert adapted["answerability.adapter"].execution == "activated adapter"
    assert adapted["query_rewrite"].execution == "adapter"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("answerability.magic", "unknown execution 'magic'; known: tokens, combined, adapter"),
        ("answers.tokens", "unknown intrinsic 'answers'"),
        ("query_rewrite.tokens", "query_rewrite cannot be judged by tokens"),
        ("answerability.combined", "no weights were learned for this model"),
        ("answerability.adapter", "the model has no adapter for it"),
    ],
)
def test_what_a_model_does_not_have_is_refused(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        library()[name]
    with pytest.raises(UserError, match="has no reflection tokens"):
        Library(scoring())["answerability.tokens"]


def test_the_names_serve_guardrails_score_terms_and_flows() -> None:
    tree = TREE | {
        "": "{~retrieve .9 .1 0}x",
        "[Retrieval]<d1>": "{isrel .2 .8}One.{isuse 0 0 1 0 0}</s>",
        "[Retrieval]<d2>": "{isrel .9 .1}Two.{issup .9 .1 0}{isuse 0 0 1 0 0}</s>",
        "[No Retrieval]": "Own.{isuse 0 0 1 0 0}</s>",
    }
    engine = scripted({"Q": tree})
    names = ["answerability.tokens", "hallucination_detection.overlap"]
    reflectors = on_engine(engine, tiny.byte_level_tokenizer(reflection=True), names, prompting=PROMPTING)
    rag = SelfRAG(PROMPTING, engine, Searches(lambda query: passages("d1", "d2")), reflectors=reflectors)
    answer = rag.generate("Q", gates="answerability.tokens<0.5:abstain", reflectors="hallucination_detection.overlap")
    assert answer.text == "Two."
    assert answer.segments[0].joined["hallucination_detection.overlap"].source is Source.WORDS
    refused = rag.generate("Q", gates="answerability.tokens<0.99:abstain")
    assert refused.abstained
    flow = named("ad", SelfRAGWriter(PROMPTING, rag.defaults), answerability=reflectors[0], k=2)
    assert rag.generate("Q", flow=flow).text == "Two."


def test_an_intrinsic_of_a_model_with_tokens_loads_no_adapter_it_does_not_need() -> None:
    assert adapters_of(["hallucination_detection", "answerability.tokens"], "demo") == {}
    assert adapters_of({"answerability": "overlap", "context_relevance": None}, "demo") == {}
    assert split_name("Context-Relevance.bm25") == ("context_relevance", "bm25")
    assert IntrinsicReflector(library()["context_relevance"]).cost == 1
