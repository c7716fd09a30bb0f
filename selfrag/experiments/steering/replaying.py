"""What many policies answer from one recorded decode: outputs as metrics read them, and whether each is exact. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from selfrag.decoding.answer import Answer, Usage, segments_of
from selfrag.decoding.policy import Decoding
from selfrag.decoding.rescore import Replay, replay
from selfrag.decoding.trace import ROOT, Status, Trace
from selfrag.evaluation.metrics.output import USAGE, Output, output_of
from selfrag.experiments.steering.narrowing import Narrowed, actions, narrow
from selfrag.reflection.weights import Weights


@dataclass(frozen=True, slots=True)
class Replayed:
    """What one policy answers.

    Attributes:
        output: None if nothing could be generated for this policy. Its usage is estimated: that of the recorded
            decode times `share`.
        exact: whether the record held everything that the policy asks for.
        share: candidates that the policy would have generated, of those that were recorded.
    """

    output: Output | None
    exact: bool
    share: float


@dataclass(frozen=True, slots=True)
class Grouped:
    """Policies sorted so that those that differ in weights only are replayed together.

    Attributes:
        policies: as given.
        shapes: distinct policies, weights aside.
        shape: for each policy the position of its shape.
        families: for each shape a number, equal where shapes differ in when they retrieve only: these grow the same
            tree wherever they decide alike.
    """

    policies: tuple[Decoding, ...]
    shapes: tuple[Decoding, ...]
    shape: tuple[int, ...]
    families: tuple[int, ...]

    @classmethod
    def of(cls, policies: Sequence[Decoding]) -> Grouped:
        """Sort policies."""
        shapes: list[Decoding] = []
        kinds: list[Decoding] = []
        shape = [_position(shapes, replace(policy, weights=Weights())) for policy in policies]
        families = [
            _position(kinds, replace(one, mode="always", threshold=None, retrieve_test="yes_no")) for one in shapes
        ]
        return cls(tuple(policies), tuple(shapes), tuple(shape), tuple(families))

    def alike(self, policy: Decoding) -> list[int]:
        """Positions of the policies that differ from one in weights only."""
        wanted = replace(policy, weights=Weights())
        return [i for i, number in enumerate(self.shape) if self.shapes[number] == wanted]


def replay_all(trace: Trace, usage: Mapping[str, int], grouped: Grouped) -> list[Replayed | None]:
    """What each policy answers from one record; None where the record says nothing about the policy.

    Args:
        trace: a recorded decode.
        usage: what it took, by the names of `USAGE`.
        grouped: the policies.
    """
    together: dict[object, list[int]] = {}
    for number, policy in enumerate(grouped.shapes):
        chosen = actions(trace, policy)
        if chosen is not None:
            members = [i for i, shape in enumerate(grouped.shape) if shape == number]
            together.setdefault((grouped.families[number], chosen), []).extend(members)
    found: list[Replayed | None] = [None] * len(grouped.policies)
    for members in together.values():
        narrowed = narrow(trace, grouped.policies[members[0]])
        if narrowed is None:
            continue
        weights = [grouped.policies[i].weights for i in members]
        for i, one in zip(members, _answers(trace, usage, narrowed, weights), strict=True):
            found[i] = one
    return found


def _position(known: list[Decoding], policy: Decoding) -> int:
    """Where a policy stands in a list, added if it is new. Policies hold mappings and cannot be hashed."""
    if policy not in known:
        known.append(policy)
    return known.index(policy)


def _answers(
    recorded: Trace, usage: Mapping[str, int], narrowed: Narrowed, weights: Sequence[Weights]
) -> list[Replayed]:
    trace = narrowed.trace
    if trace.options and not trace.nodes:  # the passages that are left could not be scored
        return [Replayed(None, False, 0.0)] * len(weights)
    chosen = replay(trace, weights)
    known: dict[tuple[int, bytes], Replayed] = {}
    answers = []
    for setting in range(len(weights)):
        expanded = _expanded(trace, chosen, setting)
        key = (int(chosen.best[setting]), bytes(chosen.kept[:, setting]))
        if key not in known:
            known[key] = _answer(recorded, usage, trace, key[0], expanded)
        exact = bool(chosen.exact[setting]) and not expanded & narrowed.incomplete
        answers.append(replace(known[key], exact=exact))
    return answers


def _expanded(trace: Trace, chosen: Replay, setting: int) -> frozenset[int]:
    """Nodes after which the search goes on under one setting, the root among them."""
    live = {
        node.id
        for node in trace.nodes
        if chosen.kept[node.id, setting] and not (node.ended or node.depth >= trace.decoding.max_segments)
    }
    return frozenset(live | {ROOT})


def _answer(recorded: Trace, usage: Mapping[str, int], trace: Trace, best: int, expanded: frozenset[int]) -> Replayed:
    grown = [node for node in trace.nodes if node.parent in expanded]
    share = len(grown) / len(recorded.nodes) if recorded.nodes else 1.0
    if grown and all(node.status is Status.FAILED for node in grown):
        return Replayed(None, True, share)
    decisions = tuple(decision for decision in trace.decisions if decision.after in expanded)
    seen = replace(trace, decisions=decisions, best=None if best < 0 else best)
    text, segments = segments_of(seen, seen.best)
    cost = Usage(**{name: round(share * usage.get(name, 0)) for name in USAGE})
    return Replayed(output_of(Answer(trace.question, text, segments, cost, seen)), True, share)
