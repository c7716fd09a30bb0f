"""Segment and path scores against numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from written import run

from selfrag.decoding.policy import Decoding
from selfrag.decoding.segments import critique_score, group_scores, path_score, segment_score
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import ISREL, ISSUP, ISUSE, LabelSet, Role
from selfrag.reflection.weights import Weights


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
    assert segment_score(likelihood, WORKED, Weights().vector) == pytest.approx(2.6078, abs=5e-5)
    assert segment_score(likelihood, WORKED, Weights(isuse=1).vector) == pytest.approx(2.8953, abs=5e-5)


def test_group_probabilities_are_renormalised() -> None:
    half = judgment(ISREL, 0.45, 0.05)
    assert half.score == pytest.approx(0.9)
    assert half.coverage == pytest.approx(0.5)


@pytest.mark.parametrize(("undefined", "score"), [("skip", 1.9167), ("zero", 1.15), ("force", 1.15)])
def test_skip_scales_the_weights_of_the_defined_groups_up_and_zero_counts_nothing(undefined: Any, score: float) -> None:
    assert critique_score([0.9, math.nan, 0.5], (1, 1, 0.5), undefined) == pytest.approx(score, abs=5e-5)


def test_skip_never_blows_up_with_weights_of_both_signs() -> None:
    """Weights 1 and -0.99 nearly cancel; the scale must follow their sizes, not their sum."""
    score = critique_score([1.0, 1.0, math.nan], (1.0, -0.99, 0.5), "skip")
    assert score == pytest.approx(0.01 * 2.49 / 1.99)


def test_a_candidate_without_any_critique_is_worth_its_likelihood() -> None:
    assert segment_score(0.7, {}, Weights().vector) == pytest.approx(0.7)


def test_an_undefined_critique_is_skipped_unless_told_otherwise() -> None:
    assert segment_score(0.0, {Role.RELEVANCE: WORKED[Role.RELEVANCE]}, Weights().vector) == pytest.approx(0.9 * 2.5)


def test_scores_of_many_settings_are_bit_equal_to_one_at_a_time() -> None:
    random = np.random.default_rng(0)
    scores = random.random((40, 3))
    scores[random.random((40, 3)) < 0.3] = np.nan
    weights = random.normal(size=(50, 3))
    for row in scores.tolist():
        together = critique_score(row, list(weights.T), "skip")
        assert together.tolist() == [critique_score(row, one, "skip") for one in weights.tolist()]


@pytest.mark.parametrize(("accumulate", "value"), [("mean", 2.0), ("sum", 6.0), ("product", 6.0)])
def test_accumulate(accumulate: str, value: float) -> None:
    assert path_score([1.0, 2.0, 3.0], accumulate) == pytest.approx(value)


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
