"""`Critic`: a judge for each reflection group, and cases as what such a judge looks at."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from critic.cases import GROUPS, Case
from selfrag.common.errors import EngineError, UserError
from selfrag.judges.external import beside
from selfrag.reflection.findings import Code, Finding, Reflection
from selfrag.reflection.inputs import JudgeInput, Message, Site, SiteKind
from selfrag.reflection.judge import Judge, usual_scope
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import Role
from selfrag.reflection.requests import (
    External,
    Generate,
    Request,
    RequestResult,
    Steps,
    gather,
)
from selfrag.runtime import finish

GROUP_OF: Mapping[Role, str] = {labels.role: group for group, labels in GROUPS.items()}
"""Role to the group under its name in files."""


def case_input(case: Case) -> JudgeInput:
    """Return a case as what a judge looks at."""
    turns = [Message("user", case.instruction)]
    if case.preceding or case.output:
        turns.append(Message("assistant", case.preceding + case.output))
    passages = () if case.evidence is None else (case.evidence,)
    return JudgeInput(tuple(turns), passages, begin=len(case.preceding))


def case_of(group: str, state: JudgeInput) -> Case:
    """Return what a judge looks at as a case of a group; its first passage is the evidence."""
    evidence = state.passages[0] if state.passages else None
    preceding = ""
    if state.messages[-1].role == "assistant":
        preceding = state.before
    return Case(group, state.query or "", preceding, state.text, evidence)


class CaseJudge(Judge):
    """A judge of one group that looks at cases."""

    def __init__(self, group: str, name: str) -> None:
        """Judge a group; `name` is that of the critic."""
        self.group, self.labels = group, GROUPS[group]
        self.name, self.scope = f"{name}-{self.labels.role}", usual_scope(self.labels)

    def judge(self, inputs: Sequence[JudgeInput]) -> Steps[list[Reflection]]:
        """Return one reflection an input; undefined where the critic gave no label any probability."""
        cases = [case_of(self.group, state) for state in inputs]
        results = yield from self.judge_cases(cases)
        reflections = []
        for state, result in zip(inputs, results, strict=True):
            if isinstance(result, str):
                reflections.append(Reflection.failed(state, result))
            else:
                reflections.append(
                    Reflection(state, (Finding(self._site(state), result),))
                )
        return reflections

    @abstractmethod
    def judge_cases(self, cases: Sequence[Case]) -> Steps[list[Judgment | str | None]]:
        """Return the judgment of each case, None where there is none, or why it could not be asked for."""

    def _site(self, state: JudgeInput) -> Site:
        if self.group == "IsRel" and state.passages:
            return state.in_passage(SiteKind.PASSAGE, 0)
        last = len(state.messages) - 1
        kind = (
            SiteKind.RESPONSE
            if state.messages[last].role == "assistant"
            else SiteKind.QUERY
        )
        return state.in_message(
            kind, last, state.begin if kind is SiteKind.RESPONSE else 0
        )


class Critic:
    """Judges of the reflection groups. At the end of a `with` block their engine is freed."""

    def __init__(self, judges: Mapping[str, Judge], engine: Any = None) -> None:
        """Make a critic of a judge for each group, by the keys of `GROUPS`; `engine` is where most of them run."""
        self.judges, self.engine = dict(judges), engine

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.engine is not None:
            self.engine.close()

    def replaced(self, judges: Iterable[Judge]) -> Critic:
        """Return the critic with other judges, each in place of the one of its group."""
        return Critic(
            {**self.judges, **{group_of(judge): judge for judge in judges}}, self.engine
        )

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
        steps = []
        for group, judge in zip(
            groups,
            beside([self.judges[group] for group in groups], self.engine),
            strict=True,
        ):
            steps.append(
                judge.judge([case_input(cases[place]) for place in places[group]])
            )
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
    judgment = reflection.mean(
        f"case {number}", None if case.evidence is None else case.evidence.id
    )
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
