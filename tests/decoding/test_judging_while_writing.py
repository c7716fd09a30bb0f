"""Judges in the beam, in place of a token critique or beside it, and guardrails before anything is written."""

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from random_model import numbers, policies, random_model, random_search, seeds, weights
from scripted_judges import Scripted, distribution, draw, says, seen
from written import PROMPTING, TWO_WAYS, VOCABULARY, passages, reply, run

from retrieval.passage import Passage
from selfrag.common.errors import UserError
from selfrag.decoding.answer import segments_of
from selfrag.decoding.policy import Decoding
from selfrag.decoding.segments import read_critique
from selfrag.decoding.sweep import sweep
from selfrag.decoding.trace import UNUSABLE, Trace
from selfrag.experiments.studies import rescored
from selfrag.judges.sentences import judged_turn
from selfrag.prompting import Turn
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
from selfrag.reflection.requests import Generate, Generated
from selfrag.reflection.weights import Weights


def by_text(**known):
    return lambda state: known[state.text.rstrip(".")]


def judged_by(*critics, names=("d1", "d2"), tree=TWO_WAYS, **options):
    return run(tree, *names, given={"judges": critics}, **options)


# --- joining, standing in: hand-worked ----------------------------------------------------------------------------


def test_a_joined_term_adds_its_weighted_score():
    critic = Scripted("nli", by_text(Close=says(1, 0, 0), Sure=says(0, 0, 1)))
    plain = run(TWO_WAYS, "d1", "d2").answer
    joined = judged_by(critic, judges="nli", weights=Weights(judges={"nli": 3})).answer
    assert (plain.text, joined.text) == ("Sure.", "Close.")
    before, after = (
        {n.text: n.score for n in one.trace.nodes} for one in (plain, joined)
    )
    assert after == pytest.approx(
        {"Close.": before["Close."] + 3.0, "Sure.": before["Sure."]}
    )
    without = joined.rescore(Weights(judges={"nli": 0}))
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
        """Judges by what the engine answered to its second request, in a second round."""

        def judge(self, inputs):
            assert len((yield [Generate(PROMPTING.prompt("Q"), 1)])) == 1
            ids = [
                (*PROMPTING.prompt("Q"), *PROMPTING.codec.encode(state.text))
                for state in inputs
            ]
            results = yield [
                Generate(one, 1, watch_ids=VOCABULARY.watch) for one in ids
            ]
            rows = [r.watched[0] for r in results if isinstance(r, Generated)]
            judgments = [read_critique(VOCABULARY, ISSUP, row, "x") for row in rows]
            return [
                Reflection.of(state, judged_turn(state), one)
                for state, one in zip(inputs, judgments, strict=True)
            ]

    tree = TWO_WAYS | {"Close.": "{issup .8 .1 .1}", "Sure.": "{issup .1 .1 .8}"}
    found = judged_by(Reading("nli", by_text()), tree=tree, judges="nli=issup")
    assert found.answer.text == "Close."
    assert found.node("Sure.").judgments[Role.SUPPORT].distribution == pytest.approx(
        (0.1, 0.1, 0.8)
    )
    assert found.answer.usage.requests == len(found.engine.requests) == 6
    assert found.answer.usage.prompt_tokens == sum(
        len(request.prompt_ids) for request in found.engine.requests
    )


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
    cheap = Scripted("cheap", lambda state: says(1, 0, 0), 1)
    dear = Scripted(
        "dear",
        lambda state: says(0, 0, 1) if state.text in ("T1.", "T3.") else says(1, 0, 0),
        3,
    )
    settings = {
        "mode": "always",
        "judges": ["dear>=0.5", "cheap"],
        "survivors": (4, 4, 2),
    }
    found = judged_by(
        cheap, dear, tree=tree, names=[f"d{i}" for i in range(1, 6)], **settings
    )
    assert [m.text for m in cheap.inputs] == ["T1.", "T2.", "T3.", "T4."]
    # T1 and T3 fail, so T3 and T4 come up
    assert [m.text for m in dear.inputs] == [
        "T1.",
        "T2.",
        "T3.",
        "T4.",
    ]
    assert [*found.statuses().values()] == [
        "forbidden",
        "finished",
        "forbidden",
        "finished",
        "pruned",
    ]
    assert "dear" not in found.node("T5.").judges
    assert found.answer.rescore() == found.answer
    assert found.answer.rescore(
        Weights(judges={"dear": 1, "cheap": 1})
    ).exact  # as they count where none are given
    other = found.answer.rescore(Weights(judges={"dear": 0}))
    # nobody knows whom other weights had let through
    assert (other.text, other.exact) == (
        "T2.",
        False,
    )
    assert not other.rescore(found.answer.trace.decoding.weights).exact


