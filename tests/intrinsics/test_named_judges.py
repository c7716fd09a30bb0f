"""Judges of a model by name: tokens, words, adapters, prompts and functions, by themselves and inside the beam."""

import json
import pickle
from dataclasses import replace

import pytest
import tiny
from answering import failing, judging, scoring, writing
from json_files import write_json
from refusals import refused
from written import LIMITS, PROMPTING, TWO_WAYS, Searches, passages, run, scripted

from retrieval.combining import RerankedRetriever
from retrieval.passage import Passage
from selfrag.api import SelfRAG
from selfrag.common.errors import EngineError
from selfrag.decoding.policy import Decoding
from selfrag.intrinsics import (
    Answerability,
    CitationGeneration,
    HallucinationDetection,
    Library,
    QueryRewrite,
    Uncertainty,
)
from selfrag.intrinsics.flows import (
    CertaintyFilter,
    Flow,
    SelfRAGWriter,
    Write,
    named_flow,
)
from selfrag.intrinsics.flows import run as run_flow
from selfrag.intrinsics.model_library import prompting_of, split_name
from selfrag.intrinsics.named import adapters_of, on_engine
from selfrag.judges.asking import JudgeScorer
from selfrag.judges.conversation import read_input
from selfrag.judges.engine import EngineExecutor
from selfrag.judges.external import FunctionJudge
from selfrag.judges.learned import ScoreCalibrator, Weighing, deciles
from selfrag.judges.tokens import TokenJudge
from selfrag.reflection.inputs import Message
from selfrag.reflection.intrinsic_labels import FAITHFULNESS
from selfrag.reflection.judge import Cost, Scope
from selfrag.reflection.judgment import JudgmentSource
from selfrag.reflection.labels import ISREL, ISSUP, ISUSE, Role
from selfrag.reflection.requests import Failed
from selfrag.reflection.weights import Weights
from selfrag.runtime import finish

D1, D2 = passages("d1", "d2")
ASKED = [{"role": "user", "content": "Q"}]
ANSWERED = [*ASKED, {"role": "assistant", "content": "It is. It was."}]
JUDGED = {
    "[Retrieval]<d1>": "{~isrel .2 .8}x",
    "[Retrieval]<d2>": "{~isrel .9 .1}x",
    "[Retrieval]<d1>[Relevant]It is.": "{~issup .7 .2 .1}x",
    "[Retrieval]<d2>[Relevant]It is.": "{~issup .1 .2 .7}x",
    "[Retrieval]<d1>[Relevant]It was.": "{~issup .1 .1 .8}x",
    "[Retrieval]<d2>[Relevant]It was.": "{~issup .2 .1 .7}x",
    "[Retrieval]<d1>[Relevant]It is. It was.": "{~issup .5 .3 .2}x",
    "[Retrieval]<d2>[Relevant]It is. It was.": "{~issup .1 .1 .8}x",
}


def library(tree=JUDGED, **more):
    engine = scripted({"Q": tree})
    executor = scoring(answerable=0.4, unanswerable=0.6)
    executor.engine = engine
    return Library(executor, prompting=PROMPTING, **more)


def test_reflection_tokens_judge_questions_passages_and_sentences():
    # as its most relevant passage is relevant
    result = library().get(Answerability)(ASKED, [D1, D2])
    assert (result.answerable, result.judge) == (pytest.approx(0.9), "tokens")
    assert result.judgment is not None
    assert (result.judgment.source, result.judgment.evidence) == (
        JudgmentSource.TOKEN,
        "d2",
    )
    assert result.as_dict()["judge"] == "tokens"
    passages_judged = library()["context_relevance"](
        ASKED, [D1, Passage("e", " "), D2]
    ).passages
    assert [judged_passage.relevance for judged_passage in passages_judged] == [
        pytest.approx(0.2),
        None,
        pytest.approx(0.9),
    ]
    # as its best passage says
    result = library()["hallucination_detection"](ANSWERED, [D1, D2])
    assert [(s.label, s.judgment.evidence) for s in result.sentences] == [
        ("faithful", "d1"),
        ("unfaithful", "d2"),
    ]
    assert [s.faithfulness for s in result.sentences] == [
        pytest.approx(0.8),
        pytest.approx(0.25),
    ]
    assert result.is_hallucinated
    result = library()["citation_generation.tokens"](ANSWERED, [D1, D2])
    assert [s.is_cited for s in result.sentences] == [True, False]
    assert [(r["citation_doc_id"], r["citation_text"]) for r in result.records] == [
        ("d1", D1.text)
    ]
    judge = library({**JUDGED, "[Retrieval]<d2>": Failed("too long")}).get(
        Answerability
    )
    (result,) = judge.batch([judge.state(ASKED, [D1, D2])])
    assert (result.failure, result.answerable) == ("too long", pytest.approx(0.2))


