"""Scores against numbers worked out by hand: of segments and paths, of the published code, and of closed sets."""

import math
from dataclasses import replace

import numpy as np
import pytest
import written
from json_files import table
from refusals import refused
from scripted import ScriptedReply
from written import (
    FIRST_CHARACTER,
    LIMITS,
    RESPONSE,
    VOCABULARY,
    passages,
    run,
    seen,
)

from selfrag.decoding.option_scoring import normalised
from selfrag.decoding.policy import Decoding
from selfrag.decoding.segments import read
from selfrag.decoding.trace import Trace
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import (
    CRITIQUES,
    RETRIEVE,
    Role,
    group,
)
from selfrag.reflection.requests import Finish, Generated
from selfrag.reflection.vocabulary import Scaling
from selfrag.reflection.weights import Weights

WRITTEN = (
    "{isrel .9 .1}5{issup .6 .3 .1}{isuse .05 .05 .1 .3 .5}</s>",
    (-0.2, -0.4, -0.4, -0.6, -3.0),
)


PRESETS = """
Decoding(mode="always") | exp(-0.4) + 0.9 + 0.75 + 0.5 * 0.575
Decoding(mode="always", likelihood="product") | exp(-1.6) + 0.9 + 0.75 + 0.5 * 0.575
Decoding.official(mode="always", max_segments=1) | exp(-4.6 / 5) + 0.9 + 0.75 + 0.575
Decoding.official(mode="always") | 0.9 + 0.75
"""
"""Section 4.3 of the paper, Eq. 3 as printed, and the short and the long form of the published code."""


@pytest.mark.parametrize("policy, score", table(PRESETS))
def test_scores_of_the_presets(policy, score):
    """One generated segment under each preset, worked by hand from the paper and from the published code."""
    done = run({"[Retrieval]<d1>": WRITTEN}, "d1", policy=eval(policy))
    expected = eval(score, vars(math))
    assert done.node("5").score == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    "options, relevant", [({}, 0.75), ({"calibrated": False}, 0.9)]
)
def test_scalings_of_the_model_apply_unless_they_are_switched_off(
    options, relevant, monkeypatch
):
    """.9 and .1 at temperature 2: roots in the ratio 3 to 1."""
    calibrated = replace(written.VOCABULARY, scalings={Role.RELEVANCE: Scaling(2.0)})
    monkeypatch.setattr(
        written, "PROMPTING", replace(written.PROMPTING, vocabulary=calibrated)
    )
    done = run({"[Retrieval]<d1>": WRITTEN}, "d1", mode="always", **options)
    assert done.node("5").judgments["isrel"].probability("Relevant") == pytest.approx(
        relevant
    )
    assert done.node("5").judgments["issup"].distribution == pytest.approx(
        (0.6, 0.3, 0.1)
    )


@pytest.mark.parametrize("labels", CRITIQUES, ids=lambda labels: str(labels.role))
def test_a_second_eos_ends_a_segment_whose_critiques_are_forced(labels):
    other_eos = 41
    ids = (*written.PROMPTING.codec.encode("Hi"), other_eos)
    watched = np.log(np.full((len(ids), len(VOCABULARY.watch)), 0.1, dtype=np.float32))
    generated = Generated(ids, (-0.5,) * len(ids), watched, Finish.EOS)
    reading = read(
        generated, VOCABULARY, branch="passage", site="here", forced={labels.role}
    )
    assert reading.judgments[labels.role] is not None
    assert (reading.text_ids, reading.ended) == (ids[:-1], True)


# --- the official preset ------------------------------------------------------------------------------------------

SHORT, LONG = Decoding.official(max_segments=1), Decoding.official()


def test_a_ratio_is_never_negative():
    """A trace of another program may hold probabilities that add up to a little more than 1."""
    judgment = Judgment(RETRIEVE, "start", (1.0, 0.0, 0.0), coverage=1.001)
    assert SHORT.retrieval_score(judgment) == 0


def test_a_forced_utility_that_the_model_did_not_expect_decides_nothing():
    """A.1: utility is given once an output. Two equal candidates, utility read from a mass of 1.3e-8 in between."""
    tree = {
        "[Retrieval]<d1>": "{isrel .9 .1}One.{issup .6 .3 .1}{~isuse 1e-8 0 0 0 3e-9}[Retrieval]",
        "[Retrieval]<d2>": "{isrel .9 .1}Two.{issup .6 .3 .1}{~isuse 3e-9 0 0 0 1e-8}[Retrieval]",
    }
    found = run(
        tree,
        "d1",
        "d2",
        mode="always",
        undefined="force",
        max_segments=1,
        likelihood="none",
    )
    scores = [node.score for node in found.answer.trace.nodes]
    assert scores == pytest.approx([(0.9 + 0.75) * 2.5 / 2] * 2)
    assert [
        node.judgments[Role.UTILITY].coverage < 1e-7
        for node in found.answer.trace.nodes
    ] == [True, True]
    known = run(
        tree,
        "d1",
        "d2",
        mode="always",
        undefined="zero",
        max_segments=1,
        likelihood="none",
    )
    assert [node.score for node in known.answer.trace.nodes] == pytest.approx(
        [0.9 + 0.75] * 2
    )


