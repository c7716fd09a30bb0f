"""A teacher as a critic: scores become distributions, bare labels are certain, no label is no judgment."""

from __future__ import annotations

import pytest
from teaching_server import questions

from critic.teacher.config import Constraint, EndpointConfig
from critic.teacher.endpoint import EndpointTeacher
from critic.teacher.judging import TeacherCritic
from selfrag.reflection.judgment import Source


def critic(server, constraint):
    return TeacherCritic(EndpointTeacher(EndpointConfig(server.url, "judge", constraint=constraint, retries=0)))


def test_judgments_in_order_and_none_where_there_is_no_label(server) -> None:
    cases = [question.case for question in [*questions(4), *questions(1, fault="!off_set")]]
    hard = critic(server, Constraint.CHOICE).judge(cases)
    soft = critic(server, Constraint.LOGPROBS).judge(cases)
    assert hard[4] is None
    assert soft[4] is None
    for case, one, other in zip(cases[:4], hard[:4], soft[:4], strict=True):
        assert (one.source, sum(one.distribution), one.evidence) == (Source.HARD, 1.0, case.evidence.id)
        assert other.source is Source.JUDGE
        assert max(other.distribution) == pytest.approx(0.9 / 0.95)
