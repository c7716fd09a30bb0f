"""A recorded decode as a narrower policy would have run it: the same tree with what that policy leaves out taken away.

One decode at threshold 0 with the branch without evidence beside the passages holds the decodes at every threshold;
one with ten passages those with five or one. Where the record lacks something, the narrowed tree says after which node.
Which of its candidates then win is `selfrag.decoding.rescore`'s business.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from selfrag.decoding.policy import Action, Decoding
from selfrag.decoding.reading import applicable
from selfrag.decoding.trace import ROOT, UNUSABLE, Decision, Node, Status, Trace

STEERABLE = frozenset(
    {
        "mode",
        "threshold",
        "retrieve_test",
        "no_retrieval_branch",
        "passages",
        "beam",
        "max_segments",
        "weights",
        "accumulate",
        "require",
        "forbid",
    }
)
"""Fields of `Decoding` that a record can be asked about; all others change what the model writes or reads."""


@dataclass(frozen=True, slots=True)
class Narrowed:
    """A tree that another policy would have grown.

    Attributes:
        trace: with ids of its own; `trace.decoding` is that policy.
        incomplete: nodes of it, or `ROOT`, after which the policy would have generated what was not recorded. What
            was recorded there is kept, for an approximation.
    """

    trace: Trace
    incomplete: frozenset[int]


def narrow(recorded: Trace, policy: Decoding) -> Narrowed | None:
    """The recorded tree under another policy.

    None if the two differ in more than `STEERABLE`, or if reflectors or gates took part and more than weights differ:
    then the record says nothing about the policy.
    """
    chosen = actions(recorded, policy)
    if chosen is None:
        return None
    after = {decision.after: (decision, action) for decision, action in zip(recorded.decisions, chosen, strict=True)}
    children: dict[int, list[Node]] = {}
    for node in recorded.nodes:
        children.setdefault(node.parent, []).append(node)
    wanted: dict[int, list[Node]] = {}
    lacking: set[int] = set()
    for place, (decision, action) in after.items():
        wanted[place], complete = _following(recorded, policy, decision, action, children.get(place, []))
        if not complete:
            lacking.add(place)
    forbidden, unknown = _constrained(recorded, policy)
    lacking |= {recorded.nodes[i].parent for i in unknown}
    return _rebuilt(recorded, policy, wanted, after, lacking, forbidden)


def actions(recorded: Trace, policy: Decoding) -> tuple[Action | None, ...] | None:
    """What the policy would do at each recorded boundary, None where the record does not know.

    None in place of all where the record says nothing about the policy.
    """
    if not _comparable(recorded.decoding, policy):
        return None
    return tuple(_action(recorded, policy, decision) for decision in recorded.decisions)


def _comparable(recorded: Decoding, policy: Decoding) -> bool:
    differing = {item.name for item in fields(Decoding) if getattr(recorded, item.name) != getattr(policy, item.name)}
    if recorded.reflectors or recorded.gates:
        return differing <= {"weights"}
    if (recorded.require or recorded.forbid) and differing & {"require", "forbid"}:
        return False  # which candidates were only forbidden is not told apart
    return differing <= STEERABLE


def _action(recorded: Trace, policy: Decoding, decision: Decision) -> Action | None:
    if recorded.decoding.gates or decision.action == "abstain":
        return decision.action
    unread = recorded.decoding.mode != "adaptive" and decision.after == ROOT
    if policy.mode == "adaptive" and unread:
        return None  # the start of the answer was not looked at
    path = recorded.path(None if decision.after == ROOT else decision.after)
    return policy.action(decision.judgment, has_evidence=any(step.passage is not None for step in path))[0]


def _following(
    recorded: Trace, policy: Decoding, decision: Decision, action: Action | None, children: Sequence[Node]
) -> tuple[list[Node], bool]:
    """Of the recorded candidates after a boundary those that the policy would have, and whether these are all."""
    everything = list(children)
    if action == "write":
        without = [node for node in children if node.branch == "none"]
        return without or everything, bool(without)
    if action is None or action != decision.action:
        return everything, False
    complete = action != "retrieve" or _enough(recorded, policy, decision)
    if action != "retrieve" or not decision.passages:
        return everything, complete
    kept = {passage.key for passage in decision.passages[: policy.passages]}
    chosen = [node for node in children if node.passage is not None and node.passage.key in kept]
    if policy.no_retrieval_branch:
        chosen += [node for node in children if node.branch == "none"]
        complete &= recorded.decoding.no_retrieval_branch
    return chosen, complete


def _enough(recorded: Trace, policy: Decoding, decision: Decision) -> bool:
    """Whether the passages that the policy would read are known: given ones are, a search may answer otherwise."""
    most = recorded.decoding.passages
    if policy.passages == most:
        return True
    given = all(other.query is None for other in recorded.decisions)  # without a query of its own: given, or kept
    return given and (policy.passages < most or len(decision.passages) < most)


def _constrained(recorded: Trace, policy: Decoding) -> tuple[frozenset[int], frozenset[int]]:
    """Nodes that the policy's constraints forbid, and nodes whose critique it would have had to ask for."""
    constraints = (policy.require, policy.forbid)
    if constraints == (recorded.decoding.require, recorded.decoding.forbid):
        return frozenset(), frozenset()
    roles = policy.constrained
    open_nodes = [node for node in recorded.nodes if node.status not in UNUSABLE]
    unread = {
        node.id
        for node in open_nodes
        if any(labels.role in roles and node.judgments.get(labels.role) is None for labels in applicable(node.branch))
    }
    forbidden = {node.id for node in open_nodes if node.id not in unread and not policy.allows(node.judgments)}
    return frozenset(forbidden), frozenset(unread)


def _rebuilt(
    recorded: Trace,
    policy: Decoding,
    wanted: dict[int, list[Node]],
    after: dict[int, tuple[Decision, Action | None]],
    lacking: set[int],
    forbidden: frozenset[int],
) -> Narrowed:
    """The tree of the wanted nodes, numbered anew; what followed a node that is left out is left out with it."""
    number = {ROOT: ROOT}
    nodes: list[Node] = []
    kept = {node.id for found in wanted.values() for node in found}
    for node in recorded.nodes:
        if node.id in kept and node.parent in number:
            number[node.id] = len(nodes)
            status = Status.FORBIDDEN if node.id in forbidden else node.status
            nodes.append(replace(node, id=len(nodes), parent=number[node.parent], status=status))
    decisions = tuple(
        _renamed(decision, number[place], policy, None if place in lacking else action)
        for place, (decision, action) in after.items()
        if place in number
    )
    trace = replace(recorded, decoding=policy, nodes=tuple(nodes), decisions=decisions, best=None)
    return Narrowed(trace, frozenset(number[place] for place in lacking if place in number))


def _renamed(decision: Decision, place: int, policy: Decoding, action: Action | None) -> Decision:
    if action is None:
        return replace(decision, after=place)
    if action == "write":
        return replace(decision, after=place, action=action, query=None, passages=())
    return replace(decision, after=place, action=action, passages=decision.passages[: policy.passages])
