"""`TeacherCritic`: a teacher where a critic is wanted, to compare with a trained one or do without. Only asks."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from critic.cases import Case
from critic.teacher.base import Reply, Teacher
from selfrag.reflection.judgment import Judgment, Source


class TeacherCritic:
    """A critic that asks a teacher.

    Args:
        teacher: scores of labels become a distribution; a bare label is certain.
    """

    def __init__(self, teacher: Teacher) -> None:
        self._teacher = teacher

    def judge(self, cases: Sequence[Case]) -> list[Judgment | None]:
        """One judgment a case, in order; None where the teacher gave no label.

        Raises:
            TeacherError: the teacher cannot go on.
        """
        found: list[Judgment | None] = [None] * len(cases)
        with closing(self._teacher.label(cases)) as arriving:
            for position, reply in arriving:
                found[position] = _judgment(cases[position], reply)
        return found


def _judgment(case: Case, reply: Reply) -> Judgment | None:
    if reply.label is None:
        return None
    evidence = None if case.evidence is None else case.evidence.id
    site = f"{case.group} by {reply.source}"
    if reply.distribution is not None and reply.coverage is not None:
        return Judgment(case.labels, site, reply.distribution, reply.coverage, Source.JUDGE, evidence)
    certain = tuple(float(name == reply.label) for name in case.labels.names)
    return Judgment(case.labels, site, certain, 1.0, Source.HARD, evidence)
