"""Re-ranking recorded traces under other weights or thresholds, without the model. Vectorised over settings.

The recorded tree is replayed: at each step the candidates of the hypotheses alive under the new setting are ranked
anew. Where the replay needs something that was never generated (a hypothesis that was pruned when the tree was
recorded, or the other side of a retrieval decision), it goes on with what there is and reports the result as
approximate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from selfrag.decoding.answer import Answer, segments_of
from selfrag.decoding.scoring import Floats, critique_scores, group_scores
from selfrag.decoding.trace import ROOT, UNUSABLE, Decision, Node, Trace
from selfrag.errors import UserError
from selfrag.reflection.weights import Weights

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Replay:
    """What S settings choose in one trace.

    Attributes:
        best: [S] id of the node that ends the answer, -1 where there is none.
        exact: [S] whether the recorded tree held everything that the setting asks for.
        path_scores: [S, N] score of the hypothesis that ends at each node.
        segment_scores: [S, N] score of each node.
    """

    best: Ints
    exact: Bools
    path_scores: Floats
    segment_scores: Floats


def replay(trace: Trace, weights: Sequence[Weights] | Floats, threshold: float | None = None) -> Replay:
    """Search the recorded tree again under other settings.

    Args:
        trace: a recorded decode.
        weights: S settings, as `Weights` or as an array [S, 3] in the order isrel, issup, isuse.
        threshold: another retrieval threshold for all settings; None keeps the recorded one.
    """
    matrix = np.asarray([w.vector if isinstance(w, Weights) else w for w in weights], dtype=np.float64)
    count, nodes = len(matrix), trace.nodes
    if not nodes:
        nothing = np.zeros((count, 0))
        return Replay(np.full(count, -1), np.ones(count, dtype=bool), nothing, nothing)
    scores = np.stack([group_scores(node.judgments) for node in nodes])
    likelihood = np.array([node.likelihood for node in nodes])
    critique = critique_scores(scores, matrix, trace.decoding.undefined)
    if trace.options:
        return _replay_options(trace, likelihood, critique)
    segment = likelihood + critique
    path = _path_scores(trace, segment)
    alive = _Alive(trace, count, path)
    expanded = {decision.after: decision for decision in trace.decisions}
    _check_decision(trace, expanded.get(ROOT), alive, np.ones(count, dtype=bool), threshold)
    for level in _levels(nodes):
        alive.step(level)
        for node in level:
            chosen = alive.live[:, node.id]
            if not chosen.any():
                continue
            followed = expanded.get(node.id)
            if node.ended or node.depth == trace.decoding.max_segments or not _has_children(nodes, node):
                alive.finished[:, node.id] = chosen
                complete = node.ended or node.depth == trace.decoding.max_segments or followed is not None
                complete = complete or _spent(trace, node) >= trace.decoding.answer_tokens
                if not complete:
                    alive.exact &= ~chosen
            _check_decision(trace, followed, alive, chosen, threshold)
    ends = np.where(alive.finished, path, -np.inf)
    best = np.where(alive.finished.any(axis=1), ends.argmax(axis=1), -1)
    return Replay(best, alive.exact, path, segment)


def rescore(answer: Answer, weights: Weights | None = None, threshold: float | None = None) -> Answer:
    """The answer that other weights or another threshold would have given, as far as the trace knows.

    `exact` of the result is False where the recorded tree was not complete for the setting.

    Raises:
        UserError: the answer holds no trace because it failed, or the threshold is out of range.
    """
    if answer.error is not None:
        raise UserError(f"this answer failed ({answer.error}); there is nothing to rescore")
    policy = answer.trace.decoding
    changed = replace(
        policy,
        weights=weights or policy.weights,
        threshold=policy.threshold if threshold is None else threshold,
    )
    result = replay(answer.trace, [changed.weights], threshold)
    nodes = tuple(
        replace(node, score=float(result.segment_scores[0, i]), path_score=float(result.path_scores[0, i]))
        for i, node in enumerate(answer.trace.nodes)
    )
    best = int(result.best[0])
    trace = replace(answer.trace, decoding=changed, nodes=nodes, best=best if best >= 0 else None)
    text, segments = segments_of(trace, trace.best)
    return replace(answer, text=text, segments=segments, trace=trace, exact=bool(result.exact[0]))


def sweep(answers: Sequence[Answer], weights: Sequence[Weights] | Floats) -> tuple[Ints, Bools]:
    """Choices of S settings for A answers: ids of the ending nodes [A, S] and whether each is exact [A, S]."""
    matrix = np.asarray([w.vector if isinstance(w, Weights) else w for w in weights], dtype=np.float64)
    replays = [replay(answer.trace, matrix) for answer in answers]
    return np.stack([r.best for r in replays]), np.stack([r.exact for r in replays])


class _Alive:
    """Which nodes the S settings keep, level after level."""

    def __init__(self, trace: Trace, count: int, path: Floats) -> None:
        self.beam = trace.decoding.beam
        self.nodes = trace.nodes
        self.path = path
        self.live: Bools = np.zeros((count, len(trace.nodes)), dtype=bool)
        self.finished: Bools = np.zeros_like(self.live)
        self.exact: Bools = np.ones(count, dtype=bool)
        self.texts = _text_keys(trace)

    def step(self, level: Sequence[Node]) -> None:
        """Keep the best `beam` of a level's candidates; of equal texts only the best, of equal scores the earlier."""
        usable = [node for node in level if node.status not in UNUSABLE]
        if not usable:
            return
        ids = np.array([node.id for node in usable])
        parents = np.array([node.parent for node in usable])
        reachable = np.where(parents == ROOT, True, self.live[:, parents])
        values = np.where(reachable, self.path[:, ids], -np.inf)
        for column, other in _twins([self.texts[node.id] for node in usable]):
            worse = values[:, column] > values[:, other]
            values[worse, other] = -np.inf
            values[~worse, column] = -np.inf
        order = np.argsort(-values, axis=1, kind="stable")[:, : self.beam]
        rows = np.arange(len(values))[:, None]
        kept = np.zeros_like(reachable, shape=values.shape)
        kept[rows, order] = np.isfinite(values[rows, order])
        self.live[:, ids] = kept


