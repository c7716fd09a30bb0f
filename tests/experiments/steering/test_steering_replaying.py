"""Settings answered from a wide record, against decodes of their own: hand-worked trees, and many random ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_model import random_model, random_search
from scripted_critics import Scripted, says
from written import passages, run

from selfrag.decoding.answer import Answer
from selfrag.decoding.policy import Decoding
from selfrag.errors import DecodingError
from selfrag.evaluation.metrics.output import USAGE, Output, output_of
from selfrag.experiments.steering.narrowing import narrow
from selfrag.experiments.steering.replaying import Grouped, Replayed, replay_all
from selfrag.intrinsics.labels import ANSWERABLE
from selfrag.reflection.weights import Weights

SHORT = Decoding(max_segments=1)
WIDE = replace(SHORT, threshold=0.0, no_retrieval_branch=True)
TREE = {
    "": "{~retrieve .5 .5 0}x",
    "[Retrieval]<d1>": ("{isrel .9 .1}Close.{issup .1 .1 .8}{isuse 0 0 1 0 0}</s>", 0.5),
    "[Retrieval]<d2>": ("{isrel .6 .4}Sure.{issup .9 .1 0}{isuse 0 0 1 0 0}</s>", 0.5),
    "[No Retrieval]": ("Own.{isuse 0 0 0 0 1}</s>", 0.5),
}


def replayed(answer: Answer, policy: Decoding) -> Replayed | None:
    usage = {name: getattr(answer.usage, name) for name in USAGE}
    (found,) = replay_all(answer.trace, usage, Grouped.of([policy]))
    return found


def said(output: Output | None) -> Any:
    """Everything but what it took."""
    return None if output is None else replace(output, usage={})


@pytest.mark.parametrize(
    ("changes", "text", "retrieved"),
    [
        ({}, "Sure.", True),
        ({"threshold": 0.5}, "Own.", False),
        ({"threshold": None}, "Own.", False),  # Retrieval is not more probable than No Retrieval
        ({"mode": "never"}, "Own.", False),
        ({"mode": "always", "passages": 1}, "Close.", True),
        ({"weights": Weights(issup=0)}, "Close.", True),
        ({"no_retrieval_branch": True}, "Own.", True),
        ({"forbid": {"issup": "Fully supported"}}, "Close.", True),
        ({"require": {"issup": "Partially supported"}}, "", True),
    ],
)
def test_one_wide_record_holds_every_setting(changes: dict[str, Any], text: str, retrieved: bool) -> None:
    wide = run(TREE, evidence=passages("d1", "d2"), policy=WIDE).answer
    policy = replace(SHORT, **changes)
    found = replayed(wide, policy)
    assert found is not None
    assert found.output is not None
    assert found.exact
    assert (found.output.text, found.output.retrieved) == (text, retrieved)
    own = run(TREE, evidence=passages("d1", "d2"), policy=policy).answer
    assert said(found.output) == said(output_of(own))
    assert found.share == len(own.trace.nodes) / 3


def test_passages_kept_from_a_first_search_are_not_given_ones() -> None:
    """Fewer passages would have been searched for, and a search may answer otherwise."""
    more = "{retrieve 1 0 0}"
    tree = {
        "": "{~retrieve 0 1 0}x",
        "[No Retrieval]": "One." + more,
        "One.[Retrieval]<d1>": ("[Relevant]Two." + more, 0.9),
        "One.[Retrieval]<d2>": ("[Relevant]Second." + more, 0.1),
        "One.Two.[Retrieval]<d1>": ("[Relevant]Three.</s>", 0.9),
        "One.Two.[Retrieval]<d2>": ("[Relevant]Third.</s>", 0.1),
    }
    policy = Decoding(retrieve_once=True, history="text", passages=2, beam=1, max_segments=3)
    kept = run(tree, "d1", "d2", policy=policy).answer
    assert [d.query for d in kept.trace.decisions] == [None, "Q", None]
    narrowed = narrow(kept.trace, replace(policy, passages=1))
    assert narrowed is not None
    assert narrowed.incomplete == {0, 1}  # after One. and after Two.: both the search and what was kept of it
    given_ones = run(tree, evidence=passages("d1", "d2"), policy=policy).answer
    same = narrow(given_ones.trace, replace(policy, passages=1))
    assert same is not None
    assert not same.incomplete


def test_a_record_of_one_side_is_an_approximation_of_the_other() -> None:
    narrow_record = run(TREE, evidence=passages("d1", "d2"), policy=SHORT).answer
    other = replayed(narrow_record, replace(SHORT, threshold=0.9))
    assert other is not None
    assert (other.exact, other.output.text) == (False, "Sure.")  # type: ignore[union-attr]
    more = replayed(narrow_record, replace(SHORT, passages=9))
    assert more is not None
    assert more.exact  # five were asked for and two given: there are no more
    always = run(TREE, evidence=passages("d1", "d2"), policy=replace(SHORT, mode="always")).answer
    adaptive = replayed(always, SHORT)
    assert adaptive is not None
    assert not adaptive.exact  # nobody looked whether to retrieve


@pytest.mark.parametrize(
    "changes",
    [{"likelihood": "none"}, {"undefined": "zero"}, {"segment_tokens": 7}, {"history": "text"}, {"passage_tokens": 9}],
)
def test_what_changes_the_text_itself_cannot_be_replayed(changes: dict[str, Any]) -> None:
    wide = run(TREE, evidence=passages("d1", "d2"), policy=WIDE).answer
    assert narrow(wide.trace, replace(WIDE, **changes)) is None
    assert replayed(wide, replace(SHORT, **changes)) is None


def test_a_record_with_gates_or_reflectors_says_nothing_about_another_threshold() -> None:
    """Also where weights are asked about in the same breath, and gates hide what the threshold would have decided."""
    sure = Scripted("ad", lambda moment: says(0.9, 0.1, labels=ANSWERABLE), needs_evidence=False)
    policy = replace(SHORT, gates=("ad<0.5:write",))  # type: ignore[arg-type]
    answer = run(TREE, evidence=passages("d1", "d2"), policy=policy, given={"critics": [sure]}).answer
    assert answer.text == "Sure."
    asked = [policy, replace(policy, threshold=0.9), replace(policy, mode="never"), replace(policy, weights=Weights(9))]
    own, threshold, never, weights = replay_all(answer.trace, {}, Grouped.of(asked))
    assert (threshold, never) == (None, None)
    assert own is not None
    assert weights is not None
    assert (own.exact, weights.exact) == (True, True)


def test_a_search_may_answer_otherwise_when_asked_for_less() -> None:
    searched = run(TREE, "d1", "d2", policy=replace(WIDE, passages=2)).answer
    less = replayed(searched, replace(SHORT, passages=1))
    assert less is not None
    assert not less.exact


def test_a_critique_that_a_constraint_would_have_asked_for_is_missing() -> None:
    cut = TREE | {"[Retrieval]<d1>": ("{isrel .9 .1}Close and then some.", 0.5)}
    policy = replace(SHORT, segment_tokens=12)
    wide = run(cut, evidence=passages("d1", "d2"), policy=replace(policy, threshold=0.0)).answer
    found = replayed(wide, replace(policy, forbid={"issup": "No support / Contradictory"}))
    assert found is not None
    assert not found.exact


policies = st.builds(
    Decoding,
    mode=st.sampled_from(("adaptive", "adaptive", "always", "never")),
    threshold=st.sampled_from((None, 0.0, 0.2, 0.4, 0.5, 0.7)),
    retrieve_test=st.sampled_from(("yes_no", "all", "log_ratio")),
    no_retrieval_branch=st.booleans(),
    passages=st.sampled_from((1, 2, 5)),
    beam=st.sampled_from((1, 2, 4)),
    max_segments=st.sampled_from((1, 2, 3)),
    weights=st.builds(Weights, st.sampled_from((0.0, 1.0, 3.0)), st.sampled_from((0.0, 1.0)), st.just(0.5)),
    accumulate=st.sampled_from(("mean", "sum", "product")),
    require=st.sampled_from(({}, {}, {}, {"isrel": "Relevant"})),
    forbid=st.sampled_from(({}, {}, {}, {"issup": "No support / Contradictory"})),
)


@given(seed=st.integers(0, 10**6), recorded=policies, wanted=st.lists(policies, min_size=1, max_size=6), data=st.data())
def test_whatever_is_called_exact_is_what_a_decode_gives(
    seed: int, recorded: Decoding, wanted: list[Decoding], data: st.DataObject
) -> None:
    failures = data.draw(st.sampled_from((0.0, 0.0, 0.2)))
    choices = data.draw(st.sampled_from((None, None, ("One.", "Two.", "8"))))
    evidence = random_search(seed)("Q")
    model = random_model(seed, failures=failures)

    def decoded(policy: Decoding) -> Answer | None:
        try:
            return run(model, evidence=evidence, policy=policy, choices=choices).answer
        except DecodingError:
            return None

    base = decoded(recorded)
    if base is None:
        return
    found = replay_all(base.trace, {}, Grouped.of([recorded, *wanted]))
    own, *others = found
    assert own is not None
    assert own.exact
    assert said(own.output) == said(output_of(base))
    for policy, other in zip(wanted, others, strict=True):
        if other is not None and other.exact:
            again = decoded(policy)
            assert said(other.output) == said(None if again is None else output_of(again))