def test_a_requirement_of_tokens_is_a_hard_constraint():
    check = library()["requirement_check.tokens"]
    requirement_text = "issup=Fully supported,Partially supported"
    assert check(ANSWERED, [D1, D2], requirement=requirement_text).met == pytest.approx(
        0.8
    )
    assert check(ASKED, [D1, D2], requirement="isrel=Relevant").met == pytest.approx(
        0.9
    )
    for turns, requirement, message in (
        (ANSWERED, "be polite", "reflection tokens check a constraint such as"),
        (ANSWERED, "issup=polite", "unknown issup label 'polite'"),
        (ANSWERED, "retrieve=Retrieval", "can be constrained"),
        (ASKED, "issup=Fully supported", "judges a reply"),
    ):
        with refused(message):
            check(turns, [D1], requirement=requirement)


def test_words_judge_without_a_model():
    passage = Passage("tea", "Green tea is brewed at 80 degrees.")
    turns = [{"role": "user", "content": "How hot is green tea brewed?"}]
    bare = scoring()
    result = Library(bare)["answerability.overlap"](turns, [passage, D1])
    judged = (result.judge, result.judgment.source, result.judgment.evidence)
    assert judged == ("overlap", JudgmentSource.WORDS, "tea")
    assert result.answerable == pytest.approx(0.75)
    turns.append({"role": "assistant", "content": "At 80 degrees. At noon."})
    faithful = Library(bare)["hallucination_detection.overlap"](turns, [passage])
    assert [s.faithfulness for s in faithful.sentences] == [1.0, 0.0]


def test_tokens_and_words_are_weighed_by_what_was_learned(tmp_path):
    file = tmp_path / "combined.json"
    Weighing("answerability", "0", -1.0, {"token": 0.0, "overlap": 2.0}).write(file)
    result = library(weights={"answerability": file})["answerability.combined"](
        ASKED, [Passage("d1", "x", "Title of d1")]
    )
    assert (result.judge, result.judgment.source) == (
        "combined",
        JudgmentSource.COMBINED,
    )
    # no word in common
    assert result.answerable == pytest.approx(1 / (1 + 2.718281828))
    for text in (
        "[]",
        "{}",
        json.dumps(
            {"format": 1, "intrinsic": "a", "model": "m", "bias": 0, "weights": {}}
        ),
    ):
        file.write_text(text)
        with refused(r"combined\.json cannot be used"):
            library(weights={"answerability": file})["answerability.combined"]


def test_the_default_follows_what_the_model_has():
    assert (
        library(adapters={"answerability": "a"}).get(Answerability).by.name == "tokens"
    )
    assert (
        library(judges={"answerability": "overlap"}).get(Answerability).by.name
        == "overlap"
    )
    assert library().get(QueryRewrite).by.name == "prompt"
    assert library()["hallucination_detection"].by.name == "tokens"
    assert library()["citation_generation"].by.name == "overlap"
    assert library()["answerability.prompt"](ASKED, [D1]).answerable == pytest.approx(
        0.4
    )
    engine = scripted(
        {"Q": JUDGED},
        limits=replace(LIMITS, adapters=frozenset("ab"), activated=frozenset("a")),
    )
    executor = scoring()
    executor.engine, executor.activated = engine, engine.limits.activated
    adapted = Library(
        executor, {"answerability": "a", "query_rewrite": "b"}, prompting=PROMPTING
    )
    assert adapted["answerability.adapter"].by.name == "activated adapter"
    assert adapted["query_rewrite"].by.name == "adapter"
    # none that it does not need
    assert (
        adapters_of(["hallucination_detection", "answerability.tokens"], "demo") == {}
    )
    assert (
        adapters_of({"answerability": "overlap", "context_relevance": None}, "demo")
        == {}
    )
    assert split_name("Context-Relevance.overlap") == ("context_relevance", "overlap")


