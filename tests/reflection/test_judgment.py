"""Judgments: group scores of appendix A.4, renormalising, and what is not a distribution."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfrag.reflection.judgment import Judgment, Source
from selfrag.reflection.labels import GROUPS, ISREL, ISSUP, RETRIEVE, Role


def judged(labels, *probabilities):
    return Judgment.from_logprobs(labels, [math.log(p) if p else -math.inf for p in probabilities], site="here")


@pytest.mark.parametrize("bad", [math.nan, 0.5, 100.0])
def test_what_is_no_log_probability_is_refused(bad):
    """Defects 8 and 9: an id that was not returned is an error, never -100 and never e^-100."""
    with pytest.raises(ValueError, match="not log-probabilities"):
        Judgment.from_logprobs(ISREL, [-0.1, bad], site="here")
    with pytest.raises(ValueError, match="no label has any probability"):
        Judgment.from_logprobs(ISSUP, [-math.inf] * 3, site="here")


@given(
    st.sampled_from(GROUPS).flatmap(
        lambda labels: st.tuples(
            st.just(labels),
            st.lists(st.floats(-700, -3), min_size=len(labels), max_size=len(labels)),
            st.floats(-200, 0),
        )
    )
)
def test_only_ratios_matter(drawn):
    labels, logprobs, shift = drawn
    judgment = Judgment.from_logprobs(labels, logprobs, site="here")
    assert sum(judgment.distribution) == pytest.approx(1)
    assert 0 <= judgment.coverage <= 1
    assert min(labels.values) - 1e-9 <= judgment.score <= max(labels.values) + 1e-9
    moved = Judgment.from_logprobs(labels, [value + shift for value in logprobs], site="here")
    assert moved.score == pytest.approx(judgment.score, abs=1e-9)
    assert moved.distribution == pytest.approx(judgment.distribution, abs=1e-9)


def test_label_and_probability_by_name():
    judgment = judged(ISSUP, 0.2, 0.5, 0.3)
    assert judgment.label == "Partially supported"
    assert judgment.probability("fully supported") == pytest.approx(0.2)
    assert judgment.role is Role.SUPPORT
    assert judged(ISREL, 0.5, 0.5).label == "Relevant"
    assert judged(ISREL, 0.45, 0.05).score == pytest.approx(0.9)  # renormalised
    assert judged(ISREL, 0.45, 0.05).coverage == pytest.approx(0.5)


def test_as_dict_is_json():
    judgment = Judgment.from_logprobs(
        RETRIEVE, [-0.1, -3.0, -4.0], site="segment 1", source=Source.ADAPTER, evidence="wm1"
    )
    data = json.loads(json.dumps(judgment.as_dict()))
    assert list(data["distribution"]) == ["Retrieval", "No Retrieval", "Continue to Use Evidence"]
    assert (data["role"], data["source"], data["site"], data["evidence"]) == ("retrieve", "adapter", "segment 1", "wm1")