def test_a_segment_that_its_budget_cut_goes_on_where_tokens_are_left():
    again = "[No Retrieval]They can sl"
    tree = {
        "": "{~retrieve .1 .9 0}x",
        "[No Retrieval]": "They can sl",
        again: "{~retrieve .1 .9 0}x",
        f"{again}[No Retrieval]": "eep.{isuse 0 0 0 0 1}</s>",
    }
    how = {"segment_tokens": 11, "threshold": 0.2}
    answer = run(tree, after_cut="go_on", **how).answer
    ends = [(one.text, one.finish) for one in answer.segments]
    assert ends == [("They can sl", "length"), ("eep.", "stop")]
    assert answer.finish == "stop"
    for more in ({}, {"after_cut": "go_on", "answer_tokens": 11}):
        assert run(tree, **how, **more).answer.finish == "length"


def test_a_completion_that_ran_out_behind_its_segment_did_not_cut_it():
    tree = {"[Retrieval]<d1>": "{isrel .9 .1}One.{~retrieve 1 0 0}[Retrieval]and more"}
    settings = {
        "mode": "always",
        "segment_end": "retrieval",
        "max_segments": 1,
        "segment_tokens": 8,
    }
    for after_cut in ("end", "go_on"):
        done = run(tree, "d1", after_cut=after_cut, **settings)
        assert (done.answer.text, done.answer.finish) == ("One.", "stop")


@pytest.mark.parametrize(
    "threshold, rule, action",
    [
        (0.2, "most_probable", "continue"),
        (0.2, "below_threshold", "retrieve"),  # A.4: .44 / (.44 + .06) = .88
        (0.9, "below_threshold", "continue"),
        # section 4.3: for citations, every boundary retrieves
        (0.0, "most_probable", "retrieve"),
    ],
)
def test_a_threshold_of_0_retrieves_at_every_boundary(threshold, rule, action):
    judgment = Judgment(RETRIEVE, "end", (0.44, 0.06, 0.5), 1.0)
    policy = Decoding(threshold=threshold, keep_evidence=rule)
    assert policy.action(judgment, has_evidence=True)[0] == action


def test_changes_win_over_the_preset():
    policy = Decoding.official(accumulate="sum", beam=5)
    assert (policy.accumulate, policy.beam, policy.retrieve_once) == ("sum", 5, True)


@pytest.mark.parametrize("policy", [SHORT, LONG, Decoding(max_segments=1), Decoding()])
@pytest.mark.parametrize("mode", ["adaptive", "always", "never"])
@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("text", ["", "Words."])
@pytest.mark.parametrize("threshold", [0.2, None])
def test_defect_14_every_mode_returns_a_value(policy, mode, count, text, threshold):
    """Each mode x {0, 1, 2 passages} x {empty, normal output} x {threshold, none}, long and short form."""
    tree = {f"[Retrieval]<{name}>": f"[Relevant]{text}</s>" for name in ("d1", "d2")}
    tree |= {"": "{retrieve .9 .1 0}</s>", "[No Retrieval]": f"{text}</s>"}
    done = run(
        tree,
        evidence=passages("d1", "d2")[:count],
        policy=replace(policy, mode=mode, threshold=threshold),
    )
    abstains = count == 0 and mode != "never" and policy.without_evidence == "abstain"
    assert (done.answer.text, done.answer.error) == (
        Decoding.abstention if abstains else text,
        None,
    )


# --- closed sets --------------------------------------------------------------------------------------------------


def speller(table):
    """A model given by probabilities of the next symbol (a character or a reflection token) after each response."""

    def reply(request):
        response = seen(request.prompt_ids).partition(RESPONSE)[2]
        row = table[response]
        ids = {
            VOCABULARY.ids.get(s, 0 if s == "</s>" else FIRST_CHARACTER + ord(s[0])): p
            for s, p in row.items()
        }
        return ScriptedReply((max(ids, key=lambda i: ids[i]),), {0: ids})

    return reply


def isrel(relevant):
    return {"[Relevant]": relevant, "[Irrelevant]": 1 - relevant}


