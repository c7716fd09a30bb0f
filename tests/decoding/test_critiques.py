"""Critiques: where they are read, what happens to those that were not emitted, and hard constraints."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import written
from written import LIMITS, run

from selfrag.decoding.requests import Failed
from selfrag.engines.base import Limits
from selfrag.errors import UserError
from selfrag.reflection.calibration import Scaling
from selfrag.reflection.labels import Role
from selfrag.reflection.weights import Weights

ONE = {"mode": "always", "max_segments": 1, "likelihood": "none"}
D1 = "[Retrieval]<d1>"


def test_critiques_are_read_where_they_were_emitted() -> None:
    node = run({D1: "{isrel .9 .1}A.{issup .6 .3 .1}{isuse .1 .1 .1 .1 .6}</s>"}, "d1", **ONE).node("A.")
    assert node.judgments["isrel"].distribution == pytest.approx((0.9, 0.1))
    assert node.judgments["issup"].distribution == pytest.approx((0.6, 0.3, 0.1))
    assert node.judgments["isuse"].distribution == pytest.approx((0.1, 0.1, 0.1, 0.1, 0.6))
    assert {j.evidence for j in node.judgments.values()} == {"d1"}
    assert node.judgments["isrel"].site == "segment 1, passage d1"


def test_the_first_critique_of_a_group_counts() -> None:
    node = run({D1: "[Relevant]A.{issup .8 .1 .1}{issup .1 .1 .8}</s>"}, "d1", **ONE).node("A.")
    assert node.judgments["issup"].label == "Fully supported"


def test_relevance_is_due_right_after_the_passage_only() -> None:
    """A relevance token in the middle of the text says nothing about the passage."""
    assert run({D1: "A.{isrel .1 .9}B.</s>"}, "d1", **ONE).node("A.B.").judgments["isrel"] is None


def test_without_a_passage_only_utility_can_be_judged() -> None:
    node = run({"[No Retrieval]": "A.[Fully supported][Utility:5]</s>"}, mode="never", max_segments=1).node("A.")
    assert node.judgments["isrel"] is None
    assert node.judgments["issup"] is None
    assert node.judgments["isuse"].label == "5"


UNEMITTED = {D1: "{isrel .9 .1}A.{~issup .2 .2 .6}{~isuse 0 0 0 1 0}</s>"}
"""IsSup and IsUse are not emitted, but their distributions stand where they were due."""


@pytest.mark.parametrize(
    ("undefined", "score"),
    [("skip", 0.9 / 1 * 2.5), ("zero", 0.9), ("force", 0.9 + 0.3 + 0.5 * 0.5)],
)
def test_policies_for_an_unemitted_critique(undefined: str, score: float) -> None:
    found = run(UNEMITTED, "d1", **ONE, undefined=undefined)
    assert found.node("A.").score == pytest.approx(score, abs=1e-6)
    assert (found.node("A.").judgments["issup"] is None) == (undefined != "force")
    assert found.answer.usage.requests == 1  # every label is watched, so reading costs nothing


def test_zero_reads_relevance_whether_or_not_it_was_emitted() -> None:
    node = run({D1: "{~isrel .3 .7}A.</s>"}, "d1", **ONE, undefined="zero").node("A.")
    assert node.judgments["isrel"].distribution == pytest.approx((0.3, 0.7))


CUT = {D1: "[Relevant]A very long segment", D1 + "[Relevant]A ve": "{~issup .5 .4 .1}{isuse 0 0 0 0 1}"}


def test_a_segment_cut_by_its_budget_is_asked_once_more_with_force() -> None:
    found = run(CUT, "d1", **ONE, undefined="force", segment_tokens=5)
    node = found.node("A ve")
    assert node.finish == "budget"
    assert node.judgments["issup"].distribution == pytest.approx((0.5, 0.4, 0.1))
    assert node.judgments["isuse"].label == "5"
    assert found.prompts == [D1, D1 + "[Relevant]A ve"]
    assert found.engine.requests[1].max_tokens == 1


def test_a_segment_cut_by_its_budget_stays_undefined_with_skip() -> None:
    found = run(CUT, "d1", **ONE, segment_tokens=5)
    assert found.node("A ve").judgments["issup"] is None
    assert found.answer.usage.requests == 1


def test_a_failed_forced_critique_stays_undefined() -> None:
    tree = CUT | {D1 + "[Relevant]A ve": Failed("too long")}
    found = run(tree, "d1", **ONE, undefined="force", segment_tokens=5)
    assert found.answer.text == "A ve"
    assert found.node("A ve").judgments["issup"] is None


def test_no_room_to_ask_for_a_forced_critique() -> None:
    prompt = run(CUT, "d1", **ONE, segment_tokens=5).engine.requests[0].prompt_ids
    limits = Limits(max_model_len=len(prompt) + 5, vocab_size=LIMITS.vocab_size)
    found = run(CUT, "d1", **ONE, undefined="force", limits=limits)
    assert found.node("A ve").finish == "context"
    assert found.answer.text == "A ve"


SUPPORT = {
    "[Retrieval]<d1>": ("[Relevant]Wrong.{issup .1 .1 .8}{isuse 0 0 0 0 1}</s>", 0.9),
    "[Retrieval]<d2>": ("[Relevant]Right.{issup .8 .1 .1}{isuse 1 0 0 0 0}</s>", 0.1),
}
USE_ONLY = {"mode": "always", "weights": Weights(0, 0, 1)}


def test_hard_constraints_inside_the_search() -> None:
    assert run(SUPPORT, "d1", "d2", **USE_ONLY).answer.text == "Wrong."
    for rule in (
        {"require": {"issup": "Fully supported"}},
        {"require": {"IsSup": ["fully supported", "[Partially supported]"]}},
        {"forbid": {"issup": "No support / Contradictory"}},
    ):
        found = run(SUPPORT, "d1", "d2", **USE_ONLY, **rule)
        assert found.answer.text == "Right."
        assert found.statuses() == {"Wrong.": "forbidden", "Right.": "finished"}


def test_constraints_that_nothing_meets_give_an_empty_answer() -> None:
    found = run(SUPPORT, "d1", "d2", mode="always", require={"isuse": ["3"]})
    assert (found.answer.text, found.answer.segments, found.answer.error) == ("", (), None)
    assert set(found.statuses().values()) == {"forbidden"}


def test_a_constrained_critique_is_read_where_it_was_due() -> None:
    found = run(UNEMITTED, "d1", **ONE, forbid={"issup": "No support / Contradictory"})
    assert found.statuses() == {"A.": "forbidden"}
    assert run(UNEMITTED, "d1", **ONE, forbid={"issup": "Fully supported"}).answer.text == "A."


def test_a_constrained_critique_of_a_cut_segment_is_asked_for() -> None:
    found = run(CUT, "d1", **ONE, segment_tokens=5, require={"issup": "Fully supported"})
    assert found.answer.text == "A ve"
    assert found.answer.usage.requests == 2


def test_a_required_critique_that_cannot_be_made_is_not_met() -> None:
    tree = {"[No Retrieval]": "Own words.[Utility:5]</s>"}
    assert run(tree, mode="never", require={"issup": "Fully supported"}).answer.text == ""
    assert run(tree, mode="never", forbid={"issup": "No support / Contradictory"}).answer.text == "Own words."


def test_a_forbidden_continuation_ends_the_answer_before_it() -> None:
    tree = {
        D1: "[Relevant]Good.[Fully supported]{retrieve 1 0 0}",
        D1 + "[Relevant]Good.[Fully supported]" + D1: "[Relevant]Bad.[No support / Contradictory]</s>",
    }
    found = run(tree, "d1", mode="always", forbid={"issup": "No support / Contradictory"})
    assert found.answer.text == "Good."
    assert found.statuses() == {"Good.": "finished", "Bad.": "forbidden"}


def test_unknown_labels_name_the_known_ones() -> None:
    with pytest.raises(UserError, match=r"unknown issup label 'Somewhat'; known: 'Fully supported', 'Partially"):
        run({}, require={"issup": "Somewhat"})


@pytest.mark.parametrize(
    ("likelihood", "mean"),
    [("segment", -1.2 / 3), ("all", -3.2 / 4), ("product", -1.2), ("none", -math.inf)],
)
def test_likelihood_is_a_mean_with_or_without_the_boundary_or_a_product(likelihood: str, mean: float) -> None:
    """Eq. 3: of the tokens `[Relevant]`, `A`, `.` and the end."""
    for end in ("</s>", "[Retrieval]"):
        tree = {D1: (f"[Relevant]A.{end}", (-0.3, -0.1, -0.8, -2.0))}
        found = run(tree, "d1", mode="always", likelihood=likelihood, max_segments=1)
        assert found.node("A.").likelihood == pytest.approx(math.exp(mean), rel=1e-12)


@pytest.mark.parametrize("likelihood", ["segment", "all"])
def test_likelihood_of_a_segment_cut_by_its_budget_is_that_of_what_is_left(likelihood: str) -> None:
    tree = {D1: ("[Relevant]A and more.</s>", (-0.3, -0.1, -0.8, *[-2.0] * 12))}
    found = run(tree, "d1", mode="always", likelihood=likelihood, segment_tokens=3)
    assert found.node("A ").likelihood == pytest.approx(math.exp(-0.4), rel=1e-12)


@pytest.mark.parametrize(("options", "relevant"), [({}, 0.75), ({"calibrated": False}, 0.9)])
def test_scalings_of_the_model_apply_unless_they_are_switched_off(
    options: dict[str, bool], relevant: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """.9 and .1 at temperature 2: roots in the ratio 3 to 1."""
    calibrated = replace(written.VOCABULARY, scalings={Role.RELEVANCE: Scaling(2.0)})
    monkeypatch.setattr(written, "PROMPTING", replace(written.PROMPTING, vocabulary=calibrated))
    found = run({D1: "{isrel .9 .1}A.{issup .6 .3 .1}{isuse .1 .1 .1 .1 .6}</s>"}, "d1", **ONE, **options)
    assert found.node("A.").judgments["isrel"].probability("Relevant") == pytest.approx(relevant)
    assert found.node("A.").judgments["issup"].distribution == pytest.approx((0.6, 0.3, 0.1))