def test_other_settings_are_exact_where_a_judge_has_room_for_all():
    tree = {
        "[Retrieval]<d1>": ("{isrel 1 0}A.{isuse 0 0 1 0 0}</s>", 0.9),
        "[Retrieval]<d2>": ("{isrel .5 .5}B.{isuse 0 0 0 0 1}</s>", 0.9),
    }
    dear = Scripted("dear", lambda state: says(1, 0, 0), 3)
    settings = {
        "tree": tree,
        "mode": "always",
        "judges": "dear",
        "weights": Weights(1, 0, 0),
    }
    full, one = (
        judged_by(dear, survivors=(9, 9, room), **settings).answer for room in (2, 1)
    )
    assert [m.text for m in dear.inputs] == ["A.", "B.", "A."]
    other = Weights(0, 0, 1)
    assert (full.rescore(other).text, full.rescore(other).exact) == ("B.", True)
    assert not one.rescore(other).exact
    asked = [replace(one.trace.decoding, weights=other), one.trace.decoding]
    assert [outcome.exact for outcome in rescored(one.trace, {}, asked) if outcome] == [
        False,
        True,
    ]


@pytest.mark.parametrize(
    "options, message",
    [
        ({"judges": "x=isfun"}, "choose one of isrel, issup, isuse"),
        ({"judges": ["x", "x"]}, "named twice"),
        ({"judges": ["x=issup", "y=issup"]}, "two judges replace issup"),
        ({"judges": "x>=much"}, "not a number"),
        ({"judges": [3]}, "give a ScoreTerm"),
        ({"judges": "issup"}, "no name of a judge"),
        ({"guardrails": "ad<0.5"}, "EFFECT"),
        (
            {"guardrails": "ad<0.5:explode"},
            "choose one of abstain, write, drop, retrieve",
        ),
        ({"survivors": (1, 2)}, "three whole numbers"),
        ({"weights": Weights(judges={"x": 1})}, "no judge of that name"),
        ({"abstention": " "}, "abstention"),
        ({"require": {"isuse": 5}}, "unknown isuse label 5; known: '1', '2'"),
        ({"forbid": {"isuse": [4, 5]}}, "unknown isuse label 4"),
        ({"forbid": {3: "5"}}, "unknown reflection group 3"),
        (
            {"forbid": {"retrieve": "Retrieval"}},
            "only isrel, issup, isuse can be constrained",
        ),
        ({"require": {"isrel": []}}, "names no label"),
        ({"mode": "sometimes"}, "mode"),
        ({"retrieve_once": 1}, "give True or False"),
    ],
)
def test_wrong_settings_are_named(options, message):
    with pytest.raises(UserError, match=message):
        Decoding(**options)


@pytest.mark.parametrize("name", [field.name for field in fields(Decoding)])
def test_a_setting_of_any_size_is_refused_in_one_short_line(name):
    with pytest.raises(UserError) as caught:
        Decoding(**{name: [["long\n" * 1000]]})
    assert len(str(caught.value)) < 250
    assert "\n" not in str(caught.value)


def test_a_judge_that_is_not_there_is_named():
    with pytest.raises(UserError, match=r"no judge 'nli'"):
        run(TWO_WAYS, "d1", judges="nli")
    with pytest.raises(UserError, match="not multiple choice"):
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
    read = Trace.from_json(answer.trace.to_json())
    assert (read.nodes, read.as_dict()) == (answer.trace.nodes, answer.trace.as_dict())
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
    replaced = replace(policy, judges="judge=issup", survivors=(10_000,) * 3)  # type: ignore[arg-type]
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