@pytest.mark.parametrize(
    "name, message",
    [
        (
            "answerability.magic",
            "unknown judge 'magic'; known: tokens, combined, adapter",
        ),
        ("answers.tokens", "unknown intrinsic 'answers'"),
        ("query_rewrite.tokens", "query_rewrite cannot be judged by tokens"),
        ("answerability.combined", "no weights were learned for this model"),
        ("answerability.adapter", "the model has no adapter for it"),
        ("uncertainty.tokens", "no calibrator was fitted"),
    ],
)
def test_what_a_model_does_not_have_is_refused(name, message):
    with refused(message):
        library()[name]
    with refused("has no reflection tokens"):
        Library(scoring())["answerability.tokens"]


# --- Certainty of an answer from its own trace: the score of its path, calibrated -----------------------------------


def certain(file):
    return library(TWO_WAYS, weights={"uncertainty": file})


def test_the_path_score_is_calibrated_and_only_an_answer_has_one(
    tmp_path,
):
    file = tmp_path / "certainty.json"
    calibrator = ScoreCalibrator((1.0, 2.0, 3.0), (0.2, 0.4, 0.8))
    calibrator.write(file)
    assert ScoreCalibrator.read(file) == calibrator
    answer = run(TWO_WAYS, "d1", "d2", max_segments=1).answer
    score = answer.segments[0].score
    assert 2 < score < 3
    # the default where the model brings a calibrator
    judge = certain(file).get(Uncertainty)
    result = judge(answer)
    assert result.certainty == pytest.approx(0.4 + 0.4 * (score - 2))
    assert (result.judge, result.judgment.source) == ("tokens", "token")
    without = judge([*ASKED, {"role": "assistant", "content": "Sure."}])
    assert without.certainty is None
    assert "an answer of this library" in without.diagnostics[0].message
    model = SelfRAG(PROMPTING, scripted({"Q": TWO_WAYS}), judges=(judge,))
    with refused(r"finished answer.*ask for uncertainty\.prompt"):
        model.generate("Q", evidence=[D1], judges=["uncertainty"], max_segments=1)
    assert pickle.loads(pickle.dumps(read_input(answer))).path_score == score


def test_a_flow_keeps_the_answers_that_are_certain(tmp_path):
    file = tmp_path / "certainty.json"
    ScoreCalibrator((2.0, 3.0), (0.0, 1.0)).write(file)
    answer = run(TWO_WAYS, "d1", "d2", max_segments=1).answer
    judge = certain(file)["uncertainty.tokens"]
    writing = Write(SelfRAGWriter(PROMPTING, answer.trace.decoding))
    certainty = answer.segments[0].score - 2
    for threshold, kept in (
        (certainty - 0.01, "Sure."),
        (certainty + 0.01, "I don't know the answer"),
    ):
        flow = Flow(
            (writing, CertaintyFilter(judge, threshold, by="expectation")), "sure"
        )
        (kept_answer,) = run_flow(
            flow,
            [read_input("Q", [D1, D2])],
            judge.engine or certain(file).executor.engine,
        )
        assert kept_answer.text == kept


@pytest.mark.parametrize("certainty", [0.0, 0.05, 0.33, 0.949, 0.95, 1.0])
def test_deciles_have_the_certainty_as_their_expectation(certainty):
    shares = deciles(certainty)
    assert sum(shares) == pytest.approx(1)
    middles = [(5 + 10 * at) / 100 for at in range(10)]
    assert sum(a * b for a, b in zip(shares, middles, strict=True)) == pytest.approx(
        min(max(certainty, 0.05), 0.95)
    )


