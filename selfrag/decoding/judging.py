"""Judges while an answer is written: the cascade of score terms, and the guardrails before the writing.

In the cascade cheap judges look at all candidates, expensive ones only at those that remain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from retrieval.passage import Passage
from selfrag.decoding.answer import segments_of
from selfrag.decoding.policy import Action, Decoding
from selfrag.decoding.segments import APPLICABLE
from selfrag.decoding.terms import Effect, Guardrail, ScoreTerm
from selfrag.decoding.trace import QUESTION, Node, Status, segment_separator
from selfrag.decoding.tree import EvidenceFilterResult, JudgedEvidence, Tree
from selfrag.reflection.findings import Reflection
from selfrag.reflection.inputs import JudgeInput, Message
from selfrag.reflection.judge import NEEDS_PASSAGE, Judge, Scope
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import CRITIQUES
from selfrag.reflection.requests import Steps, gather


@dataclass(slots=True)
class _Level:
    """Judges of one cost."""

    terms: tuple[ScoreTerm, ...]  # they judge together
    capacity: int  # candidates that continue from here
    # candidates that passed the earlier levels and that this one has not judged
    waiting: list[Node] = field(default_factory=list)


def judge_candidates(tree: Tree, nodes: Sequence[Node]) -> Steps[list[Node]]:
    """Let all judges look at the usable candidates of a step, and return those that stay, in tree order."""
    costs = {name: judge.cost for name, judge in tree.judges.items()}
    capacities = tree.policy.capacities(costs, len(nodes))
    terms = [terms for _, terms in tree.policy.cascade_levels(costs)]
    levels = list(map(_Level, terms, capacities))
    passed = list(nodes)
    for number, level in enumerate(levels):
        level.waiting = passed
        passed = yield from _passing(tree, levels[: number + 1], level.capacity)
    return sorted(passed, key=attrgetter("id"))


def _passing(tree: Tree, levels: Sequence[_Level], most: int) -> Steps[list[Node]]:
    """Return up to `most` more candidates that pass the last of `levels`; fewer where the levels run out."""
    *before, level = levels
    passed: list[Node] = []
    while (missing := most - len(passed)) > 0:
        if not level.waiting and before:
            level.waiting = yield from _passing(tree, before, missing)
        if not level.waiting:
            break
        ranked = sorted(level.waiting, key=lambda node: (-node.path_score, node.id))
        wave = ranked[:missing]
        level.waiting = ranked[missing:]
        passed += yield from _judge(tree, wave, level.terms)
    return passed


def _judge(
    tree: Tree, nodes: Sequence[Node], terms: Sequence[ScoreTerm]
) -> Steps[list[Node]]:
    """Return the candidates that no judge of the level rejects."""
    steps = [_reflections(tree, nodes, term) for term in terms]
    by_term = yield from gather(steps)
    passed = []
    for position, node in enumerate(nodes):
        reflections = []
        for term, of_term in zip(terms, by_term, strict=True):
            reflections.append((term, of_term[position]))
            _record(node, term, of_term[position])
        tree.score(node)
        if _rejected(tree.policy, node, reflections):
            node.status = Status.FORBIDDEN
        else:
            passed.append(node)
    return passed


def _reflections(
    tree: Tree, nodes: Sequence[Node], term: ScoreTerm
) -> Steps[list[Reflection | None]]:
    """Return what the judge of a term says about each node; None where there is nothing to judge."""
    judge = tree.judges[term.judge]
    trace = tree.trace(None)
    keys: dict[int, JudgedEvidence | int] = {}
    inputs: dict[JudgedEvidence | int, JudgeInput] = {}
    for node in nodes:
        if not _applies(judge, term, node):
            continue
        passages: tuple[Passage, ...] = ()
        if node.passage is not None and judge.scope is not Scope.QUESTION:
            passages = (node.passage,)
        key: JudgedEvidence | int = node.id
        if judge.scope in (Scope.PASSAGE, Scope.QUESTION):
            key = _evidence_key(judge, passages)
            state = _input(tree, passages)
        else:
            before, _ = segments_of(trace, node.parent)
            state = _input(tree, passages, before, node.text.strip())
        keys[node.id] = key
        inputs[key] = state if judge.scope is Scope.ANSWER else state.without_context()
    reflections = yield from _ask(tree, judge, inputs)
    by_node = {node: reflections[key] for node, key in keys.items()}
    return [by_node.get(node.id) for node in nodes]


def _ask(
    tree: Tree, judge: Judge, inputs: Mapping[JudgedEvidence | int, JudgeInput]
) -> Steps[Mapping[JudgedEvidence | int, Reflection]]:
    """Return the reflection of each input. One on passages and question alone is kept for the whole question."""
    reflections = dict(tree.reflections)
    unknown = {key: state for key, state in inputs.items() if key not in reflections}
    if unknown:
        judged = yield from judge.judge(list(unknown.values()))
        for key, reflection in zip(unknown, judged, strict=True):
            reflections[key] = reflection
            if isinstance(key, tuple):
                tree.reflections[key] = reflection
    return reflections


def _evidence_key(judge: Judge, passages: Sequence[Passage]) -> JudgedEvidence:
    return judge.name, tuple(map(attrgetter("key"), passages))


def _input(
    tree: Tree, passages: tuple[Passage, ...], before: str = "", text: str = ""
) -> JudgeInput:
    """Return the question with its passages, and the text under judgment with the answer before it."""
    turns = [Message(turn.role, turn.text) for turn in tree.history]
    turns.append(Message("user", tree.question))
    begin = 0
    if text:
        lead = before + segment_separator(before, text)
        turns.append(Message("assistant", lead + text))
        begin = len(lead)
    return JudgeInput(tuple(turns), passages, begin=begin)


def _applies(judge: Judge, term: ScoreTerm, node: Node) -> bool:
    """Return whether there is anything in a candidate to judge."""
    needs_passage = judge.role in NEEDS_PASSAGE or judge.scope is Scope.PASSAGE
    if not node.text.strip() or (needs_passage and node.passage is None):
        return False
    if term.replaces is None:
        return True
    return any(labels.role == term.replaces for labels in APPLICABLE[node.branch])


def _record(node: Node, term: ScoreTerm, reflection: Reflection | None) -> None:
    evidence = None if node.passage is None else node.passage.id
    source = "no passage" if evidence is None else f"passage {evidence}"
    judgment = None
    if reflection is not None:
        judgment = reflection.mean(f"segment {node.depth}, {source}", evidence)
    if term.replaces is None:
        node.judges[term.judge] = judgment
    else:
        known = node.judgments | {term.replaces: judgment}
        node.judgments = {}
        for labels in CRITIQUES:  # in their order
            if labels.role in known:
                node.judgments[labels.role] = known[labels.role]
    if reflection is None:
        return
    if len(reflection.scored) > 1:
        node.places[term.judge] = reflection.scored
    if reflection.reason is not None:
        node.undefined[term.judge] = reflection.reason


def _rejected(
    policy: Decoding,
    node: Node,
    reflections: Sequence[tuple[ScoreTerm, Reflection | None]],
) -> bool:
    """Return whether a judgment is below its limit, or a critique judged just now violates a constraint."""
    roles = []
    for term, reflection in reflections:
        if term.replaces is not None:
            roles.append(term.replaces)
        lowest = None if reflection is None else reflection.lowest
        if term.least is not None and lowest is not None and lowest < term.least:
            return True
    return not policy.allows(node.judgments, roles)


def guardrail_decision(
    tree: Tree,
) -> Steps[tuple[Action, str, list[tuple[str, Judgment]]] | None]:
    """Return whether to search, by the guardrails on the question alone; None without a defined judgment."""
    guardrails = _of(tree, "retrieve")
    if not guardrails or tree.policy.mode != "adaptive":
        return None
    rows = yield from _judge_guardrails(tree, guardrails, [()], QUESTION)
    result = EvidenceFilterResult(())
    searches = False
    for guardrail, (judgment,) in zip(guardrails, rows, strict=True):
        searches |= result.note(guardrail, judgment, "search")
    if not result.judged:
        return None
    if searches:
        return "retrieve", "; ".join(result.reasons), result.judged
    reasons = []
    for name, judgment in result.judged:
        reasons.append(f"{name} {judgment.score:.3f}, no search")
    return "write", "; ".join(reasons), result.judged


def filter_evidence(
    tree: Tree, searches: Sequence[tuple[Passage, ...]], *, first: bool
) -> Steps[list[EvidenceFilterResult]]:
    """Filter the passages of each search by the guardrails, which may abstain at the start of the answer (`first`)."""
    admitted = list(map(EvidenceFilterResult, searches))
    yield from _drop(tree, [search for search in admitted if search.passages])
    guardrails = _of(tree, "write")
    if first:
        guardrails += _of(tree, "abstain")
    remaining = [search for search in admitted if search.passages]
    if not guardrails or not remaining:
        return admitted
    evidence = [search.passages for search in remaining]
    rows = yield from _judge_guardrails(
        tree, guardrails, evidence, "question and passages"
    )
    for position, search in enumerate(remaining):
        for guardrail, row in zip(guardrails, rows, strict=True):
            outcome = "abstain" if guardrail.effect == "abstain" else "no evidence"
            if search.note(guardrail, row[position], outcome):
                search.passages = ()
                search.abstained |= guardrail.effect == "abstain"
                search.writes |= guardrail.effect == "write"
    return admitted


def _drop(tree: Tree, searches: Sequence[EvidenceFilterResult]) -> Steps[None]:
    """Leave out the passages that a guardrail refuses one by one."""
    guardrails = _of(tree, "drop")
    places: dict[tuple[str, str, str], int] = {}  # of each passage among all
    evidence: list[tuple[Passage, ...]] = []
    for search in searches:
        for passage in search.passages:
            if places.setdefault(passage.key, len(evidence)) == len(evidence):
                evidence.append((passage,))
    if not guardrails or not evidence:
        return
    rows = yield from _judge_guardrails(tree, guardrails, evidence, "passage")
    for search in searches:
        kept = []
        for passage in search.passages:
            outcome = f"passage {passage.id} left out"
            is_below = False
            for guardrail, row in zip(guardrails, rows, strict=True):
                is_below |= search.note(guardrail, row[places[passage.key]], outcome)
            if not is_below:
                kept.append(passage)
        search.passages = tuple(kept)


def _judge_guardrails(
    tree: Tree,
    guardrails: Sequence[Guardrail],
    evidence: Sequence[tuple[Passage, ...]],
    site: str,
) -> Steps[list[list[Judgment | None]]]:
    """Return a row for each guardrail with a judgment for each evidence."""
    steps = []
    for guardrail in guardrails:
        judge = tree.judges[guardrail.judge]
        steps.append(_ask_about_evidence(tree, judge, evidence))
    by_judge = yield from gather(steps)
    rows = []
    for reflections in by_judge:
        row = []
        for passages, reflection in zip(evidence, reflections, strict=True):
            if len(passages) == 1:
                row.append(reflection.mean(f"{site} {passages[0].id}", passages[0].id))
            else:
                row.append(reflection.mean(site, None))
        rows.append(row)
    return rows


def _ask_about_evidence(
    tree: Tree, judge: Judge, evidence: Sequence[tuple[Passage, ...]]
) -> Steps[list[Reflection]]:
    """Return what a judge says of the question with each evidence."""
    inputs: dict[JudgedEvidence | int, JudgeInput] = {}
    for passages in evidence:
        inputs[_evidence_key(judge, passages)] = _input(tree, passages)
    reflections = yield from _ask(tree, judge, inputs)
    return [reflections[_evidence_key(judge, passages)] for passages in evidence]


def _of(tree: Tree, effect: Effect) -> list[Guardrail]:
    return [part for part in tree.policy.guardrails if part.effect == effect]
