"""Judges of a model by name: tokens, words, adapters, prompts and functions, by themselves and inside the beam."""

import json
import pickle

import pytest
from answering import failing, judging, scoring
from intrinsic_rows import turns
from json_files import table, write_json
from refusals import refused
from written import PROMPTING, TWO_WAYS, Searches, passages, run, scripted

from retrieval.combining import RerankedRetriever
from retrieval.passage import Passage
from selfrag.api import SelfRAG
from selfrag.common.errors import EngineError
from selfrag.intrinsics import (
    Answerability,
    HallucinationDetection,
    Library,
    QueryRewrite,
    Uncertainty,
)
from selfrag.intrinsics.model_library import split_name
from selfrag.intrinsics.named import adapters_of
from selfrag.judges.asking import JudgeScorer
from selfrag.judges.conversation import read_input
from selfrag.judges.external import FunctionJudge
from selfrag.judges.learned import ScoreCalibrator, Weighing, deciles
from selfrag.judges.tokens import TokenJudge
from selfrag.reflection.intrinsic_labels import FAITHFULNESS
from selfrag.reflection.judge import Cost, Scope
from selfrag.reflection.judgment import JudgmentSource
from selfrag.reflection.labels import ISREL, ISSUP, ISUSE, Role
from selfrag.reflection.requests import Failed
from selfrag.reflection.weights import Weights
from selfrag.runtime import finish

D1, D2 = passages("d1", "d2")
ASKED, ANSWERED = turns("Q"), turns("Q", "It is. It was.")
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
    for said, requirement, message in (
        (ANSWERED, "be polite", "reflection tokens check a constraint such as"),
        (ANSWERED, "issup=polite", "unknown issup label 'polite'"),
        (ANSWERED, "retrieve=Retrieval", "can be constrained"),
        (ASKED, "issup=Fully supported", "judges a reply"),
    ):
        with refused(message):
            check(said, [D1], requirement=requirement)


def test_words_judge_without_a_model():
    passage = Passage("tea", "Green tea is brewed at 80 degrees.")
    asked = "How hot is green tea brewed?"
    bare = scoring()
    result = Library(bare)["answerability.overlap"](asked, [passage, D1])
    judged = (result.judge, result.judgment.source, result.judgment.evidence)
    assert judged == ("overlap", JudgmentSource.WORDS, "tea")
    assert result.answerable == pytest.approx(0.75)
    said = turns(asked, "At 80 degrees. At noon.")
    faithful = Library(bare)["hallucination_detection.overlap"](said, [passage])
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
    made = library()
    for name, judge in (
        ("answerability", "tokens"),
        ("query_rewrite", "prompt"),
        ("hallucination_detection", "tokens"),
        ("citation_generation", "overlap"),
    ):
        assert made[name].by.name == judge
    chosen = library(judges={"answerability": "overlap"}).get(Answerability)
    assert chosen.by.name == "overlap"
    assert made["answerability.prompt"](ASKED, [D1]).answerable == pytest.approx(0.4)
    executor = scoring()
    executor.engine, executor.activated = scripted({"Q": JUDGED}), frozenset("a")
    adapters = {"answerability": "a", "query_rewrite": "b"}
    adapted = Library(executor, adapters, prompting=PROMPTING)
    assert adapted["answerability.adapter"].by.name == "activated adapter"
    assert adapted["query_rewrite"].by.name == "adapter"
    # none that it does not need
    for names in (["answerability.tokens"], {"answerability": "overlap"}):
        assert adapters_of(names, "demo") == {}
    assert split_name("Context-Relevance.overlap") == ("context_relevance", "overlap")


MISSING = """
answerability.magic | unknown judge 'magic'; known: tokens, combined, adapter
answers.tokens | unknown intrinsic 'answers'
query_rewrite.tokens | query_rewrite cannot be judged by tokens
answerability.combined | no weights were learned for this model
answerability.adapter | the model has no adapter for it
uncertainty.tokens | no calibrator was fitted
"""


@pytest.mark.parametrize("name, message", table(MISSING))
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
    without = judge(turns("Q", "Sure."))
    assert without.certainty is None
    assert "an answer of this library" in without.diagnostics[0].message
    model = SelfRAG(PROMPTING, scripted({"Q": TWO_WAYS}), judges=(judge,))
    with refused(r"finished answer.*ask for uncertainty\.prompt"):
        model.generate("Q", evidence=[D1], judges=["uncertainty"], max_segments=1)
    assert pickle.loads(pickle.dumps(read_input(answer))).path_score == score


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
    tree = {
        "[Retrieval]<d1>[Relevant]Hm.[Fully supported]": "{~isuse 0 0 0 0 1}x",
        "[No Retrieval]Hm.": "{~isuse 1 0 0 0 0}x",
    }
    # somebody else wrote this
    said = turns("Q", "Hm.")
    states = [read_input(said, [D1]), read_input(said)]
    judging = TokenJudge(PROMPTING, ISUSE).judge(states)
    reflections = finish(judging, scripted({"Q": tree}))
    assert [one.judgments[0].label for one in reflections] == ["5", "1"]


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
    gate = Answerability(judge, name="gate", cost=Cost.GENERATED)
    assert (judge.cost, gate.cost) == (Cost.ONE_TOKEN, Cost.GENERATED)
    assert Answerability.on(scoring(), adapter="ad").cost is Cost.PREFILL
    with refused("query_rewrite judges rewrite"):
        rag(QueryRewrite.on(scoring())).generate("Q", judges="query_rewrite")
    with refused("two judges are called 'answerability'"):
        rag(judge, judge).generate("Q")
    with refused("'gate'; .*answerability"):
        rag(judge).generate("Q", guardrails="gate<0.5:abstain")


def test_relevance_tokens_rerank_what_a_retriever_finds():
    tree = dict(JUDGED)
    scorer = JudgeScorer(TokenJudge(PROMPTING, ISREL), scripted({"Q": tree}))
    search = Searches(lambda query: [D1, D2])
    ((best,),) = RerankedRetriever(search, scorer)(["Q"], 1)
    assert (best.id, best.score) == ("d2", pytest.approx(0.7, abs=1e-3))
    tree["[Retrieval]<d1>"] = Failed("too long")
    with pytest.raises(EngineError, match="could not be read: too long"):
        scorer(["Q"], [[D1]])