def test_a_calibrator_that_is_none_is_refused(tmp_path):
    file = tmp_path / "certainty.json"
    good = {"scores": [0.1, 0.2], "accuracy": [0.1, 0.2]}
    for bad in (
        [],
        {},
        {"scores": [], "accuracy": []},
        good | {"accuracy": [0.2, 0.1]},
        good | {"accuracy": [1]},
    ):
        write_json(file, bad)
        with refused(r"certainty\.json cannot be used"):
            certain(file).get(Uncertainty, "tokens")


# --- In the beam --------------------------------------------------------------------------------------------------

TREE = TWO_WAYS | {
    "[Retrieval]<d1>": ("[Relevant]Close.{issup .1 .1 .8}{isuse 0 0 1 0 0}</s>", 0.5),
    "[Retrieval]<d2>": (
        "[Relevant]Sure. It is.{issup .9 .1 0}{isuse 0 0 1 0 0}</s>",
        0.5,
    ),
    # where a critic with the same tokens looks
    "[Retrieval]<d1>[Relevant]Close.": "{~issup .1 .1 .8}x",
    "[Retrieval]<d2>[Relevant]Sure. It is.": "{~issup .9 .1 0}x",
}


def rag(*judges, tree=TREE, names=("d1", "d2")):
    return SelfRAG(
        PROMPTING,
        scripted({"Q": tree}),
        Searches(lambda query: passages(*names)),
        judges=judges,
    )


def test_reflection_tokens_as_a_reflector_change_nothing_but_the_question_who_asked():
    tokens = run(TREE, "d1", "d2").answer
    judged = rag(TokenJudge(PROMPTING, ISSUP)).generate("Q", judges="token_issup=issup")
    mine, theirs = judged.trace.as_dict(), tokens.trace.as_dict()
    assert mine["decoding"].pop("judges") == ["token_issup=issup"]
    assert mine.pop("costs") == {"token_issup": Cost.ONE_TOKEN}
    assert json.dumps(mine) == json.dumps(theirs)
    assert judged.usage.requests == tokens.usage.requests + 2
    with refused("no critique"):
        TokenJudge(PROMPTING, FAITHFULNESS)
    with_passage = "[Retrieval]<d1>[Relevant]Hm.[Fully supported]"
    without = "[No Retrieval]Hm."
    engine = scripted(
        {"Q": {with_passage: "{~isuse 0 0 0 0 1}x", without: "{~isuse 1 0 0 0 0}x"}}
    )
    # somebody else wrote this
    turns = [
        *ASKED,
        {"role": "assistant", "content": "Hm."},
    ]
    reflections = finish(
        TokenJudge(PROMPTING, ISUSE).judge(
            [read_input(turns, [D1]), read_input(turns)]
        ),
        engine,
    )
    assert [reflection.judgments[0].label for reflection in reflections] == ["5", "1"]
    assert reflections[0].judgments[0].score == pytest.approx(1.0)


def test_hallucination_detection_stands_in_for_issup_on_another_model():
    faithful = {"d1": 0.9, "d2": 0.2}

    def by_passage(request, _):
        (passage,) = request.state.passages
        return {
            "faithful": faithful[passage.id],
            "unfaithful": 1 - faithful[passage.id],
        }

    executor = judging(by_passage)
    answer = rag(HallucinationDetection.on(executor)).generate(
        "Q", judges="hallucination_detection=issup", weights=Weights(issup=2)
    )
    assert answer.text == "Close."
    (judgment,) = [s.judgments[Role.SUPPORT] for s in answer.segments]
    assert judgment is not None
    assert (judgment.label, judgment.source, judgment.evidence) == (
        "faithful",
        JudgmentSource.JUDGE,
        "d1",
    )
    assert judgment.site == "segment 1, passage d1"
    turns = [request.state.messages for request in executor.requests]
    assert turns == [
        (Message("user", "Q"), Message("assistant", text))
        for text in ("Close.", "Sure. It is.")
    ]
    d2 = next(node for node in answer.trace.nodes if node.text == "Sure. It is.")
    assert len(d2.places["hallucination_detection"]) == 2  # one a sentence
    assert answer.rescore(Weights(issup=0, isrel=0)).exact
    read = type(answer.trace).from_json(answer.trace.to_json())
    assert (read.as_dict(), read.nodes) == (answer.trace.as_dict(), answer.trace.nodes)


