"""Reflectors on the candidates of a step, cheap ones first, dear ones on survivors only. Sans-IO.

Before each tier the candidates are ranked by what is known so far; only the best go on. Where a reflector rejects one
of these, the next in rank takes its place; where none is left, the tier before lets more through. So candidates that
nobody rejects remain unless there is none. Replaying a trace repeats the same arithmetic (`replay_tiers`).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from selfrag.decoding.answer import segments_of
from selfrag.decoding.critics import Asking, Moment, Verdict, together
from selfrag.decoding.joining import Joined
from selfrag.decoding.policy import Decoding
from selfrag.decoding.reading import applicable
from selfrag.decoding.requests import Result
from selfrag.decoding.trace import Node, Status
from selfrag.decoding.tree import Asked, Batch, Tree, counted
from selfrag.reflection.labels import CRITIQUES


@dataclass(slots=True)
class _Tier:
    """Reflectors of one cost.

    Attributes:
        group: they judge together.
        most: candidates that go on from here.
        waiting: candidates that the tiers before let through and this one has not judged.
    """

    group: tuple[Joined, ...]
    most: int
    waiting: list[Node] = field(default_factory=list)


def judge_candidates(tree: Tree, nodes: Sequence[Node]) -> Generator[Batch, list[Result], list[Node]]:
    """Let all reflectors judge, and return the candidates that stay, in tree order.

    Args:
        tree: the question.
        nodes: usable candidates of one step, scored by the model's own critiques.
    """
    costs = {name: critic.cost for name, critic in tree.critics.items()}
    rooms = tree.policy.rooms(costs, len(nodes))
    tiers = [_Tier(group, most) for (_, group), most in zip(tree.policy.tiers(costs), rooms, strict=True)]
    passed = list(nodes)
    for number, tier in enumerate(tiers):
        tier.waiting = passed
        passed = yield from _passing(tree, tiers[: number + 1], tier.most)
    return sorted(passed, key=lambda node: node.id)


def _passing(tree: Tree, tiers: Sequence[_Tier], wanted: int) -> Generator[Batch, list[Result], list[Node]]:
    """Up to `wanted` more candidates that the last of some tiers lets through, as far as the tiers have any."""
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


def _judge(tree: Tree, nodes: Sequence[Node], group: tuple[Joined, ...]) -> Generator[Batch, list[Result], list[Node]]:
    """Of some candidates those that no reflector of a tier rejects."""
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


def _verdicts(tree: Tree, nodes: Sequence[Node], part: Joined) -> Asking[list[Verdict]]:
    """One verdict a node; those that are not to be judged, or were judged before, cost nothing."""
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


def _judged(node: Node, part: Joined, *, needs_evidence: bool) -> bool:
    if not node.text.strip() or (needs_evidence and node.passage is None):
        return False
    return part.replaces is None or part.replaces in {labels.role for labels in applicable(node.branch)}


def _record(node: Node, part: Joined, verdict: Verdict) -> None:
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


def _rejected(policy: Decoding, node: Node, verdicts: Sequence[tuple[Joined, Verdict]]) -> bool:
    """Whether a place falls below its gate, or a constraint on a critique that was just judged is not met."""
    for part, verdict in verdicts:
        lowest = verdict.lowest
        if part.gate is not None and lowest is not None and lowest < part.gate:
            return True
    roles = [part.replaces for part, _ in verdicts if part.replaces is not None]
    return not policy.allows(node.judgments, roles)
