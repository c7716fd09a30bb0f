"""`Critic`: a judge for each reflection group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

from critic.cases import GROUPS, Case
from selfrag.interface import (
    Code,
    EngineError,
    Generate,
    Judge,
    Judgment,
    Reflection,
    RequestResult,
    Role,
    Steps,
    UserError,
    finish,
)
from selfrag.judges.external import beside
from selfrag.reflection.requests import External, Request, gather

GROUP_OF: Mapping[Role, str] = {labels.role: group for group, labels in GROUPS.items()}
"""Role to the group under its name in files."""


class Critic:
    """Judges of the reflection groups. At the end of a `with` block their engine is freed."""

    def __init__(
        self,
        judges: Mapping[str, Judge],
        engine: Any = None,
        is_cut: Callable[[Case], bool] = lambda case: False,
    ) -> None:
        """Make a critic of a judge for each group.

        Args:
            judges: by the keys of `GROUPS`.
            engine: where most of them run.
            is_cut: whether a case is asked with less than it holds, because its prompt would be too long.
        """
        self.judges, self.engine, self.is_cut = dict(judges), engine, is_cut

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.engine is not None:
            self.engine.close()

    def replaced(self, judges: Iterable[Judge]) -> Critic:
        """Return the critic with other judges, each in place of the one of its group."""
        others = {group_of(judge): judge for judge in judges}
        return Critic({**self.judges, **others}, self.engine)

    def shortened(self, cases: Sequence[Case]) -> int:
        """Return how many cases are asked with less than they hold."""
        return sum(map(self.is_cut, cases))

    def judge(self, cases: Sequence[Case]) -> list[Judgment | None]:
        """Return one judgment for each case, in order; None where there is no label. Groups may be mixed."""
        return finish(self.steps(cases), self.engine)

    def steps(self, cases: Sequence[Case]) -> Steps[list[Judgment | None]]:
        """Return the same without IO.

        Raises:
            EngineError: a case could not be asked about.
        """
        places: dict[str, list[int]] = {group: [] for group in self.judges}
        for place, case in enumerate(cases):
            if case.group in places:
                places[case.group].append(place)
        groups = [group for group in places if places[group]]
        judges = beside([self.judges[group] for group in groups], self.engine)
        steps = []
        for group, judge in zip(groups, judges, strict=True):
            steps.append(judge.judge([cases[place].state for place in places[group]]))
        answers = yield from gather(steps, serve_in_order)
        judgments: list[Judgment | None] = [None] * len(cases)
        for group, reflections in zip(groups, answers, strict=True):
            for place, reflection in zip(places[group], reflections, strict=True):
                judgments[place] = _judgment(cases[place], place, reflection)
        return judgments


def _judgment(case: Case, number: int, reflection: Reflection) -> Judgment | None:
    for note in reflection.diagnostics:
        if note.code is Code.FAILED:
            raise EngineError(f"a case could not be judged: {note.message}")
    evidence = None if case.evidence is None else case.evidence.id
    judgment = reflection.mean(f"case {number}", evidence)
    if judgment is None:
        return None
    return judgment.over(case.labels)


def serve_in_order(batch: list[Request]) -> Steps[list[RequestResult]]:
    """Send equal generations and searches once, generations in the order of their ids; return the results as asked.

    Prompts that begin alike are neighbours then: a prefix cache computes what they share once.
    """
    requests = sorted(
        {_key(request): request for request in batch}.values(), key=_prompt_ids
    )
    results = yield requests
    known = dict(zip(map(_key, requests), results, strict=True))
    return [known[_key(request)] for request in batch]


def _key(request: Request) -> object:
    # what a service takes may have no hash
    if isinstance(request, External):
        return id(request)
    return request


def _prompt_ids(request: Request) -> tuple[int, ...]:
    if isinstance(request, Generate):
        return request.prompt_ids
    return ()


def group_of(judge: Judge) -> str:
    """Return the reflection group that a judge can judge; refuse one of none."""
    if judge.role not in GROUP_OF:
        raise UserError(
            f"{judge.name} judges {judge.role}, which is none of {', '.join(GROUPS)}"
        )
    return GROUP_OF[judge.role]
