"""Judges in the beam, in place of a token critique or beside it, and guardrails before anything is written."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from json_files import table
from random_model import numbers, policies, random_model, random_search, seeds, weights
from refusals import refused
from scripted_judges import Scripted, distribution, draw, says, seen
from swept import sweep
from written import PROMPTING, TWO_WAYS, VOCABULARY, passages, run

from retrieval.passage import Passage
from selfrag.decoding.answer import segments_of
from selfrag.decoding.policy import Decoding
from selfrag.decoding.segments import read_critique
from selfrag.decoding.trace import UNUSABLE
from selfrag.experiments.studies import rescored
from selfrag.judges.sentences import judged_turn
from selfrag.reflection.findings import Finding, Reflection
from selfrag.reflection.inputs import SiteKind
from selfrag.reflection.intrinsic_labels import (
    ANSWERABLE,
    CERTAINTY,
    CITED,
    FAITHFULNESS,
    RELEVANCE,
)
from selfrag.reflection.judge import Scope
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import ISSUP, ISUSE, Role
from selfrag.reflection.requests import Generate
from selfrag.reflection.weights import Weights


def by_text(**known):
    return lambda state: known[state.text.rstrip(".")]


def judged_by(*critics, names=("d1", "d2"), tree=TWO_WAYS, **options):
    return run(tree, *names, given={"judges": critics}, **options)


# --- joining, standing in: hand-worked ----------------------------------------------------------------------------


def test_a_joined_term_adds_its_weighted_score():
    critic = Scripted("nli", by_text(Close=says(1, 0, 0), Sure=says(0, 0, 1)))
    plain = run(TWO_WAYS, "d1", "d2")
    joined = judged_by(critic, judges="nli", weights=Weights(judges={"nli": 3}))
    assert (plain.answer.text, joined.answer.text) == ("Sure.", "Close.")
    for text, more in (("Close.", 3), ("Sure.", 0)):
        score = plain.node(text).score + more
        assert joined.node(text).score == pytest.approx(score)
    without = joined.answer.rescore(Weights(judges={"nli": 0}))
    assert (without.text, without.exact) == ("Sure.", True)


CLOSE = says(0.9, 0.1, 0, 0, labels=FAITHFULNESS)
SURE = says(0, 0.1, 0.9, 0, labels=FAITHFULNESS)


def test_standing_in_uses_the_weight_of_the_critique_and_its_labels_are_read_by_their_value():
    critic = Scripted("nli", by_text(Close=CLOSE, Sure=SURE))
    found = judged_by(critic, judges="nli=issup", weights=Weights(issup=2))
    assert found.answer.text == "Close."
    node = found.node("Close.")
    assert list(node.judgments) == [Role.RELEVANCE, Role.SUPPORT, Role.UTILITY]
    assert node.score == pytest.approx(0.5 + 0.9 + 2 * 0.95)
    assert found.answer.segments[0].judgments[Role.SUPPORT].label == "faithful"
    held = judged_by(critic, judges="nli=issup", require={"issup": "Fully supported"})
    assert held.statuses() == {"Close.": "finished", "Sure.": "forbidden"}
    relevance = Scripted(
        "cr", lambda state: says(0, 0, 1, labels=RELEVANCE), labels=RELEVANCE
    )
    answer = judged_by(relevance, names=["d2"], judges="cr=isrel").answer
    assert (answer.text, answer.citations) == ("Sure.", ())


def test_several_places_rank_by_their_mean_and_reject_by_their_worst():
    critic = Scripted(
        "nli", by_text(Close=[says(1, 0, 0), says(0, 0, 1)], Sure=[says(0, 1, 0)] * 2)
    )
    weights = Weights(0, 1, 0, judges={"nli": 1})
    node = judged_by(critic, judges="nli", weights=weights).node("Close.")
    assert (node.judges["nli"].distribution, node.judges["nli"].site) == (
        (0.5, 0.0, 0.5),
        "segment 1, passage d1",
    )
    assert len(node.places["nli"]) == 2
    gated = judged_by(critic, judges="nli>=0.1", weights=weights)
    assert gated.statuses() == {"Close.": "forbidden", "Sure.": "finished"}
    state = seen("Q", (), "A is. It is so.")
    sites = [
        state.in_message(SiteKind.SENTENCE, 1, *span) for span in ((0, 3), (6, 15))
    ]
    made = Judgment(CITED, "x", (1.0, 0.0), 0.5), Judgment(CITED, "y", (0.0, 1.0), 1.0)
    # by the lengths of the sentences, 3 and 9
    cited = Reflection(state, tuple(map(Finding, sites, made)))
    assert cited.mean("here", None) == Judgment(
        CITED, "here", (0.25, 0.75), (0.5 + 3 * 1.0) / 4
    )


def test_a_judge_gets_the_results_of_its_own_requests_and_they_are_counted():
    class Reading(Scripted):
        """Judges by what the engine answered in a second round."""

        def judge(self, inputs):
            assert len((yield [Generate(PROMPTING.prompt("Q"), 1)])) == 1
            start = PROMPTING.prompt("Q")
            ids = [(*start, *PROMPTING.codec.encode(one.text)) for one in inputs]
            watch = VOCABULARY.watch
            results = yield [Generate(one, 1, watch_ids=watch) for one in ids]
            return [
                Reflection.of(
                    state,
                    judged_turn(state),
                    read_critique(VOCABULARY, ISSUP, result.watched[0], "x"),
                )
                for state, result in zip(inputs, results, strict=True)
            ]

    tree = TWO_WAYS | {"Close.": "{issup .8 .1 .1}", "Sure.": "{issup .1 .1 .8}"}
    found = judged_by(Reading("nli", None), tree=tree, judges="nli=issup")
    support = found.node("Sure.").judgments[Role.SUPPORT].distribution
    assert found.answer.text == "Close."
    assert support == pytest.approx((0.1, 0.1, 0.8))
    requests, usage = found.engine.requests, found.answer.usage
    assert usage.requests == len(requests) == 6
    assert usage.prompt_tokens == sum(len(one.prompt_ids) for one in requests)


def test_what_a_judge_sees():
    tree = {
        "[Retrieval]<d1>": "[Relevant]One.[Fully supported]{retrieve .1 .1 .8}",
        "[Retrieval]<d1>[Relevant]One.[Fully supported][Continue to Use Evidence]": "Two.{isuse 0 0 0 0 1}</s>",
    }
    segment = Scripted("nli", lambda state: says(1, 0, 0))
    passage = Scripted(
        "cr", lambda state: says(1, 0, 0, labels=RELEVANCE), labels=RELEVANCE
    )
    whole = Scripted(
        "use", lambda state: says(0, 0, 0, 0, 1, labels=ISUSE), labels=ISUSE
    )
    found = judged_by(
        segment,
        passage,
        whole,
        tree={"": "{~retrieve 1 0 0}x"} | tree,
        names=["d1"],
        judges=["nli", "cr", "use"],
    )
    assert found.answer.text == "One. Two."
    d1 = passages("d1")
    assert (
        segment.inputs == whole.inputs == [seen("Q", d1, "One."), seen("Q", d1, "Two.")]
    )
    assert passage.inputs == [seen("Q", d1)]  # once for all that is written from it
    judged_by(whole, segment, mode="never", judges=["use", "nli"])
    assert whole.inputs[2].text == "Own."
    assert len(segment.inputs) == 2  # nothing to judge without a passage


def test_dear_judges_judge_survivors_only_and_rejected_ones_are_replaced():
    tree = {
        f"[Retrieval]<d{i}>": (f"T{i}.{{issup 1 0 0}}</s>", 1 - i / 10)
        for i in range(1, 6)
    }
    good, bad = says(1, 0, 0), says(0, 0, 1)
    cheap = Scripted("cheap", lambda state: good, 1)
    dear = Scripted("dear", lambda one: bad if one.text in "T1.T3." else good, 3)
    how = {"judges": ["dear>=0.5", "cheap"], "survivors": (4, 4, 2), "mode": "always"}
    found = judged_by(
        cheap, dear, tree=tree, names=["d1", "d2", "d3", "d4", "d5"], **how
    )
    # T1 and T3 fail, so T3 and T4 come up
    for judge in (cheap, dear):
        assert [m.text for m in judge.inputs] == ["T1.", "T2.", "T3.", "T4."]
    statuses = "forbidden finished forbidden finished pruned"
    assert [*found.statuses().values()] == statuses.split()
    assert "dear" not in found.node("T5.").judges
    assert found.answer.rescore() == found.answer
    # as they count where none are given
    given = Weights(judges={"dear": 1, "cheap": 1})
    assert found.answer.rescore(given).exact
    other = found.answer.rescore(Weights(judges={"dear": 0}))
    # nobody knows whom other weights had let through
    assert (other.text, other.exact) == ("T2.", False)
    assert not other.rescore(found.answer.trace.decoding.weights).exact


def test_each_of_three_tiers_lets_more_through_where_the_next_one_runs_out():
    tree = {
        f"[Retrieval]<{name}>": (f"{name}.</s>", 0.9 - i / 10)
        for i, name in enumerate("ABCD")
    }

    def rejecting(name, cost, text):
        known = {text: says(0, 0, 1)}
        return Scripted(name, lambda one: known.get(one.text, says(1, 0, 0)), cost)

    critics = [
        rejecting("x", 1, "C."),
        rejecting("y", 2, "B."),
        rejecting("z", 3, "A."),
    ]
    how = {"judges": ["x>=0.5", "y>=0.5", "z>=0.5"], "survivors": (1, 1, 1)}
    found = judged_by(*critics, tree=tree, names="ABCD", mode="always", **how)
    assert found.answer.text == "D."
    asked = ["".join(state.text for state in critic.inputs) for critic in critics]
    assert asked == ["A.B.C.D.", "A.B.D.", "A.D."]
    assert found.answer.rescore() == found.answer


def test_other_settings_are_exact_where_a_judge_has_room_for_all():
    tree = {
        "[Retrieval]<d1>": ("{isrel 1 0}A.{isuse 0 0 1 0 0}</s>", 0.9),
        "[Retrieval]<d2>": ("{isrel .5 .5}B.{isuse 0 0 0 0 1}</s>", 0.9),
    }
    dear = Scripted("dear", lambda state: says(1, 0, 0), 3)
    how = {"mode": "always", "judges": "dear", "weights": Weights(1, 0, 0)}
    full, one = (
        judged_by(dear, tree=tree, survivors=(9, 9, room), **how).answer
        for room in (2, 1)
    )
    other = Weights(0, 0, 1)
    assert (full.rescore(other).text, full.rescore(other).exact) == ("B.", True)
    assert not one.rescore(other).exact
    asked = [replace(one.trace.decoding, weights=other), one.trace.decoding]
    assert [one.exact for one in rescored(one.trace, {}, asked)] == [False, True]


WRONG = """
judges | "x=isfun" | choose one of isrel, issup, isuse
judges | ["x", "x"] | named twice
judges | ["x=issup", "y=issup"] | two judges replace issup
judges | "x>=much" | not a number
judges | [3] | give a ScoreTerm
judges | "issup" | no name of a judge
guardrails | "ad<0.5" | EFFECT
guardrails | "ad<0.5:explode" | choose one of abstain, write, drop, retrieve
survivors | [1, 2] | three whole numbers
weights | Weights(judges={"x": 1}) | no judge of that name
abstention | " " | abstention
require | {"isuse": 5} | unknown isuse label 5; known: '1', '2'
forbid | {"isuse": [4, 5]} | unknown isuse label 4
forbid | {3: "5"} | unknown reflection group 3
forbid | {"retrieve": "Retrieval"} | only isrel, issup, isuse can be constrained
require | {"isrel": []} | names no label
mode | "sometimes" | mode
retrieve_once | 1 | give True or False
shortlist | 4 | shortlist=4
"""


@pytest.mark.parametrize("name, value, message", table(WRONG))
def test_wrong_settings_are_named(name, value, message):
    with refused(message):
        Decoding(**{name: eval(value)})


@pytest.mark.parametrize("name", [field.name for field in fields(Decoding)])
def test_a_setting_of_any_size_is_refused_in_one_short_line(name):
    with refused() as caught:
        Decoding(**{name: [["long\n" * 1000]]})
    assert len(str(caught.value)) < 250
    assert "\n" not in str(caught.value)


def test_a_judge_that_is_not_there_is_named():
    with refused(r"no judge 'nli'"):
        run(TWO_WAYS, "d1", judges="nli")
    with refused("not multiple choice"):
        run(TWO_WAYS, "d1", judges="nli", choices=["A", "B"])


# --- properties on random trees -----------------------------------------------------------------------------------

joined_policies = st.builds(
    replace,
    policies,
    judges=st.sampled_from(
        [("a",), ("a=issup", "b"), ("a=issup>=0.3", "b=isrel"), ("a>=0.2", "b>=0.3")]
    ),
    survivors=st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3)),
)


def random_critics(seed):
    def verdict(name, places):
        def judge(state):
            key = (name, state.text, *(p.id for p in state.passages))
            if draw(seed, "defined", *key).random() < 0.2:
                return None
            return [says(*distribution(seed, *key, str(i))) for i in range(places)]

        return judge

    chance = draw(seed, "critics")
    return [
        Scripted(
            "a",
            verdict("a", chance.choice((1, 2))),
            chance.randrange(4),
            asks=chance.random() < 0.5,
        ),
        Scripted(
            "b", verdict("b", 1), chance.randrange(4), chance.choice((ISSUP, ISUSE))
        ),
    ]


def judged(seed, policy):
    return run(
        random_model(seed),
        search=random_search(seed),
        policy=policy,
        given={"judges": random_critics(seed)},
    )


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seeds, joined_policies, weights, numbers)
def test_rescoring_and_the_room_of_each_level(seed, policy, other, joined):
    """The recorded settings give the recorded answer; other settings, if exact, that of a fresh decode."""
    found = judged(seed, policy)
    answer = found.answer
    assert answer.rescore(policy.weights, policy.threshold) == answer
    assert [s.text for s in found.commits] == [s.text for s in answer.segments]

    assert answer.usage.requests == len(found.engine.requests)
    for cost, group in policy.cascade_levels(answer.trace.costs):
        for part in (part for part in group if part.replaces is None):
            asked = [
                n.depth
                for n in answer.trace.nodes
                if part.judge in n.judges and n.status != "forbidden"
            ]
            room = policy.level_capacity(cost)
            assert room is None or all(asked.count(depth) <= room for depth in asked)
    other = replace(other, judges=dict.fromkeys(policy.terms[3:], joined))
    rescored = answer.rescore(other)
    rows = np.array([one.row(policy.terms) for one in (policy.weights, other)])
    best, exact = sweep([answer], rows)
    assert list(exact[0]) == [True, rescored.exact]
    assert [None if node < 0 else node for node in best[0]] == [
        answer.trace.best,
        rescored.trace.best,
    ]
    if rescored.exact:
        fresh = judged(seed, replace(policy, weights=other)).answer
        mine, theirs = (
            [(s.text, s.score, s.judgments) for s in one.segments]
            for one in (rescored, fresh)
        )
        assert mine == theirs


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(seeds, policies, st.integers(0, 3), st.booleans())
def test_a_judge_with_the_tokens_distribution_changes_nothing(seed, policy, cost, asks):
    """What the tokens said of each candidate, said by a critic in their place: only who judged is another."""
    # Constraints on IsSup and undefined="force" would have tokens read where none was emitted.
    policy = replace(
        policy,
        history="text",
        require={},
        undefined={"force": "skip"}.get(policy.undefined, "zero"),
    )
    tokens = run(random_model(seed), search=random_search(seed), policy=policy).answer
    said = {}
    for node in tokens.trace.nodes:
        before = segments_of(tokens.trace, node.parent)[0].rstrip()
        said.setdefault((before, node.passage, node.text.strip()), set()).add(
            node.judgments.get(Role.SUPPORT)
        )
    assume(all(len(judgments) == 1 for judgments in said.values()))
    # No critic is asked about an empty text; tokens may judge it.
    assume(all(text or judgments == {None} for (_, _, text), judgments in said.items()))

    def support(state):
        (found,) = said[state.before.rstrip(), state.passages[0], state.text]
        return found

    given = {
        "judges": [Scripted("judge", support, cost, asks=asks, scope=Scope.ANSWER)]
    }
    replaced = replace(policy, judges="judge=issup", survivors=(10_000,) * 3)
    answer = run(
        random_model(seed), search=random_search(seed), policy=replaced, given=given
    ).answer
    assert [*map(plain, answer.trace.nodes)] == [*map(plain, tokens.trace.nodes)]
    assert (answer.text, answer.trace.best) == (tokens.text, tokens.trace.best)
    other = Weights(0.3, 2.0, -0.5)
    mine, theirs = answer.rescore(other), tokens.rescore(other)
    assert (mine.text, mine.exact) == (theirs.text, theirs.exact)


def plain(node):
    """Without who judged; nobody is asked about candidates that no weights can bring back."""
    usable = node.status not in UNUSABLE
    known = {
        role: (one.distribution, one.coverage)
        for role, one in node.judgments.items()
        if one is not None and (usable or role != Role.SUPPORT)
    }
    return (
        node.parent,
        node.text,
        node.status,
        known,
        (node.score, node.path_score) if usable else None,
    )


# --- gates: abstain, write without evidence, leave passages out, search only where unsure -------------------------


def answerable(probability):
    return Scripted(
        "ad",
        lambda state: says(probability, 1 - probability, labels=ANSWERABLE),
        labels=ANSWERABLE,
        asks=True,
    )


def certain(digit):
    row = [float(i == digit) for i in range(10)]
    return Scripted("uq", lambda state: says(*row, labels=CERTAINTY), labels=CERTAINTY)


def test_an_unanswerable_question_gets_the_fixed_text_and_nothing_is_written():
    gate = answerable(0.2)
    found = judged_by(gate, guardrails="ad<0.5:abstain")
    answer, trace = found.answer, found.answer.trace
    assert (answer.text, answer.segments) == (Decoding.abstention, ())
    assert answer.abstained
    assert gate.inputs == [seen("Q", passages("d1", "d2"))]
    (decision,) = trace.decisions
    assert (decision.action, decision.guardrails[0][0]) == ("abstain", "ad")
    assert decision.reason.endswith("ad 0.200 < 0.5, abstain")
    # the first boundary and the gate
    assert len(found.engine.requests) == answer.usage.requests == 2
    assert answer.rescore().text == answer.text
    # at .95 nothing would have been searched
    exact = [answer.rescore(threshold=t).exact for t in (0.5, 0.95)]
    assert exact == [True, False]


def test_passages_that_do_not_help_are_left_out_and_judged_once_two_texts_under_one_id_apart():
    def relevance(state):
        return says(
            *((1, 0, 0) if state.passages[0] == good else (0, 0, 1)), labels=RELEVANCE
        )

    (good,) = passages("d1")
    judge = Scripted("cr", relevance, labels=RELEVANCE)
    found = {"Q": (good, Passage("d1", "Other text.", "Other title"))}
    settings = {"guardrails": "cr<0.5:drop", "judges": "cr=isrel"}
    answer = run(TWO_WAYS, search=found, given={"judges": [judge]}, **settings).answer
    assert answer.text == "Close."
    (decision, *_) = answer.trace.decisions
    assert decision.passages == (good,)
    assert [judgment.site for _, judgment in decision.guardrails] == [
        "passage d1",
        "passage d1",
    ]
    assert "passage d1 left out" in decision.reason
    # the score asks no more
    assert [state.passages for state in judge.inputs] == [(one,) for one in found["Q"]]


def test_certainty_routes_the_search():
    def routed(digit, **how):
        judge = certain(digit)
        how["guardrails"] = "uq<0.5:retrieve"
        return judged_by(judge, names=["d2"], **how), judge.inputs

    unsure, _ = routed(1, threshold=1.0)
    assert unsure.answer.text == "Sure."
    # the model's own decision did not matter
    assert unsure.answer.rescore(threshold=0.0).exact
    sure, _ = routed(9, threshold=0.0)
    assert (sure.answer.text, sure.searches.queries) == ("Own.", [])
    assert sure.answer.trace.decisions[0].reason == "uq 0.950, no search"
    again = sure.answer.rescore(threshold=1.0)
    assert (again.text, again.exact) == ("Own.", True)
    # the mode is the caller's own decision
    assert routed(9, mode="always")[1] == []
