"""Segment and path scores against numbers worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import written
from written import LIMITS, run

from selfrag.decoding.policy import Decoding
from selfrag.decoding.segments import critique_score, group_scores, segment_score
from selfrag.engines.base import Limits
from selfrag.reflection.calibration import Scaling
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import ISREL, ISSUP, ISUSE, RETRIEVE, LabelSet, Role


def judgment(labels: LabelSet, *probabilities: float) -> Judgment:
    return Judgment.from_logprobs(labels, [math.log(p) for p in probabilities], site="here")


WORKED = {
    Role.RELEVANCE: judgment(ISREL, 0.9, 0.1),
    Role.SUPPORT: judgment(ISSUP, 0.6, 0.3, 0.1),
    Role.UTILITY: judgment(ISUSE, 0.05, 0.05, 0.1, 0.3, 0.5),
}


WRITTEN = ("{isrel .9 .1}5{issup .6 .3 .1}{isuse .05 .05 .1 .3 .5}</s>", (-0.2, -0.4, -0.4, -0.6, -3.0))


def test_worked_score_of_the_reference() -> None:
    assert group_scores(WORKED) == pytest.approx([0.9, 0.75, 0.575])
    likelihood = math.exp((-0.2 - 0.4 - 0.6) / 3)
    assert likelihood == pytest.approx(0.6703, abs=5e-5)
    assert segment_score(likelihood, WORKED, (1, 1, 0.5)) == pytest.approx(2.6078, abs=5e-5)
    assert segment_score(likelihood, WORKED, (1, 1, 1)) == pytest.approx(2.8953, abs=5e-5)


@pytest.mark.parametrize(("undefined", "score"), [("skip", 1.9167), ("zero", 1.15), ("force", 1.15)])
def test_skip_scales_the_weights_of_the_defined_groups_up_and_zero_counts_nothing(undefined: Any, score: float) -> None:
    assert critique_score([0.9, math.nan, 0.5], (1, 1, 0.5), undefined) == pytest.approx(score, abs=5e-5)


def test_skip_never_blows_up_with_weights_of_both_signs() -> None:
    """Weights 1 and -0.99 nearly cancel; the scale must follow their sizes, not their sum."""
    score = critique_score([1.0, 1.0, math.nan], (1.0, -0.99, 0.5), "skip")
    assert score == pytest.approx(0.01 * 2.49 / 1.99)


@pytest.mark.parametrize(
    ("policy", "score"),
    [
        (Decoding(mode="always"), math.exp(-0.4) + 0.9 + 0.75 + 0.5 * 0.575),  # section 4.3 of the paper
        (Decoding.official(mode="always", max_segments=1), math.exp(-4.6 / 5) + 0.9 + 0.75 + 0.575),
        (Decoding.official(mode="always"), 0.9 + 0.75),
    ],
)
def test_scores_of_the_presets(policy: Decoding, score: float) -> None:
    """One generated segment under each preset, worked by hand from the paper and from the published code."""
    found = run({"[Retrieval]<d1>": WRITTEN}, "d1", policy=policy)
    assert found.node("5").score == pytest.approx(score, abs=1e-6)


def distribution(yes: float, no: float, keep: float) -> Judgment:
    logs = [math.log(p) if p else -math.inf for p in (yes, no, keep)]
    return Judgment.from_logprobs(RETRIEVE, logs, site="start")


def test_continue_wins_only_where_there_is_evidence() -> None:
    policy, judgment = Decoding(), distribution(0.3, 0.3, 0.4)
    assert policy.action(judgment, has_evidence=True)[0] == "continue"
    assert policy.action(judgment, has_evidence=False)[0] == "retrieve"
    assert policy.action(None, has_evidence=False) == ("write", "no Retrieve distribution")
    assert Decoding.official().action(judgment, has_evidence=True) == ("retrieve", "[Retrieval] was written")


ONE = {"mode": "always", "max_segments": 1, "likelihood": "none"}
D1 = "[Retrieval]<d1>"


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


CUT = {D1: "[Relevant]A very long segment", D1 + "[Relevant]A ve": "{~issup .5 .4 .1}{isuse 0 0 0 0 1}"}


def test_no_room_to_ask_for_a_forced_critique() -> None:
    prompt = run(CUT, "d1", **ONE, segment_tokens=5).engine.requests[0].prompt_ids
    limits = Limits(max_model_len=len(prompt) + 5, vocab_size=LIMITS.vocab_size)
    found = run(CUT, "d1", **ONE, undefined="force", limits=limits)
    assert found.node("A ve").finish == "context"
    assert found.answer.text == "A ve"


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
