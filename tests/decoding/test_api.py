"""`SelfRAG`: options, evidence, one question or many, streams, errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from written import EOS, LIMITS, PROMPTING, Searches, passages, scripted

import selfrag
from retrieval.passage import Passage
from selfrag.api import SelfRAG
from selfrag.decoding.policy import Decoding
from selfrag.decoding.requests import Failed, Generate
from selfrag.engines.scripted import ScriptedEngine
from selfrag.errors import DecodingError, EngineError, UserError
from selfrag.reflection.weights import Weights

CITING = {
    "": "{~retrieve .9 .1 0}x",
    "[Retrieval]<d1>": "[Relevant]Found.[Fully supported][Utility:5]</s>",
    "[Retrieval]<d2>": "[Irrelevant]Other.</s>",
    "[No Retrieval]": "Own words.</s>",
}


def rag(*questions: str, tree: Any = CITING, **options: Any) -> SelfRAG:
    engine = scripted(dict.fromkeys(questions, tree))
    return SelfRAG(PROMPTING, engine, Searches(lambda query: passages("d1", "d2")), **options)


def test_a_list_gives_a_list_in_order() -> None:
    answers = rag("a", "b", "c").generate(["c", "a", "b"])
    assert [a.question for a in answers] == ["c", "a", "b"]
    assert rag("a").generate(("a",))[0].text == "Found."
    assert rag().generate([]) == []
    assert rag().generate([], evidence=[]) == []


def test_options_by_name_change_the_defaults() -> None:
    assert rag("Q").generate("Q", mode="never").text == "Own words."
    assert rag("Q", defaults=Decoding(mode="never")).generate("Q").text == "Own words."
    assert rag("Q", defaults=Decoding(mode="never")).generate("Q", mode="always").text == "Found."
    assert rag("Q").generate("Q", decoding=Decoding(mode="never"), beam=1).trace.decoding == Decoding(
        mode="never", beam=1
    )
    assert rag("Q").generate("Q", weights=Weights(isrel=-5)).text == "Other."


@pytest.mark.parametrize("call", ["generate", "stream", "choose"])
def test_an_unknown_option_is_refused_at_once_with_those_like_it(call: str) -> None:
    arguments = ("Q", ["A", "B"]) if call == "choose" else ("Q",)
    with pytest.raises(UserError, match=r"unknown setting 'treshold'; did you mean threshold\? All are in"):
        getattr(rag("Q"), call)(*arguments, treshold=0.1)
    with pytest.raises(UserError, match="threshold=3"):
        getattr(rag("Q"), call)(*arguments, threshold=3)
    with pytest.raises(UserError, match="decoding='paper'"):
        getattr(rag("Q"), call)(*arguments, decoding="paper")


def test_evidence_replaces_the_search() -> None:
    model = rag("a", "b", "c")
    assert [p.id for p in model.generate("a", evidence=passages("d1")).citations] == ["d1"]
    assert model.generate("a", evidence=[]).text == "Own words."
    assert model.generate("a", evidence=iter(passages("d1"))).text == "Found."
    assert isinstance(model.retriever, Searches)
    assert model.retriever.queries == []
    answers = model.generate(["a", "b", "c"], evidence=[passages("d1"), [], None])
    assert [a.text for a in answers] == ["Found.", "Own words.", "Found."]
    assert model.retriever.queries == ["c"]


@pytest.mark.parametrize(
    ("question", "evidence"),
    [
        ("a", "text"),
        ("a", passages("d1")[0]),
        ("a", 7),
        ("a", ["text"]),
        ("a", [passages("d1")]),
        (["a", "b"], passages("d1", "d2")),
        (["a", "b"], [passages("d1")]),
        (["a", "b"], 7),
        (["a"], [["text"]]),
        (["a"], [[{"id": "d1", "text": "x"}]]),
    ],
)
def test_wrong_evidence_is_one_line(question: Any, evidence: Any) -> None:
    with pytest.raises(UserError, match=r"^evidence "):
        rag("a", "b").generate(question, evidence=evidence)


@pytest.mark.parametrize("question", [None, 7, {"a"}])
def test_a_question_is_text_or_a_list(question: Any) -> None:
    with pytest.raises(UserError, match="the question must be text or a list of texts"):
        rag().generate(question)


@pytest.mark.parametrize("question", ["", "  \n\t", "　"])
def test_an_empty_question_is_one_line(question: str) -> None:
    with pytest.raises(UserError, match=r"^the question is empty$"):
        rag().generate(question)


def test_errors_stay_with_their_question() -> None:
    answers = rag("a", "c").generate(["a", "", None, "c"])
    assert [a.error for a in answers] == [
        None,
        "the question is empty",
        "the question must be text, not NoneType",
        None,
    ]
    assert answers[1].text == ""
    assert answers[1].trace.nodes == ()
    assert str(answers[1]) == "error: the question is empty"
    assert [a.text for a in answers] == ["Found.", "", "", "Found."]


def test_the_error_of_a_single_question_keeps_its_type() -> None:
    def broken(request: Generate) -> Failed:
        return Failed("no memory")

    with pytest.raises(DecodingError, match="no memory"):
        SelfRAG(PROMPTING, ScriptedEngine(broken, EOS, limits=LIMITS)).generate("Q")


def test_a_closed_engine_says_so() -> None:
    with rag("Q") as model:
        assert model.generate("Q").text == "Found."
    with pytest.raises(EngineError, match="closed"):
        model.generate("Q")


def test_stream_gives_segments_and_then_the_answer() -> None:
    *segments, answer = rag("Q").stream("Q")
    assert isinstance(answer, selfrag.Answer)
    assert tuple(segments) == answer.segments
    *segments, answer = rag("Q").stream("Q", evidence=[])
    assert [s.text for s in segments] == ["Own words."]


@pytest.mark.parametrize("bad", ["\ud800", "a\udfffb"])
def test_lone_surrogates_never_make_an_answer_or_a_trace_unwritable(bad: str) -> None:
    def search(queries: Any, k: int) -> Any:
        return [[Passage(bad, f"Text of d1. {bad}", bad)] for _ in queries]

    engine = ScriptedEngine(lambda request: Failed("no"), EOS, limits=LIMITS)
    broken = SelfRAG(PROMPTING, engine, search)
    (answer,) = broken.generate([f"Q {bad}"], mode="always")
    assert answer.error
    fine = SelfRAG(PROMPTING, scripted({"Q \ufffd": CITING, "Q a\ufffdb": CITING}), search)
    turn = {"role": "user", "content": f"Q {bad}"}
    for made in (answer, fine.generate(f"Q {bad}", mode="never"), *fine.generate([[turn]], mode="never")):
        made.text.encode()
        made.trace.to_json().encode()
        json.dumps(made.as_dict(), ensure_ascii=False).encode()
