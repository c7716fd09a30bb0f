"""Reflectors in the beam: in place of a token critique, beside it, on survivors only; rescoring stays exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from random_model import random_model, random_search
from random_policies import policies
from scripted_critics import Scripted, distribution, draw, says
from written import PROMPTING, TWO_WAYS, VOCABULARY, Run, passages, run

from selfrag.decoding.answer import segments_of, sweep
from selfrag.decoding.policy import Decoding
from selfrag.decoding.reflectors import Asking, Moment, Verdict
from selfrag.decoding.requests import Generate, Generated
from selfrag.decoding.trace import UNUSABLE, Trace
from selfrag.errors import UserError
from selfrag.experiments.studies import rescored
from selfrag.intrinsics.labels import FAITHFULNESS, RELEVANCE
from selfrag.reflection.judgment import Judgment, Source
from selfrag.reflection.labels import ISSUP, ISUSE, Role
from selfrag.reflection.weights import Weights

quick = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
seeds = st.integers(0, 2**31)
numbers = st.sampled_from([0.0, 0.5, 1.0, 2.0, -1.0])
START = {"": "{~retrieve .9 .1 0}x"}


def by_text(**known: Any) -> Callable[[Moment], Any]:
    return lambda moment: known[moment.text.rstrip(".")]


# --- joining, standing in, gates: hand-worked ---------------------------------------------------------------------


def test_a_joined_term_adds_its_weighted_score() -> None:
    critic = Scripted("nli", by_text(Close=says(1, 0, 0), Sure=says(0, 0, 1)))
    plain = run(TWO_WAYS, "d1", "d2").answer
    joined = run(
        TWO_WAYS, "d1", "d2", reflectors="nli", weights=Weights(joined={"nli": 3}), given={"critics": [critic]}
    ).answer
    assert (plain.text, joined.text) == ("Sure.", "Close.")
    before = {n.text: n.score for n in plain.trace.nodes}
    after = {n.text: n.score for n in joined.trace.nodes}
    assert after["Close."] == pytest.approx(before["Close."] + 3.0)
    assert after["Sure."] == pytest.approx(before["Sure."])
    assert joined.rescore(Weights(joined={"nli": 0})).text == "Sure."
    assert joined.rescore(Weights(joined={"nli": 0})).exact


def test_standing_in_uses_the_weight_of_the_critique_and_drops_the_token() -> None:
    critic = Scripted(
        "nli", by_text(Close=says(0.9, 0.1, 0, 0, labels=FAITHFULNESS), Sure=says(0, 0.1, 0.9, 0, labels=FAITHFULNESS))
    )
    found = run(TWO_WAYS, "d1", "d2", reflectors="nli=issup", weights=Weights(issup=2), given={"critics": [critic]})
    assert found.answer.text == "Close."
    node = found.node("Close.")
    assert node.judgments[Role.SUPPORT].labels == FAITHFULNESS
    assert list(node.judgments) == [Role.RELEVANCE, Role.SUPPORT, Role.UTILITY]
    assert node.score == pytest.approx(0.5 + 0.9 + 2 * 0.95)
    assert found.answer.segments[0].judgments[Role.SUPPORT].label == "faithful"


def test_several_places_rank_by_their_mean_and_reject_by_their_worst() -> None:
    places = {"Close.": [says(1, 0, 0), says(0, 0, 1)], "Sure.": [says(0, 1, 0), says(0, 1, 0)]}
    critic = Scripted("nli", lambda moment: places[moment.text])
    weights = Weights(0, 1, 0, joined={"nli": 1})
    found = run(TWO_WAYS, "d1", "d2", reflectors="nli", weights=weights, given={"critics": [critic]})
    assert found.node("Close.").joined["nli"].distribution == (0.5, 0.0, 0.5)
    assert len(found.node("Close.").places["nli"]) == 2
    assert found.node("Close.").joined["nli"].site == "segment 1, passage d1"
    gated = run(TWO_WAYS, "d1", "d2", reflectors="nli>=0.1", weights=weights, given={"critics": [critic]})
    assert gated.statuses() == {"Close.": "forbidden", "Sure.": "finished"}
    assert gated.answer.rescore(Weights(5, 0, 0)).text == "Sure."


def test_constraints_read_a_stand_ins_labels_by_their_value() -> None:
    critic = Scripted(
        "nli", by_text(Close=says(0.9, 0.1, 0, 0, labels=FAITHFULNESS), Sure=says(0, 0.1, 0.9, 0, labels=FAITHFULNESS))
    )
    found = run(
        TWO_WAYS, "d1", "d2", reflectors="nli=issup", require={"issup": "Fully supported"}, given={"critics": [critic]}
    )
    assert found.statuses() == {"Close.": "finished", "Sure.": "forbidden"}
    relevance = Scripted("cr", lambda moment: says(0, 0, 1, labels=RELEVANCE), of_passages=True)
    answer = run(TWO_WAYS, "d2", reflectors="cr=isrel", given={"critics": [relevance]}).answer
    assert (answer.text, answer.citations) == ("Sure.", ())


def test_a_reflector_gets_the_results_of_its_own_requests_and_they_are_counted() -> None:
    class Reading(Scripted):
        """Judges by what the engine answered to its second request, in a second round."""

        def judge(self, moments: Sequence[Moment]) -> Asking[list[Verdict]]:
            assert len((yield [Generate(PROMPTING.prompt("Q"), 1)])) == 1
            ids = [(*PROMPTING.prompt("Q"), *PROMPTING.codec.encode(moment.text)) for moment in moments]
            results = yield [Generate(one, 1, watch_ids=VOCABULARY.watch) for one in ids]
            yes = VOCABULARY.columns(ISSUP)
            rows = [r.watched[0][yes] for r in results if isinstance(r, Generated)]
            return [Verdict((Judgment.from_logprobs(ISSUP, row.tolist(), site="x"),)) for row in rows]

    tree = TWO_WAYS | {"Close.": "{issup .8 .1 .1}", "Sure.": "{issup .1 .1 .8}"}
    found = run(tree, "d1", "d2", reflectors="nli=issup", given={"critics": [Reading("nli", by_text())]})
    assert found.answer.text == "Close."
    assert found.node("Sure.").judgments[Role.SUPPORT].distribution == pytest.approx((0.1, 0.1, 0.8))
    assert found.answer.usage.requests == len(found.engine.requests) == 6
    assert found.answer.usage.prompt_tokens == sum(len(request.prompt_ids) for request in found.engine.requests)


def test_what_a_reflector_sees() -> None:
    tree = START | {
        "[Retrieval]<d1>": "[Relevant]One.[Fully supported]{retrieve .1 .1 .8}",
        "[Retrieval]<d1>[Relevant]One.[Fully supported][Continue to Use Evidence]": "Two.{isuse 0 0 0 0 1}</s>",
    }
    segment = Scripted("nli", lambda moment: says(1, 0, 0))
    passage = Scripted("cr", lambda moment: says(1, 0, 0, labels=RELEVANCE), of_passages=True)
    whole = Scripted("use", lambda moment: says(0, 0, 0, 0, 1, labels=ISUSE), needs_evidence=False)
    found = run(tree, "d1", reflectors=["nli", "cr", "use"], given={"critics": [segment, passage, whole]})
    assert found.answer.text == "One. Two."
    (d1,) = passages("d1")
    assert segment.moments == [
        Moment("Q", (), (d1,), "", "One."),
        Moment("Q", (), (d1,), "One.", "Two."),
    ]
    assert passage.moments == [Moment("Q", (), (d1,))]  # once for all that is written from it
    assert whole.moments == segment.moments
    own = Scripted("use", lambda moment: says(0, 0, 0, 0, 1, labels=ISUSE), needs_evidence=False)
    run(TWO_WAYS, mode="never", reflectors=["use", "nli"], given={"critics": [own, segment]})
    assert [m.text for m in own.moments] == ["Own."]
    assert len(segment.moments) == 2  # nothing to judge without a passage


def test_dear_reflectors_judge_survivors_only_and_rejected_ones_are_replaced() -> None:
    tree = START | {
        f"[Retrieval]<d{i}>": (f"{{isrel 1 0}}T{i}.{{issup 1 0 0}}{{isuse 0 0 1 0 0}}</s>", p)
        for i, p in enumerate((0.9, 0.8, 0.7, 0.6, 0.5), 1)
    }
    names = [f"d{i}" for i in range(1, 6)]
    cheap = Scripted("cheap", lambda moment: says(1, 0, 0), 1)
    dear = Scripted("dear", lambda moment: says(0, 0, 1) if moment.text in ("T1.", "T3.") else says(1, 0, 0), 3)
    found = run(tree, *names, reflectors=["dear>=0.5", "cheap"], survivors=(4, 4, 2), given={"critics": [cheap, dear]})
    assert [m.text for m in cheap.moments] == ["T1.", "T2.", "T3.", "T4."]
    assert [m.text for m in dear.moments] == ["T1.", "T2.", "T3.", "T4."]  # T1 and T3 fail, so T3 and T4 come up
    assert found.statuses() == {
        "T1.": "forbidden",
        "T2.": "finished",
        "T3.": "forbidden",
        "T4.": "finished",
        "T5.": "pruned",
    }
    assert "dear" not in found.node("T5.").joined
    assert found.answer.rescore() == found.answer
    other = found.answer.rescore(Weights(joined={"dear": 0}))
    assert (other.text, other.exact) == ("T2.", False)  # nobody knows whom other weights had let through
    assert not other.rescore(found.answer.trace.decoding.weights).exact


def test_other_settings_are_exact_where_a_reflector_has_room_for_all() -> None:
    tree = START | {
        "[Retrieval]<d1>": ("{isrel 1 0}A.{issup 1 0 0}{isuse 0 0 1 0 0}</s>", 0.9),
        "[Retrieval]<d2>": ("{isrel .5 .5}B.{issup 1 0 0}{isuse 0 0 0 0 1}</s>", 0.9),
    }
    dear = Scripted("dear", lambda moment: says(1, 0, 0), 3)
    settings = {"reflectors": "dear", "weights": Weights(1, 0, 0), "given": {"critics": [dear]}}
    full, one = (run(tree, "d1", "d2", survivors=(9, 9, room), **settings).answer for room in (2, 1))
    assert [m.text for m in dear.moments] == ["A.", "B.", "A."]
    changed = full.rescore(Weights(0, 0, 1))
    assert (changed.text, changed.exact) == ("B.", True)
    assert not one.rescore(Weights(0, 0, 1)).exact
    other = replace(one.trace.decoding, weights=Weights(0, 0, 1))
    assert [outcome.exact for outcome in rescored(one.trace, {}, [other, one.trace.decoding]) if outcome] == [
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reflectors": "x=isfun"}, "choose one of isrel, issup, isuse"),
        ({"reflectors": ["x", "x"]}, "named twice"),
        ({"reflectors": ["x=issup", "y=issup"]}, "two reflectors replace issup"),
        ({"reflectors": "x>=much"}, "not a number"),
        ({"reflectors": [3]}, "give a ScoreTerm"),
        ({"reflectors": "issup"}, "no name of a reflector"),
        ({"gates": "ad<0.5"}, "EFFECT"),
        ({"gates": "ad<0.5:explode"}, "choose one of abstain, write, drop, retrieve"),
        ({"survivors": (1, 2)}, "three whole numbers"),
        ({"weights": Weights(joined={"x": 1})}, "no reflector of that name"),
        ({"abstention": " "}, "abstention"),
        ({"require": {"isuse": 5}}, "unknown isuse label 5; known: '1', '2'"),
        ({"forbid": {"isuse": [4, 5]}}, "unknown isuse label 4"),
        ({"forbid": {3: "5"}}, "unknown reflection group 3"),
        ({"forbid": {"retrieve": "Retrieval"}}, "only isrel, issup, isuse can be constrained"),
        ({"require": {"isrel": []}}, "names no label"),
        ({"mode": "sometimes"}, "mode"),
        ({"retrieve_once": 1}, "give True or False"),
    ],
)
def test_wrong_settings_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Decoding(**options)


@pytest.mark.parametrize("name", [field.name for field in fields(Decoding)])
def test_a_setting_of_any_size_is_refused_in_one_short_line(name: str) -> None:
    with pytest.raises(UserError) as caught:
        Decoding(**{name: [["long\n" * 1000]]})
    assert len(str(caught.value)) < 250
    assert "\n" not in str(caught.value)


def test_a_reflector_that_is_not_there_is_named() -> None:
    with pytest.raises(UserError, match=r"no reflector 'nli'; there is none: pass reflectors=\[\.\.\]"):
        run(TWO_WAYS, "d1", reflectors="nli")
    with pytest.raises(UserError, match="not multiple choice"):
        run(TWO_WAYS, "d1", reflectors="nli", choices=["A", "B"])


# --- properties on random trees -----------------------------------------------------------------------------------

joined_policies = st.builds(
    Decoding,
    mode=st.sampled_from(["adaptive", "always"]),
    threshold=st.sampled_from([0.0, 0.5]),
    no_retrieval_branch=st.booleans(),
    passages=st.integers(1, 4),
    beam=st.integers(1, 3),
    max_segments=st.integers(1, 3),
    weights=st.builds(Weights, numbers, numbers, numbers),
    undefined=st.sampled_from(["skip", "force", "zero"]),
    accumulate=st.sampled_from(["mean", "sum", "product"]),
    require=st.sampled_from([{}, {}, {"issup": ["Fully supported", "Partially supported"]}]),
    forbid=st.sampled_from([{}, {"isuse": ["1"]}]),
    reflectors=st.sampled_from(
        [
            ("a",),
            ("a", "b"),
            ("a=issup", "b"),
            ("a=issup>=0.3", "b=isrel"),
            ("a>=0.2", "b>=0.3"),
            ("b=isuse", "a=issup"),
        ]
    ),
    survivors=st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3)),
)


def random_critics(seed: int) -> list[Scripted]:
    def verdict(name: str, places: int) -> Callable[[Moment], Any]:
        def judge(moment: Moment) -> Any:
            key = (name, moment.text, *(p.id for p in moment.passages))
            if draw(seed, "defined", *key).random() < 0.2:
                return None
            return [says(*distribution(seed, *key, str(i))) for i in range(places)]

        return judge

    chance = draw(seed, "critics")
    return [
        Scripted("a", verdict("a", chance.choice((1, 2))), chance.randrange(4), asks=chance.random() < 0.5),
        Scripted("b", verdict("b", 1), chance.randrange(4), needs_evidence=chance.random() < 0.5),
    ]


def judged(seed: int, policy: Decoding) -> Run:
    return run(random_model(seed), search=random_search(seed), policy=policy, given={"critics": random_critics(seed)})


@quick
@given(seeds, joined_policies, st.builds(Weights, numbers, numbers, numbers), numbers)
def test_rescoring_and_the_room_of_each_tier(seed: int, policy: Decoding, other: Weights, joined: float) -> None:
    """The recorded settings give the recorded answer; other settings, if exact, that of a fresh decode."""
    found = judged(seed, policy)
    answer = found.answer
    assert answer.rescore(weights=policy.weights, threshold=policy.threshold) == answer
    assert [s.text for s in found.commits] == [s.text for s in answer.segments]
    read = Trace.from_json(answer.trace.to_json())
    assert (read.nodes, read.as_dict()) == (answer.trace.nodes, answer.trace.as_dict())
    assert answer.usage.requests == len(found.engine.requests)
    for cost, group in policy.tiers(answer.trace.costs):
        for part in (part for part in group if part.replaces is None):
            asked = [n.depth for n in answer.trace.nodes if part.reflector in n.joined and n.status != "forbidden"]
            room = policy.room(cost)
            assert room is None or all(asked.count(depth) <= room for depth in asked)
    other = replace(other, joined=dict.fromkeys(policy.terms[3:], joined))
    rescored = answer.rescore(other)
    rows = np.array([policy.weights.row(policy.terms), np.zeros(len(policy.terms)), other.row(policy.terms)])
    best, exact = sweep([answer], rows)
    for number, row in enumerate(rows):
        alone, sure = sweep([answer], row[None])
        assert (best[0, number], exact[0, number]) == (alone[0, 0], sure[0, 0])
    assert exact[0, 0]
    assert [None if node < 0 else node for node in best[0, ::2]] == [answer.trace.best, rescored.trace.best]
    if rescored.exact:
        fresh = judged(seed, replace(policy, weights=other)).answer
        assert [(s.text, s.score, s.judgments) for s in rescored.segments] == [
            (s.text, s.score, s.judgments) for s in fresh.segments
        ]


@quick
@given(seeds, policies, st.integers(0, 3), st.booleans())
def test_a_reflector_with_the_tokens_distribution_changes_nothing(
    seed: int, policy: Decoding, cost: int, asks: bool
) -> None:
    """What the tokens said of each candidate, said by a critic in their place: only who judged is another."""
    # Constraints on IsSup and undefined="force" would have tokens read where none was emitted.
    policy = replace(policy, history="text", require={}, undefined={"force": "skip"}.get(policy.undefined, "zero"))
    tokens = run(random_model(seed), search=random_search(seed), policy=policy).answer
    said: dict[Any, set[Judgment | None]] = {}
    for node in tokens.trace.nodes:
        before = segments_of(tokens.trace, node.parent)[0]
        said.setdefault((before, node.passage, node.text.strip()), set()).add(node.judgments.get(Role.SUPPORT))
    assume(all(len(judgments) == 1 for judgments in said.values()))
    # No critic is asked about an empty text; tokens may judge it.
    assume(all(text or judgments == {None} for (_, _, text), judgments in said.items()))

    def support(moment: Moment) -> Judgment | None:
        (found,) = said[moment.before, moment.passages[0], moment.text]
        return found and replace(found, source=Source.ADAPTER)

    critic = Scripted("judge", support, cost, asks=asks)
    replaced = replace(policy, reflectors="judge=issup", survivors=(10_000,) * 3)  # type: ignore[arg-type]
    answer = run(random_model(seed), search=random_search(seed), policy=replaced, given={"critics": [critic]}).answer
    mine, theirs = ([*map(plain, one.trace.as_dict()["nodes"])] for one in (answer, tokens))
    assert mine == theirs
    assert (answer.text, answer.trace.best) == (tokens.text, tokens.trace.best)
    weights = Weights(0.3, 2.0, -0.5)
    assert answer.rescore(weights).text == tokens.rescore(weights).text
    assert answer.rescore(weights).exact == tokens.rescore(weights).exact


def plain(node: dict[str, Any]) -> dict[str, Any]:
    """Without who judged; nobody is asked about candidates that no weights can bring back."""
    if node["status"] in UNUSABLE:
        node["judgments"].pop("issup", None)
        del node["score"], node["path_score"]
    for judgment in filter(None, node["judgments"].values()):
        del judgment["source"], judgment["site"], judgment["evidence"]
    return node


def test_places_of_a_verdict_weigh_by_their_shares() -> None:
    places = (Judgment(ISSUP, "x", (1.0, 0.0, 0.0), 0.5), Judgment(ISSUP, "y", (0.0, 1.0, 0.0), 1.0))
    mean = Verdict(places, (1.0, 3.0)).mean("here", None)
    assert mean == Judgment(ISSUP, "here", (0.25, 0.75, 0.0), (0.5 + 3 * 1.0) / 4)