def _twins(keys: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs (later, earlier) of columns with the same text."""
    return [(i, j) for i in range(len(keys)) for j in range(i) if keys[i] == keys[j]]


def _text_keys(trace: Trace) -> list[int]:
    """A number for each node, equal where the texts of the whole paths are."""
    known: dict[tuple[int, str], int] = {}
    keys: list[int] = []
    for node in trace.nodes:
        before = -1 if node.parent == ROOT else keys[node.parent]
        keys.append(known.setdefault((before, node.text), len(known)))
    return keys


def _path_scores(trace: Trace, segment: Floats) -> Floats:
    """[S, N] path scores from segment scores, parents first."""
    product = trace.decoding.accumulate == "product"
    total = segment.copy()
    for node in trace.nodes:
        if node.parent != ROOT:
            before = total[:, node.parent]
            total[:, node.id] = before * segment[:, node.id] if product else before + segment[:, node.id]
    if trace.decoding.accumulate == "mean":
        total = total / np.array([node.depth for node in trace.nodes])
    return total


def _levels(nodes: Sequence[Node]) -> list[list[Node]]:
    deepest = max(node.depth for node in nodes)
    return [[node for node in nodes if node.depth == depth] for depth in range(1, deepest + 1)]


def _has_children(nodes: Sequence[Node], node: Node) -> bool:
    return any(other.parent == node.id and other.status not in UNUSABLE for other in nodes)


def _spent(trace: Trace, node: Node) -> int:
    return sum(len(step.token_ids) + 1 for step in trace.path(node.id))


def _check_decision(
    trace: Trace, decision: Decision | None, alive: _Alive, chosen: Bools, threshold: float | None
) -> None:
    """A setting is only approximate where its threshold would have decided otherwise."""
    if decision is None or threshold is None:
        return
    before = trace.path(decision.after if decision.after != ROOT else None)
    has_evidence = any(node.passage is not None for node in before)
    action, _ = replace(trace.decoding, threshold=threshold).action(decision.judgment, has_evidence=has_evidence)
    nothing_found = decision.action == "write" and decision.query is not None
    if action != decision.action and not (nothing_found and action == "retrieve"):
        alive.exact &= ~chosen


def _replay_options(trace: Trace, likelihood: Floats, critique: Floats) -> Replay:
    """Closed sets: the option with the largest sum over passages, shown with its best passage."""
    usable = np.array([node.status not in UNUSABLE for node in trace.nodes])
    parts = np.where(usable, np.maximum(critique, 0.0) * likelihood, 0.0)
    option = np.array([trace.options.index(node.text) for node in trace.nodes])
    totals = np.stack([parts[:, option == i].sum(axis=1) for i in range(len(trace.options))], axis=1)
    winner = totals.argmax(axis=1)
    own = np.where((option[None, :] == winner[:, None]) & usable, parts, -np.inf)
    best = np.where(usable.any(), own.argmax(axis=1), -1)
    return Replay(best, np.ones(len(critique), dtype=bool), totals[:, option], parts)
