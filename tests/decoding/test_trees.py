"""Hand-worked trees: the beam, its searches and cuts; rescoring; and answers that a failure cut off."""

import io
import json
import time

import numpy as np
import pytest
from random_model import random_model
from refusals import refused
from rich.console import Console
from scripted_judges import Scripted, says
from swept import sweep
from written import LIMITS, passages, run

from retrieval.passage import Passage
from selfrag.common.errors import DecodingError, UserError
from selfrag.decoding.answer import Answer, Usage
from selfrag.decoding.policy import Decoding
from selfrag.decoding.rescore import replay
from selfrag.decoding.trace import Trace
from selfrag.engines.base import EngineLimits
from selfrag.reflection.intrinsic_labels import ANSWERABLE, CERTAINTY
from selfrag.reflection.requests import Failed
from selfrag.reflection.weights import Weights
from selfrag.render import html, terminal_answer

TREE = {
    "": "{~retrieve .5 .5 0}x",
    "[Retrieval]<d1>": ("[Relevant]Found.</s>", 0.9),
    "[No Retrieval]": ("Own.</s>", 0.1),
}


@pytest.mark.parametrize(
    "threshold, exact", [(0.0, True), (0.49, True), (0.5, False), (1.0, False)]
)
def test_a_threshold_is_exact_as_long_as_it_decides_alike(threshold, exact):
    answer = run(TREE, "d1").answer.rescore(threshold=threshold)
    # with nothing else recorded
    assert (answer.text, answer.exact) == (
        "Found.",
        exact,
    )
    assert answer.rescore().exact is exact


def test_a_threshold_is_exact_where_both_sides_were_recorded_and_stays():
    answer = run(TREE, "d1", no_retrieval_branch=True).answer
    without = answer.rescore(threshold=0.9)
    assert (answer.text, without.text, without.citations, without.exact) == (
        "Found.",
        "Own.",
        (),
        True,
    )
    assert {n.text: str(n.status) for n in without.trace.nodes} == {
        "Found.": "pruned",
        "Own.": "finished",
    }
    assert without.rescore(weights=Weights(2)).text == "Own."
    assert without.rescore(threshold=0.2) == answer


def test_what_cannot_be_rescored():
    failed = Answer(
        "Q", "", (), Usage(), Trace("Q", Decoding(), (), (), None), error="no memory"
    )
    with refused("no memory"):
        failed.rescore()
    with refused("threshold"):
        run(TREE, "d1").answer.rescore(threshold=7)
    with refused(r"weights of shape \(1, 2\)"):
        sweep([run(TREE, "d1").answer], np.ones((1, 2)))
    best, exact = sweep([failed], [Weights()])
    assert (best[0, 0], exact[0, 0]) == (-1, False)
    assert list(replay(failed.trace, [Weights()]).best) == [-1]
    assert sweep([], [Weights()])[0].shape == (0, 1)


@pytest.mark.parametrize(
    "text", ["[]", "null", '{"decisions": [], "nodes": [{}], "question": "Q"}']
)
def test_what_is_no_trace_is_one_line(text):
    with refused("this is no trace in JSON"):
        Trace.from_json(text)


def test_a_sweep_of_500_answers_under_1000_settings_takes_under_two_seconds():
    """Long-form trees: 3 segments, beam 2, 5 passages. Processor time, so that a busy machine may run it."""
    options = {"mode": "always", "beam": 2, "passages": 5, "max_segments": 3}
    answers = 20 * [
        run(random_model(seed), *(f"d{i}" for i in range(5)), **options).answer
        for seed in range(25)
    ]
    matrix = np.random.default_rng(0).uniform(0, 2, size=(1000, 3))
    start = time.process_time()
    best, exact = sweep(answers, matrix)
    seconds = time.process_time() - start
    assert best.shape == exact.shape == (500, 1000)
    assert len({tuple(row) for row in best[:25].T}) > 10  # settings do change choices
    assert seconds < 2


# --- defects that an outside audit done: one named test each ------------------------------------------------------


@pytest.mark.parametrize("first, same", [(0.1, True), (None, False)])
def test_a_judge_of_two_guardrails_routes_the_start_only_and_only_where_it_is_defined(
    first, same
):
    def certain(state):
        value = 0.9 if state.passages else first
        return None if value is None else says(value, 1 - value, labels=ANSWERABLE)

    tree = TREE | {"[Retrieval]<d1>": "[Relevant]One.{retrieve .5 .5 0}"}
    tree |= {
        "One.[Retrieval]<d1>": "[Relevant]Two.</s>",
        "One.[No Retrieval]": "Own.</s>",
    }

    def decoded(threshold):
        settings = {
            "guardrails": ["ad<0.5:retrieve", "ad<0.5:write"],
            "threshold": threshold,
            "history": "text",
        }
        critic = Scripted("ad", certain, labels=CERTAINTY)
        return run(tree, "d1", given={"judges": [critic]}, **settings).answer

    assert (decoded(0.2).text, decoded(0.9).text) == (
        "One. Two.",
        "One. Own." if same else "Own.",
    )
    assert not decoded(0.2).rescore(threshold=0.9).exact
    assert decoded(0.2).rescore(threshold=0.3).exact


