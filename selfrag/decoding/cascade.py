"""Cascade of reflectors: cheap ones judge all candidates, expensive ones only those that remain; and guardrails."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from retrieval.passage import Passage
from selfrag.decoding.answer import segments_of
from selfrag.decoding.policy import Action, Decoding
from selfrag.decoding.reflectors import Asking, Effect, Guardrail, Moment, ScoreTerm, Verdict, together
from selfrag.decoding.segments import APPLICABLE
from selfrag.decoding.trace import QUESTION, Node, Status
from selfrag.decoding.tree import Admitted, Asked, Tree, counted
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import CRITIQUES


@dataclass(slots=True)
class _Tier:
    """Reflectors of one cost."""

    group: tuple[ScoreTerm, ...]  # they judge together
    most: int  # candidates that continue from here
    # candidates that passed the earlier tiers and that this one has not judged
    waiting: list[Node] = field(default_factory=list)


def judge_candidates(tree: Tree, nodes: Sequence[Node]) -> Asking[list[Node]]:
    """Let all reflectors judge the usable candidates of a step, and return those that stay, in tree order."""
    costs = {name: critic.cost for name, critic in tree.critics.items()}
    rooms = tree.policy.rooms(costs, len(nodes))
    tiers = [_Tier(group, most) for (_, group), most in zip(tree.policy.tiers(costs), rooms, strict=True)]
    passed = list(nodes)
    for number, tier in enumerate(tiers):
        tier.waiting = passed
        passed = yield from _passing(tree, tiers[: number + 1], tier.most)
    return sorted(passed, key=lambda node: node.id)


def _passing(tree: Tree, tiers: Sequence[_Tier], wanted: int) -> Asking[list[Node]]:
    """Returns up to `wanted` more candidates that pass the last of `tiers`; fewer where the tiers run out."""
    *before, tier = tiers
    passed: list[Node] = []
    while (missing := wanted - len(passed)) > 0:
        if not tier.waiting and before:
            tier.waiting = yield from _passing(tree, before, missing)
        if not tier.waiting:
            break
        ranked = sorted(tier.waiting, key=lambda node: (-node.path_score, node.id))
        wave, tier.waiting = ranked[:missing], ranked[missing:]
        passed += yield from _judge(tree, wave, tier.group)
    return passed


def _judge(tree: Tree, nodes: Sequence[Node], group: tuple[ScoreTerm, ...]) -> Asking[list[Node]]:
    """Returns the candidates that no reflector of the tier rejects."""
    verdicts = yield from together([_verdicts(tree, nodes, part) for part in group])
    passed = []
    for position, node in enumerate(nodes):
        own = [(part, found[position]) for part, found in zip(group, verdicts, strict=True)]
        for part, verdict in own:
            _record(node, part, verdict)
        tree.score(node)
        if _rejected(tree.policy, node, own):
            node.status = Status.FORBIDDEN
        else:
            passed.append(node)
    return passed


def _verdicts(tree: Tree, nodes: Sequence[Node], part: ScoreTerm) -> Asking[list[Verdict]]:
    """Returns one verdict for each node. A node that needs no judgment, or has one already, costs nothing."""
    critic, trace = tree.critics[part.reflector], tree.trace(None)
    found: dict[int, Verdict] = {}
    moments: dict[int | Asked, tuple[Moment, list[int]]] = {}
    for node in nodes:
        if not _judged(node, part, needs_evidence=critic.needs_evidence):
            found[node.id] = Verdict()
            continue
        evidence = () if node.passage is None else (node.passage,)
        if critic.of_passages and node.passage is not None:
            shared = (critic.name, (node.passage.key,))
            if shared in tree.asked:
                found[node.id] = tree.asked[shared]
            else:
                moment = Moment(tree.question, tree.history, evidence)
                moments.setdefault(shared, (moment, []))[1].append(node.id)
            continue
        before = segments_of(trace, node.parent)[0]
        moments[node.id] = (Moment(tree.question, tree.history, evidence, before, node.text.strip()), [node.id])
    if moments:
        asked = yield from counted(tree, critic.judge([moment for moment, _ in moments.values()]))
        for (key, (_, owners)), verdict in zip(moments.items(), asked, strict=True):
            found |= dict.fromkeys(owners, verdict)
            if isinstance(key, tuple):
                tree.asked[key] = verdict
    return [found[node.id] for node in nodes]


def _judged(node: Node, part: ScoreTerm, *, needs_evidence: bool) -> bool:
    if not node.text.strip() or (needs_evidence and node.passage is None):
        return False
    return part.replaces is None or part.replaces in {labels.role for labels in APPLICABLE[node.branch]}


def _record(node: Node, part: ScoreTerm, verdict: Verdict) -> None:
    evidence = None if node.passage is None else node.passage.id
    source = "no passage" if evidence is None else f"passage {evidence}"
    judgment = verdict.mean(f"segment {node.depth}, {source}", evidence)
    if part.replaces is None:
        node.joined[part.reflector] = judgment
    else:
        known = node.judgments | {part.replaces: judgment}
        node.judgments = {labels.role: known[labels.role] for labels in CRITIQUES if labels.role in known}
    if len(verdict.places) > 1:
        node.places[part.reflector] = verdict.places


def _rejected(policy: Decoding, node: Node, verdicts: Sequence[tuple[ScoreTerm, Verdict]]) -> bool:
    """Whether a place scores below its threshold, or a critique judged just now violates a constraint."""
    for part, verdict in verdicts:
        lowest = verdict.lowest
        if part.gate is not None and lowest is not None and lowest < part.gate:
            return True
    roles = [part.replaces for part, _ in verdicts if part.replaces is not None]
    return not policy.allows(node.judgments, roles)


Judging = Asking[list[list[Judgment | None]]]


def route(tree: Tree) -> Asking[tuple[Action, str, list[tuple[str, Judgment]]] | None]:
    """Whether to search, by the guardrails on the question alone; None without a defined judgment."""
    gates = _of(tree, "retrieve")
    if not gates or tree.policy.mode != "adaptive":
        return None
    rows = yield from _judge_gate(tree, gates, [Moment(tree.question, tree.history)], QUESTION)
    asked = Admitted(())
    below = [asked.note(gate, row[0], "search") for gate, row in zip(gates, rows, strict=True)]
    if not asked.judged:
        return None
    sure = [f"{name} {judgment.score:.3f}, no search" for name, judgment in asked.judged]
    kept = "; ".join(asked.reasons or sure)
    return ("retrieve" if any(below) else "write"), kept, asked.judged


def admit(tree: Tree, searches: Sequence[tuple[Passage, ...]], *, first: bool) -> Asking[list[Admitted]]:
    """Filters the passages of each search by the guardrails, which may abstain at the start of the answer (`first`)."""
    admitted = [Admitted(passages) for passages in searches]
    yield from _drop(tree, [one for one in admitted if one.passages])
    effects: list[Effect] = ["write", "abstain"] if first else ["write"]
    gates = [gate for effect in effects for gate in _of(tree, effect)]
    open_ones = [one for one in admitted if one.passages]
    if not gates or not open_ones:
        return admitted
    moments = [Moment(tree.question, tree.history, one.passages) for one in open_ones]
    rows = yield from _judge_gate(tree, gates, moments, "question and passages")
    for position, one in enumerate(open_ones):
        for gate, row in zip(gates, rows, strict=True):
            done = "abstain" if gate.effect == "abstain" else "no evidence"
            if one.note(gate, row[position], done):
                one.passages = ()
                one.abstained |= gate.effect == "abstain"
                one.writes |= gate.effect == "write"
    return admitted


def _drop(tree: Tree, admitted: Sequence[Admitted]) -> Asking[None]:
    gates = _of(tree, "drop")
    passages = list({passage.key: passage for one in admitted for passage in one.passages}.values())
    if not gates or not passages:
        return
    moments = [Moment(tree.question, tree.history, (passage,)) for passage in passages]
    rows = yield from _judge_gate(tree, gates, moments, "passage")
    position = {passage.key: i for i, passage in enumerate(passages)}
    for one in admitted:
        below = {
            passage.key
            for passage in one.passages
            for gate, row in zip(gates, rows, strict=True)
            if one.note(gate, row[position[passage.key]], f"passage {passage.id} left out")
        }
        one.passages = tuple(passage for passage in one.passages if passage.key not in below)


def _judge_gate(tree: Tree, gates: Sequence[Guardrail], moments: Sequence[Moment], site: str) -> Judging:
    """A row for each gate with a judgment for each moment; a verdict on one passage is kept for the whole question."""
    verdicts = yield from together([_asked(tree, gate, moments) for gate in gates])
    return [[_mean(verdict, moment, site) for verdict, moment in zip(row, moments, strict=True)] for row in verdicts]


def _asked(tree: Tree, gate: Guardrail, moments: Sequence[Moment]) -> Asking[list[Verdict]]:
    critic = tree.critics[gate.reflector]
    keys = [(critic.name, tuple(passage.key for passage in moment.passages)) for moment in moments]
    fresh = [(key, moment) for key, moment in zip(keys, moments, strict=True) if key not in tree.asked]
    if fresh:
        found = yield from counted(tree, critic.judge([moment for _, moment in fresh]))
        tree.asked |= {key: verdict for (key, _), verdict in zip(fresh, found, strict=True)}
    return [tree.asked[key] for key in keys]


def _mean(verdict: Verdict, moment: Moment, site: str) -> Judgment | None:
    one = moment.passages[0].id if len(moment.passages) == 1 else None
    return verdict.mean(site if one is None else f"{site} {one}", one)


def _of(tree: Tree, effect: Effect) -> list[Guardrail]:
    return [gate for gate in tree.policy.gates if gate.effect == effect]
