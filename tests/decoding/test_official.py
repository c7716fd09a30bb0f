"""The `official` preset: scores of the published code on examples worked out by hand from its formulas."""

from __future__ import annotations

import math

import pytest
from written import passages, run

from selfrag.decoding.policy import Decoding
from selfrag.decoding.scoring import path_score, segment_score
from selfrag.errors import UserError
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import ISREL, ISUSE, RETRIEVE, Role

SHORT, LONG = Decoding.official(max_segments=1), Decoding.official()
D1 = "[Retrieval]<d1>"


def retrieve_row(log_yes: float, log_no: float) -> Judgment:
    return Judgment.from_logprobs(RETRIEVE, [log_yes, log_no, -math.inf], site="start")


@pytest.mark.parametrize(("log_yes", "log_no", "ratio"), [(-0.01, -5, 0.002), (-2, -0.2, 0.909), (-1, -1, 0.5)])
def test_short_form_tests_the_ratio_of_log_probabilities(log_yes: float, log_no: float, ratio: float) -> None:
    assert SHORT.retrieval_score(retrieve_row(log_yes, log_no)) == pytest.approx(ratio, abs=6e-4)


def test_long_form_tests_the_ratio_of_probabilities() -> None:
    assert LONG.retrieval_score(retrieve_row(-0.01, -5)) == pytest.approx(0.9933, abs=1e-4)


def test_short_form_score() -> None:
    """exp(mean over all tokens, EOS included) + IsRel + IsSup + 1 * IsUse; without EOS it would be 3.0038."""
    written = "{isrel .9 .1}5{issup .6 .3 .1}{isuse .05 .05 .1 .3 .5}</s>"
    found = run(
        {D1: (written, (-0.1, -0.2, -0.3, -0.4, -1.0))}, "d1", policy=Decoding.official(max_segments=1, mode="always")
    )
    assert found.answer.segments[0].score == pytest.approx(2.8953, abs=5e-5)


def test_an_unemitted_critique_counts_zero() -> None:
    """Weights 1, 1, 0.5 and scores 0.9, undefined, 0.5 give 1.15."""
    relevant = Judgment.from_logprobs(ISREL, [math.log(0.9), math.log(0.1)], site="")
    useful = Judgment.from_logprobs(ISUSE, [-math.inf, -math.inf, -math.inf, 0.0, -math.inf], site="")
    given = {Role.RELEVANCE: relevant, Role.SUPPORT: None, Role.UTILITY: useful}
    assert segment_score(0.0, given, Decoding().weights, LONG.undefined) == pytest.approx(1.15)


def test_relevance_is_read_at_the_first_position_whatever_stands_there() -> None:
    policy = Decoding.official(max_segments=1, mode="always")
    found = run({D1: ("{~isrel .3 .7}Text.</s>", (0.0,) * 6)}, "d1", policy=policy)
    assert found.node("Text.").score == pytest.approx(1.0 + 0.3)


def test_long_form_ignores_likelihood_and_utility() -> None:
    tree = {D1: ("{isrel .9 .1}A.{issup .6 .3 .1}{isuse 0 0 0 0 1}</s>", 0.2)}
    found = run(tree, "d1", policy=Decoding.official(mode="always"))
    assert found.node("A.").score == pytest.approx(0.9 + 0.75)


def test_long_form_multiplies() -> None:
    assert path_score([2.0, 2.0, 2.0], LONG.accumulate) == 8.0
    assert path_score([-0.4, -0.5], LONG.accumulate) == pytest.approx(0.2)


def test_long_form_searches_once_and_drops_earlier_passages() -> None:
    tree = {
        D1: "[Relevant]A.[Fully supported]{retrieve 1 0 0}",
        "A." + D1: "[Relevant]B.[Fully supported]</s>",
    }
    found = run(tree, "d1", policy=Decoding.official(mode="always"))
    assert found.searches.queries == ["Q"]
    assert found.prompts == [D1, "A." + D1]
    assert found.answer.text == "A. B."
    assert found.node("B.").path_score == pytest.approx(4.0)


def test_changes_win_over_the_preset() -> None:
    policy = Decoding.official(accumulate="sum", beam=5)
    assert (policy.accumulate, policy.beam, policy.retrieve_once) == ("sum", 5, True)
    with pytest.raises(UserError, match="threshold"):
        Decoding.official(threshold=2)


@pytest.mark.parametrize("policy", [SHORT, LONG, Decoding(max_segments=1), Decoding()])
@pytest.mark.parametrize("mode", ["adaptive", "always", "never"])
@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("text", ["", "Words."])
@pytest.mark.parametrize("threshold", [0.2, None])
def test_defect_14_every_mode_returns_a_value(
    policy: Decoding, mode: str, count: int, text: str, threshold: float | None
) -> None:
    """Each mode x {0, 1, 2 passages} x {empty, normal output} x {threshold, none}, long and short form."""
    from dataclasses import replace

    tree = {
        "": "{~retrieve .9 .1 0}x",
        "[No Retrieval]": f"{text}</s>",
        "[Retrieval]<d1>": f"[Relevant]{text}</s>",
        "[Retrieval]<d2>": f"[Relevant]{text}</s>",
    }
    found = run(tree, evidence=passages("d1", "d2")[:count], policy=replace(policy, mode=mode, threshold=threshold))
    assert found.answer.text == text
    assert found.answer.error is None