TWO = {
    "[Retrieval]<d1>": "[Relevant]One.{retrieve .5 .5 0}",
    "One.[Retrieval]<d1>": Failed("no memory"),
}
PARTIAL = "segment 2 could not be written: no memory"


def check_partial(answer, text, reason):
    """Every place that shows an answer says that it is partial, and why."""
    assert (answer.text, answer.partial) == (text, reason)
    assert (
        answer.as_dict()["partial"]
        == json.loads(answer.trace.to_json())["partial"]
        == reason
    )

    assert answer.rescore() == answer
    assert answer.rescore(Weights(3, 1, 0)).partial == reason
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(terminal_answer(answer))
    assert all(
        f"partial: {reason}" in shown for shown in (str(answer), console.export_text())
    )
    assert reason in html(answer)


def test_an_answer_that_a_failed_generation_cut_off_says_so():
    check_partial(run(TWO, "d1", mode="always", history="text").answer, "One.", PARTIAL)


def test_an_answer_of_which_nothing_could_be_used_says_which_segment_failed():
    tree = {
        "[Retrieval]<d1>": "[Irrelevant]No.</s>",
        "[Retrieval]<d2>": Failed("no memory"),
    }
    answer = run(tree, "d1", "d2", mode="always", forbid={"isrel": "Irrelevant"}).answer
    reason = "segment 1 could not be written: no memory"
    check_partial(answer, "I don't know the answer", reason)


def test_the_other_sides_failures_make_no_rescored_answer_partial():
    tree = TWO | {
        "": "{~retrieve 1 0 0}x",
        "One.[No Retrieval]": "[No Retrieval]",
        "[No Retrieval]": "[Utility:1]</s>",
    }
    settings = {"no_retrieval_branch": True, "history": "text"}
    answer = run(tree, "d1", **settings).answer
    assert (answer.text, answer.partial) == ("One.", PARTIAL)
    for without in (
        answer.rescore(threshold=0.9),
        run(tree, "d1", threshold=0.9, **settings).answer,
    ):
        assert (without.text, without.partial, without.exact) == ("One.", None, True)


def searched(tree, failing, **options):
    """Decode with a retriever that finds d1 and d2, but fails for one query."""

    def search(query):
        if query == failing:
            raise UserError("the index is gone")
        return passages("d1", "d2")

    return run(tree, search=search, mode="always", history="text", **options)


def test_a_later_search_that_fails_ends_the_answer_there_and_says_so():
    done = searched(
        {f"[Retrieval]<d{i}>": "[Relevant]One.{retrieve 1 0 0}" for i in (1, 2)},
        "Q One.",
    )
    check_partial(
        done.answer, "One.", "the search for segment 2 failed: the index is gone"
    )
    assert [s.text for s in done.commits] == ["One."]
    assert (
        done.answer.trace.decisions[-1].reason
        == "mode=always; search failed: the index is gone"
    )


def test_a_later_search_that_fails_leaves_finished_hypotheses():
    tree = {
        "[Retrieval]<d1>": ("{isrel .9 .1}Whole.</s>", 0.9),
        "[Retrieval]<d2>": ("{isrel .5 .5}Half.{retrieve 1 0 0}", 0.5),
    }
    done = searched(tree, "Q Half.")
    assert (done.answer.text, done.answer.partial) == ("Whole.", None)
    assert done.statuses() == {"Whole.": "finished", "Half.": "finished"}
    for other in (
        done.answer.rescore(Weights(isrel=-9)),
        searched(tree, "Q Half.", weights=Weights(isrel=-9)).answer,
    ):
        assert (other.text, other.exact) == ("Half.", True)
        assert other.partial == "the search for segment 2 failed: the index is gone"


# --- the beam: searches, cuts, a full context, a shortlist --------------------------------------------------------

MORE = "{retrieve 1 0 0}"


def test_equal_queries_are_searched_once():
    """Each hypothesis searches with its last segment; two whose last segments are the same ask the same."""
    tree = {f"{text}[Retrieval]<d2>": "[Irrelevant]No." + MORE for text in "AB"}
    tree |= {f"{text}[Retrieval]<d1>": "[Relevant]Same." + MORE for text in "AB"}
    tree |= {
        f"[Retrieval]<d{i}>": f"[Relevant]{text}{MORE}"
        for i, text in ((1, "A"), (2, "B"))
    }
    tree |= {
        f"{text}Same.[Retrieval]<d{i}>": "[Relevant]End.</s>"
        for text in "AB"
        for i in (1, 2)
    }
    done = run(tree, "d1", "d2", mode="always", history="text")
    assert done.searches.batches == [["Q"], ["Q A", "Q B"], ["Q Same."]]
    assert done.answer.text == "A Same. End."
    assert done.answer.usage.searches == 4