def test_citations_count_by_length_and_certainty_needs_no_passage():
    def cite(_, slot):
        none = 0.9 if slot.site.text == "It is." else 0.1
        return {"00": none} | dict.fromkeys(
            slot.surfaces[1:], (1 - none) / (len(slot.surfaces) - 1)
        )

    names = ["citation_generation", "uncertainty"]
    model = rag(
        CitationGeneration.on(judging(cite)), Uncertainty.on(scoring(**{"7": 1.0}))
    )
    answer = model.generate(
        "Q", judges=names, weights=Weights(judges={"uncertainty": 0})
    )
    node = next(node for node in answer.trace.nodes if node.text == "Sure. It is.")
    assert node.judges["citation_generation"].score == pytest.approx(
        (0.9 * 5 + 0.1 * 6) / 11
    )
    assert node.judges["uncertainty"].score == pytest.approx(0.75)
    (only,) = model.generate("Q", mode="never", judges=names).trace.nodes
    assert [only.judges[name] is None for name in names] == [True, False]


def test_only_the_segment_counts_where_the_answer_before_it_is_in_sight():
    tree = {
        "": "{~retrieve .9 .1 0}x",
        "[Retrieval]<d1>": "[Relevant]One.[Fully supported]{retrieve .1 .1 .8}",
        "[Retrieval]<d1>[Relevant]One.[Fully supported][Continue to Use Evidence]": "Two.{isuse 0 0 0 0 1}</s>",
    }
    executor = judging(
        lambda _, slot: {"faithful": 0.7 if "One" in slot.site.text else 1e-9},
        remainder=0.1,
    )
    model = rag(
        HallucinationDetection.on(executor, scope=Scope.ANSWER),
        tree=tree,
        names=("d1",),
    )
    answer = model.generate("Q", judges="hallucination_detection")
    assert executor.requests[-1].state.response == "One. Two."
    assert [s.text for s in executor.requests[-1].sites] == ["One.", "Two."]
    first, second = (
        node.judges["hallucination_detection"] for node in answer.trace.nodes
    )
    assert first is not None
    assert second is not None
    assert first.probability("faithful") == pytest.approx(0.7)
    assert second.probability("faithful") < 0.01
    assert answer.trace.nodes[1].places == {}


def test_a_function_is_a_reflector_and_what_fails_or_makes_no_sense_is_undefined():
    broken = HallucinationDetection.on(failing("no memory"))
    answer = rag(broken).generate("Q", judges="hallucination_detection=issup")
    assert answer.segments[0].judgments[Role.SUPPORT] is None
    assert answer.text == run(TREE, "d1", "d2", weights=Weights(issup=0)).answer.text

    def judged(function, judges="nli"):
        return rag(FunctionJudge("nli", ISSUP, function)).generate("Q", judges=judges)

    answer = judged(
        lambda states: [
            [0, 0, 3.0] if "Sure" in s.response else [2.0, 0, 0] for s in states
        ],
        "nli=issup",
    )
    assert answer.text == "Close."
    assert answer.segments[0].judgments[Role.SUPPORT].source is JudgmentSource.JUDGE
    rows = [[1.0, 0, 0], [0.1, 0.2]]
    nodes = judged(lambda states: rows[: len(states)]).trace.nodes
    # the better one was asked about first
    assert [node.judges["nli"] is not None for node in nodes] == [
        False,
        True,
    ]
    assert judged(lambda states: 1 / 0).text == "Sure. It is."