def levels(name, *values):
    return dict(zip(group(name).tokens, values, strict=True))


NEUTRAL = levels("issup", 0, 0, 1) | levels("isuse", 0, 0, 1, 0, 0)
"""Support 0 and utility 0: the passage's weight is its relevance alone."""


def choose(table, *choices, names=("d1", "d2"), **options):
    settings = {"mode": "always", "undefined": "zero", **options}
    return run(speller(table), *names, choices=choices, **settings)


def test_defect_40_option_likelihood():
    """Weights (2, 1), p(A) = (0.1, 0.9), p(B) = (0.9, 0.1): A = 1.1, B = 1.9, so B; a vote over strings would tie."""
    table = {}
    for name, relevant, a, label in (
        ("d1", 0.8, 0.1, "[Relevant]"),
        ("d2", 0.4, 0.9, "[Irrelevant]"),
    ):
        judged = f"[Retrieval]<{name}>{label}"
        table |= {f"[Retrieval]<{name}>": isrel(relevant), judged: {"A": a, "B": 1 - a}}
        table |= {
            f"{judged}{option}{end}": NEUTRAL
            for option in "AB"
            for end in ("", "[No support / Contradictory]")
        }
    # 2.5 * (0.8, 0.4) = (2, 1)
    done = choose(table, "A", "B", weights=Weights(isrel=2.5))
    assert done.answer.text == "B"
    totals = {node.text: node.path_score for node in done.answer.trace.nodes}
    assert totals == pytest.approx({"A": 1.1, "B": 1.9})


def test_the_published_code_votes_with_the_texts_that_were_written():
    """p(a) .9 and p(b) .1 after both passages: only `a` is written, whatever the critiques of `b` would be."""
    tree = {
        "[Retrieval]<d1>": "{isrel .9 .1}a{issup .1 .1 .8}</s>",
        "[Retrieval]<d2>": "{isrel .9 .1} a{issup .2 .1 .7}</s>",
        "[Retrieval]<d3>": "{isrel .9 .1}b{issup 1 0 0}</s>",
    }
    how = {
        "mode": "always",
        "likelihood": "none",
        "undefined": "zero",
        "max_segments": 1,
    }
    found = run(tree, "d1", "d2", "d3", choices=("a", "b"), aggregate="vote", **how)
    assert found.answer.text == "a"
    totals = {node.text: node.path_score for node in found.answer.trace.nodes}
    assert totals == pytest.approx({"a": (0.9 + 0.15) + (0.9 + 0.25), "b": 0.9 + 1.0})
    assert Trace.from_json(found.answer.trace.to_json()) == found.answer.trace
    best = found.answer.rescore(Weights(isrel=0.0, issup=10.0))
    assert (best.text, best.exact) == ("b", True)  # 1.5 + 2.5 against 10


def test_length_is_taken_out_by_tokens_or_characters():
    """Log-probabilities -2 and -3 of one token each; four and twelve characters, eight on average."""
    given = [-2, -3], ["long", "rather long."], [(1,), (2,)]
    for unit, odds in (("none", 1), ("tokens", 1), ("characters", -2)):
        shares = [1 / (1 + math.exp(-odds)), 1 / (1 + math.exp(odds))]
        assert normalised(*given, unit) == pytest.approx(shares)
    table = {"[No Retrieval]": {"A": 0.3, "B": 0.5}, "[No Retrieval]B": {"b": 0.5}}
    table |= {"[No Retrieval]A": NEUTRAL, "[No Retrieval]Bb": NEUTRAL}
    # 0.3 against 0.25, and against 0.5
    for unit, text in (("none", "A"), ("tokens", "Bb")):
        assert choose(table, "A", "Bb", mode="never", length=unit).answer.text == text
    with refused("length='words'"):
        choose(table, "A", "Bb", mode="never", length="words")


def test_the_engine_says_how_many_ids_one_request_may_watch():
    options = [chr(0x4E00 + i) for i in range(30)]
    table = {"[No Retrieval]": dict.fromkeys(options, 1 / 60) | {options[20]: 0.5}}
    table |= {f"[No Retrieval]{o}": NEUTRAL for o in options}
    done = choose(table, *options, mode="never", limits=replace(LIMITS, max_watch=20))
    assert done.answer.text == options[20]
    assert max(len(request.watch_ids) for request in done.engine.requests) == 20


@pytest.mark.parametrize("wrong", [[], ["A"], "AB", ["A", "A"], ["A", " "], ["A", 1]])
def test_wrong_options_are_refused(wrong):
    with refused("option"):
        run({}, choices=wrong, mode="never")