def test_a_wide_beam_is_rescored_as_it_was_decoded_the_earlier_of_equals_first():
    """Passages 1, 2 and 3 are less relevant than the 32 others, and 33 have room."""
    numbers = range(1, 36)
    tree = {}
    for i in numbers:
        relevant = "{isrel .6 .4}" if i <= 3 else "{isrel .9 .1}"
        tree[f"[Retrieval]<d{i}>"] = f"{relevant}{i}.{MORE}"
        tree[f"{i}.[Retrieval]<end>"] = "[Relevant]End.</s>"
    first = passages(*(f"d{i}" for i in numbers))
    settings = {"mode": "always", "history": "text", "beam": 33, "max_segments": 2}
    answer = run(
        tree,
        search=lambda query: first if query == "Q" else passages("end"),
        passages=35,
        **settings,
    ).answer
    assert answer.rescore() == answer
    for rescored, pruned in (
        (answer, ["2.", "3."]),
        (answer.rescore(Weights(isrel=-1)), ["34.", "35."]),
    ):
        dropped = [n.text for n in rescored.trace.nodes if n.status == "pruned"]
        assert [text for text in dropped if text != "End."] == pruned


def test_passages_are_cut_and_the_cut_is_noted():
    """Of 502 characters 160 are tokenised and 5 kept; the other 342 count as 86 tokens."""
    tree = {"[Retrieval]<paragraph>T\nxxx</paragraph>": "[Relevant]A.</s>"}
    evidence = [Passage("d1", "x" * 500, "T")]
    done = run(tree, evidence=evidence, mode="always", passage_tokens=5)
    assert done.answer.trace.nodes[0].dropped_tokens == 155 + 86
    (node,) = done.answer.trace.as_dict()["nodes"]
    assert "passage_at" not in node  # its id is enough


def test_one_that_cannot_be_judged_comes_last():
    failing = relevances() | {"[Retrieval]<d4>": Failed("no memory")}
    (decision,) = run(failing, *RELEVANCE, **SHORTLIST).answer.trace.decisions
    assert decision.passages == passages("d2", "d3")


def test_what_does_not_fit_the_context_is_cut_or_fails_alone():
    small, huge = passages("d1")[0], Passage("d2", "x" * 200, "Title of d2")
    limits = EngineLimits(max_model_len=150, vocab_size=LIMITS.vocab_size)
    done = run(
        {"[Retrieval]<d1>": "[Relevant]A.</s>"},
        evidence=[huge, small],
        mode="always",
        limits=limits,
    )
    assert done.answer.text == "A."
    (failed,) = [n for n in done.answer.trace.nodes if n.status == "failed"]
    assert "does not fit a context of 150" in failed.finish
    with pytest.raises(DecodingError, match=r"the model could not read the question: "):
        run({}, "d1", question="why " * 25_000, limits=limits)
    tree = {"[No Retrieval]": "12345{retrieve 0 1 0}"}
    room = (
        len(run(tree, mode="never", max_segments=1).engine.requests[0].prompt_ids) + 4
    )
    done = run(
        tree,
        mode="never",
        limits=EngineLimits(max_model_len=room, vocab_size=LIMITS.vocab_size),
    )
    assert (done.answer.text, done.node("1234").finish) == ("1234", "context")


RELEVANCE = {"d1": 0.2, "d2": 0.9, "d3": 0.4, "d4": 0.95}
SHORTLIST = {"mode": "always", "shortlist": 4, "passages": 2, "max_segments": 1}


def relevances():
    return {
        f"[Retrieval]<{name}>": f"{{isrel {p} {1 - p:.2f}}}From {name}.</s>"
        for name, p in RELEVANCE.items()
    }


def test_the_best_of_a_shortlist_are_written_from_after_prompts_that_the_engine_knows():
    done = run(relevances(), *RELEVANCE, **SHORTLIST)
    (decision,) = done.answer.trace.decisions
    assert decision.passages == passages("d4", "d2")
    assert [node.text for node in done.answer.trace.nodes] == ["From d4.", "From d2."]
    judged = [
        (name, judgment.evidence, round(judgment.score, 2))
        for name, judgment in decision.guardrails
    ]
    assert judged == [("isrel", name, p) for name, p in RELEVANCE.items()]

    asked = [request.prompt_ids for request in done.engine.requests]
    assert [request.max_tokens for request in done.engine.requests] == [
        1,
        1,
        1,
        1,
        100,
        100,
    ]
    assert asked[4:] == [asked[3], asked[1]]