YES = reply("[Relevant]Yes.[Fully supported]</s>")


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
    found = run(
        TWO_WAYS, "d1", "d2", guardrails="ad<0.5:abstain", given={"judges": [gate]}
    )
    answer = found.answer
    assert (answer.text, answer.segments, answer.abstained) == (
        "I don't know the answer",
        (),
        True,
    )
    assert gate.inputs == [seen("Q", passages("d1", "d2"))]
    (decision,) = answer.trace.decisions
    assert (decision.action, [name for name, _ in decision.guardrails]) == (
        "abstain",
        ["ad"],
    )
    assert decision.reason.endswith("ad 0.200 < 0.5, abstain")
    # the first boundary and the gate
    assert len(found.engine.requests) == answer.usage.requests == 2
    assert (answer.rescore().text, answer.rescore(threshold=0.5).exact) == (
        answer.text,
        True,
    )
    assert not answer.rescore(threshold=0.95).exact  # nothing would have been searched
    assert Trace.from_json(answer.trace.to_json()) == answer.trace


def test_a_gate_can_take_the_evidence_away():
    answer = run(
        TWO_WAYS,
        "d1",
        "d2",
        guardrails="ad<0.5:write",
        given={"judges": [answerable(0.2)]},
    ).answer
    assert (answer.text, answer.citations) == ("Own.", ())
    assert answer.trace.decisions[0].action == "retrieve"
    assert answer.trace.decisions[0].reason.endswith("ad 0.200 < 0.5, no evidence")
    assert answer.rescore(Weights(issup=3)).exact


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
    unsure = run(
        TWO_WAYS,
        "d2",
        guardrails="uq<0.5:retrieve",
        threshold=1.0,
        given={"judges": [certain(1)]},
    )
    assert unsure.answer.text == "Sure."
    assert unsure.answer.rescore(
        threshold=0.0
    ).exact  # the model's own decision did not matter
    sure = run(
        TWO_WAYS,
        "d2",
        guardrails="uq<0.5:retrieve",
        threshold=0.0,
        given={"judges": [certain(9)]},
    )
    assert (sure.answer.text, sure.searches.queries) == ("Own.", [])
    assert sure.answer.trace.decisions[0].reason == "uq 0.950, no search"
    for threshold in (0.0, 1.0):
        again = sure.answer.rescore(threshold=threshold)
        assert (again.text, again.exact) == ("Own.", True)
    always = certain(9)
    run(
        TWO_WAYS,
        "d2",
        guardrails="uq<0.5:retrieve",
        mode="always",
        given={"judges": [always]},
    )
    assert always.inputs == []  # the mode is the caller's own decision


def test_a_query_takes_the_place_of_the_question_in_searches_only():
    tree = {
        "": "{~retrieve .9 .1 0}x",
        "[Retrieval]<d1>": "[Relevant]One.[Fully supported]{retrieve .9 .1 0}",
        "[Retrieval]<d1>[Relevant]One.[Fully supported][Retrieval]<d2>": "[Relevant]Two.[Fully supported]</s>",
    }
    search = {"Who?": passages("d1"), "Who? One.": passages("d2")}
    found = run(tree, question="and he?", search=search, given={"query": "Who?"})
    assert (found.answer.question, found.answer.text) == ("and he?", "One. Two.")
    assert [d.query for d in found.answer.trace.decisions] == ["Who?", "Who? One."]


def test_earlier_turns_stand_before_the_prompt():
    judge = Scripted(
        "ad", lambda state: says(1, 0, labels=ANSWERABLE), labels=ANSWERABLE
    )
    history = (Turn("user", "Hi"), Turn("assistant", "Hello."), Turn("user", "Who?"))
    given = {"history": history, "judges": [judge]}
    engine = run(
        lambda request: YES,
        "d1",
        guardrails="ad<0.5:abstain",
        mode="always",
        given=given,
    ).engine
    text = "".join(chr(i - 100) for i in engine.requests[0].prompt_ids if i >= 100)
    before = (
        "### Instruction:\nHi\n\n### Response:\nHello.\n\n"
        "### Instruction:\nWho?\n\n### Response:\n\n\n"
        "### Instruction:\nQ\n\n### Response:\n"
    )
    assert text.startswith(before)
    assert judge.inputs == [seen("Q", passages("d1"), history=history)]
