"""Whether to search: one code path, per mode, test and threshold, always recorded with its reason."""

from __future__ import annotations

import math

import pytest
from written import run

from selfrag.decoding.policy import Decoding
from selfrag.errors import UserError
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import RETRIEVE, Role

WRITES = {"[No Retrieval]": "Own words.</s>", "[Retrieval]<d1>": "[Relevant]From d1.</s>"}


def starting(yes: float, no: float, keep: float) -> dict[str, str]:
    return {"": f"{{~retrieve {yes} {no} {keep}}}x", **WRITES}


def distribution(yes: float, no: float, keep: float) -> Judgment:
    logs = [math.log(p) if p else -math.inf for p in (yes, no, keep)]
    return Judgment.from_logprobs(RETRIEVE, logs, site="start")


@pytest.mark.parametrize(("mode", "text"), [("always", "From d1."), ("never", "Own words.")])
def test_fixed_modes_do_not_ask_the_model(mode: str, text: str) -> None:
    found = run(WRITES, "d1", mode=mode)
    assert found.answer.text == text
    assert found.answer.trace.decisions[0].reason == f"mode={mode}"
    assert found.answer.trace.decisions[0].judgment is None
    assert found.answer.usage.requests == 1


@pytest.mark.parametrize(
    ("probabilities", "threshold", "text"),
    [
        ((0.3, 0.7, 0.0), 0.2, "From d1."),
        ((0.1, 0.9, 0.0), 0.2, "Own words."),
        ((0.2, 0.8, 0.0), 0.2, "Own words."),  # not above: the paper's test is strict
        ((0.01, 0.99, 0.0), 0.0, "From d1."),
        ((0.99, 0.01, 0.0), 1.0, "Own words."),
        ((0.2, 0.1, 0.7), 0.5, "From d1."),  # 0.2 / 0.3: Continue does not count, and there is nothing to continue with
    ],
)
def test_threshold(probabilities: tuple[float, float, float], threshold: float, text: str) -> None:
    found = run(starting(*probabilities), "d1", threshold=threshold)
    assert found.answer.text == text
    decision = found.answer.trace.decisions[0]
    assert decision.action == ("retrieve" if text == "From d1." else "write")
    assert decision.judgment is not None
    assert decision.judgment.distribution == pytest.approx(probabilities, abs=1e-6)
    assert f"{threshold:g}" in decision.reason
    assert len(found.searches.queries) == (decision.action == "retrieve")


def test_test_over_all_retrieve_tokens() -> None:
    """Section 3.3 normalises over all Retrieve tokens: 0.2, where A.4 gives 0.667."""
    tree = starting(0.2, 0.1, 0.7)
    assert run(tree, "d1", threshold=0.5, retrieve_test="all").answer.text == "Own words."
    assert run(tree, "d1", threshold=0.5, retrieve_test="yes_no").answer.text == "From d1."


@pytest.mark.parametrize(("yes", "text"), [(0.6, "From d1."), (0.4, "Own words.")])
def test_without_a_threshold_the_most_probable_token_decides(yes: float, text: str) -> None:
    assert run(starting(yes, 1 - yes, 0.0), "d1", threshold=None).answer.text == text


def test_the_start_reads_one_token() -> None:
    request = run(starting(0.9, 0.1, 0.0), "d1").engine.requests[0]
    assert request.max_tokens == 1


def test_later_boundaries_cost_no_request_of_their_own() -> None:
    tree = starting(0.9, 0.1, 0.0) | {
        "[Retrieval]<d1>": "[Relevant]One.{retrieve .1 .9 0}",
        "[Retrieval]<d1>[Relevant]One.[No Retrieval]": "Two.</s>",
    }
    found = run(tree, "d1")
    assert found.answer.text == "One. Two."
    assert found.answer.usage.requests == 3  # the start, and one for each segment
    assert [d.action for d in found.answer.trace.decisions] == ["retrieve", "write"]


def test_the_segment_shows_the_distribution_that_led_to_it() -> None:
    segment = run(starting(0.9, 0.1, 0.0), "d1").answer.segments[0]
    judgment = segment.judgments[Role.RETRIEVE]
    assert judgment is not None
    assert judgment.probability("retrieval") == pytest.approx(0.9, abs=1e-6)


def test_continue_wins_only_where_there_is_evidence() -> None:
    policy, judgment = Decoding(), distribution(0.3, 0.3, 0.4)
    assert policy.action(judgment, has_evidence=True)[0] == "continue"
    assert policy.action(judgment, has_evidence=False)[0] == "retrieve"
    assert policy.action(None, has_evidence=False) == ("write", "no Retrieve distribution")
    assert Decoding.official().action(judgment, has_evidence=True) == ("retrieve", "[Retrieval] was written")


@pytest.mark.parametrize("test", ["yes_no", "all", "log_ratio"])
@pytest.mark.parametrize("row", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0.3, 0.3, 0.4), (0.5, 0.5, 0)])
def test_every_test_stays_within_bounds(test: str, row: tuple[float, float, float]) -> None:
    assert 0 <= Decoding(retrieve_test=test).retrieval_score(distribution(*row)) <= 1


@pytest.mark.parametrize("threshold", [-0.1, 1.1, math.nan, "0.2", True])
def test_a_threshold_outside_its_range_is_refused(threshold: object) -> None:
    with pytest.raises(UserError, match="threshold"):
        Decoding(threshold=threshold)


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "sometimes"},
        {"beam": 0},
        {"beam": 1.5},
        {"passages": 0},
        {"max_segments": True},
        {"retrieve_once": 1},
        {"accumulate": "max"},
        {"undefined": "nan"},
        {"weights": (1, 1, 1)},
        {"require": {"isrel": []}},
        {"require": {"isrel": "Sort of"}},
        {"forbid": {"retrieve": "Retrieval"}},
        {"forbid": {"fluency": "1"}},
    ],
)
def test_wrong_settings_are_one_line_that_names_them(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError) as caught:
        Decoding(**wrong)
    (name,) = wrong
    assert "\n" not in str(caught.value)
    assert name in str(caught.value) or "constraint" in str(caught.value) or "unknown" in str(caught.value)