def test_tiers_and_roles():
    judge = Answerability.on(scoring())
    assert judge.cost is Cost.ONE_TOKEN
    assert Answerability.on(scoring(), adapter="ad").cost is Cost.PREFILL
    assert QueryRewrite.on(writing("x")).cost is Cost.GENERATED
    assert Answerability(judge, name="gate", cost=Cost.GENERATED).cost is Cost.GENERATED
    assert library()["context_relevance"].cost is Cost.ONE_TOKEN
    with refused("query_rewrite judges rewrite"):
        rag(QueryRewrite.on(scoring())).generate("Q", judges="query_rewrite")
    with refused("two judges are called 'answerability'"):
        rag(judge, judge).generate("Q")
    with refused("'gate'; .*answerability"):
        rag(judge).generate("Q", guardrails="gate<0.5:abstain")


def test_the_names_serve_guardrails_score_terms_and_flows():
    tree = JUDGED | {
        "": "{~retrieve .9 .1 0}x",
        "[Retrieval]<d1>": "{isrel .2 .8}One.{isuse 0 0 1 0 0}</s>",
        "[Retrieval]<d2>": "{isrel .9 .1}Two.{issup .9 .1 0}{isuse 0 0 1 0 0}</s>",
        "[No Retrieval]": "Own.{isuse 0 0 1 0 0}</s>",
    }
    engine = scripted({"Q": tree})
    names = ["answerability.tokens", "hallucination_detection.overlap"]
    judges = on_engine(
        engine, tiny.byte_level_tokenizer(reflection=True), names, prompting=PROMPTING
    )
    model = SelfRAG(PROMPTING, engine, Searches(lambda query: [D1, D2]), judges=judges)
    answer = model.generate(
        "Q",
        guardrails="answerability.tokens<0.5:abstain",
        judges="hallucination_detection.overlap",
    )
    assert answer.text == "Two."
    assert (
        answer.segments[0].judges["hallucination_detection.overlap"].source
        is JudgmentSource.WORDS
    )
    assert model.generate("Q", guardrails="answerability.tokens<0.99:abstain").abstained
    flow = named_flow(
        "ad", SelfRAGWriter(PROMPTING, model.defaults), answerability=judges[0], k=2
    )
    assert model.generate("Q", flow=flow).text == "Two."


@pytest.mark.engine
def test_a_real_model_judges_its_own_segments_on_the_decoders_engine(
    tmp_path,
):
    """The same numbers come from the intrinsic called by itself afterwards."""
    from selfrag.engines.transformers import TransformersConfig, TransformersEngine

    tokenizer = tiny.byte_level_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    path = tiny.save_llama(tmp_path / "llama", context=2048)
    engine = TransformersEngine.load(TransformersConfig(str(path)))
    judge = Uncertainty.on(EngineExecutor(engine, tokenizer))
    model = SelfRAG(prompting_of(tokenizer), engine, judges=(judge,))
    policy = Decoding(
        mode="always", max_segments=1, segment_tokens=12, judges="uncertainty"
    )
    answer = model.generate("Who?", evidence=[D1, D2], decoding=policy)
    assert (
        answer.usage.requests
        > model.generate(
            "Who?", evidence=[D1, D2], decoding=policy, judges=()
        ).usage.requests
    )
    for node in answer.trace.nodes:
        turns = [
            {"role": "user", "content": "Who?"},
            {"role": "assistant", "content": node.text.strip()},
        ]
        assert node.judges["uncertainty"].score == pytest.approx(
            judge(turns, [node.passage]).certainty, abs=1e-4
        )
    assert answer.rescore() == answer
    engine.close()


def test_relevance_tokens_rerank_what_a_retriever_finds():
    tree = dict(JUDGED)
    scorer = JudgeScorer(TokenJudge(PROMPTING, ISREL), scripted({"Q": tree, "R": tree}))
    scores_by_query = scorer(["Q", "R"], [[D1, D2], [D2]])
    assert [pytest.approx(scores) for scores in scores_by_query] == [[0.2, 0.9], [0.9]]
    reranked = RerankedRetriever(Searches(lambda query: [D1, D2]), scorer)
    assert [[passage.id for passage in hits] for hits in reranked(["Q"], 1)] == [["d2"]]
    tree["[Retrieval]<d1>"] = Failed("too long")
    with pytest.raises(
        EngineError, match="token_isrel of a passage could not be read: too long"
    ):
        scorer(["Q"], [[D1]])
