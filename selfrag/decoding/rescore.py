"""Re-ranking recorded traces under other weights or thresholds, without the model; vectorised over settings."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from selfrag.common.errors import UserError
from selfrag.decoding.policy import Decoding
from selfrag.decoding.segments import (
    APPLICABLE,
    ScoreArray,
    add_to_path,
    critique_score,
    group_scores,
)
from selfrag.decoding.trace import ROOT, UNUSABLE, Node, Status, Trace, check_generated
from selfrag.reflection.labels import CRITIQUES, LabelSet
from selfrag.reflection.weights import Weights

Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]
ReplayWeights = Sequence[Weights] | ScoreArray
"""S settings, as `Weights` or as an array [S, T] in the order of `Decoding.terms`: isrel, issup, isuse, joined ones."""
_WIDE_BEAM = 32  # above which one sort is faster than the search for each place


@dataclass(frozen=True, slots=True)
class Replay:
    """What S settings choose in one trace of N nodes."""

    best: Ints  # [S] id of the node that ends the answer, -1 where there is none
    # [S] whether the recorded tree held everything that the setting asks for
    exact: Bools
    # [N, S] score of each node; means nothing for one that was given up
    segment_scores: ScoreArray
    path_scores: ScoreArray  # [N, S] score of the hypothesis that ends at each node
    kept: Bools  # [N, S] nodes that are finished, or in the beam after their step
    finished: Bools  # [N, S] of these, the ones where a hypothesis ended
    merged: Bools  # [N, S] nodes with the same text as a better one of their step


def replay(trace: Trace, weights: ReplayWeights) -> Replay:
    """Search the recorded tree again under S settings."""
    terms = trace.decoding.terms
    undefined = trace.decoding.undefined
    matrix = _matrix(weights, trace.decoding)
    columns = list(np.ascontiguousarray(matrix.T))
    likelihood = np.empty((len(trace.nodes), 1))
    critique = np.empty((len(trace.nodes), len(matrix)))
    for number, node in enumerate(trace.nodes):
        likelihood[number] = node.likelihood
        scores = group_scores(node.judgments, node.judges, terms, undefined)
        critique[number] = critique_score(scores, columns, undefined)
    recorded = _Recorded(trace)
    if trace.options:
        result = _choose(recorded, likelihood, critique)
    else:
        as_decoded = (matrix == np.array(trace.decoding.term_weights)).all(axis=1)
        as_decoded &= not trace.narrow
        result = _search(recorded, likelihood + critique, as_decoded)
    exact = result.exact & _were_asked(trace, matrix) & (not trace.resegmented)
    return replace(result, exact=exact)


def _were_asked(trace: Trace, matrix: ScoreArray) -> Bools:
    """Return which settings give a weight only to critiques that the model was asked for [S]."""
    complete = np.ones(len(matrix), dtype=bool)
    for column, labels in enumerate(CRITIQUES):
        lacking = map(partial(_lacks, labels), trace.nodes)
        if labels.role in trace.decoding.own and any(lacking):
            complete &= matrix[:, column] == 0
    return complete


def _lacks(labels: LabelSet, node: Node) -> bool:
    """Return whether nobody was asked for a critique that could have been made; a critique without a label is None."""
    if node.status in UNUSABLE or labels.role in node.judgments:
        return False
    return labels in APPLICABLE[node.branch]


def rescore(
    trace: Trace, weights: Weights | None = None, threshold: float | None = None
) -> tuple[Trace, bool]:
    """Re-rank a trace under other weights or another threshold, and say whether it was complete for them."""
    recorded = changed = trace.decoding
    if weights is not None:
        changed = replace(changed, weights=weights)
    if threshold is not None:
        changed = replace(changed, threshold=threshold)
    moved = changed.threshold != recorded.threshold
    same = changed.term_weights == recorded.term_weights and not moved
    resegmented = moved and changed.segment_end == "retrieval"
    trace = replace(
        trace,
        decoding=changed,
        narrow=trace.narrow or (bool(changed.judges) and not same),
        resegmented=trace.resegmented or resegmented,
    )
    first, complete = _Recorded(trace).recorded_candidates(ROOT)
    if complete:
        check_generated(first)
    result = replay(trace, [changed.weights])
    return settle(trace, result), bool(result.exact[0])


def settle(trace: Trace, result: Replay) -> Trace:
    """Return the trace with scores, statuses and choice of the first setting."""
    nodes = []
    for i, node in enumerate(trace.nodes):
        if node.status is Status.FAILED:
            nodes.append(node)
            continue
        status = Status.PRUNED
        if node.status in UNUSABLE:
            status = node.status
        elif result.kept[i, 0]:
            status = Status.FINISHED if result.finished[i, 0] else Status.KEPT
        elif result.merged[i, 0]:
            status = Status.MERGED
        score = float(result.segment_scores[i, 0])
        path = float(result.path_scores[i, 0])
        nodes.append(replace(node, score=score, path_score=path, status=status))
    best = int(result.best[0])
    return replace(trace, nodes=tuple(nodes), best=best if best >= 0 else None)


def _matrix(weights: ReplayWeights, decoding: Decoding) -> ScoreArray:
    """Return weights as an array [S, T]. Columns that an array lacks come from the recorded settings."""
    recorded = decoding.weights.row(decoding.terms)
    if not isinstance(weights, np.ndarray):
        return np.array(
            [w.row(decoding.terms) for w in weights], dtype=np.float64
        ).reshape(-1, len(recorded))
    matrix = np.asarray(weights, dtype=np.float64)
    if matrix.ndim != 2 or not len(CRITIQUES) <= matrix.shape[1] <= len(recorded):
        raise UserError(
            f"weights of shape {matrix.shape}: give [S, {len(recorded)}] for {', '.join(decoding.terms)}"
        )
    missing = np.tile(recorded[matrix.shape[1] :], (len(matrix), 1))
    return np.hstack([matrix, missing])


class _Recorded:
    """The recorded candidates after each node, under the settings of the trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.terms = trace.decoding.judges
        self.decisions = trace.decisions_by_node()
        self.children: dict[int, list[Node]] = {}
        for node in trace.nodes:
            self.children.setdefault(node.parent, []).append(node)

    def recorded_candidates(self, node: int) -> tuple[Sequence[Node], bool]:
        """Return the candidates after a node, and whether a decode would have the same ones."""
        if node not in self.decisions:
            return [], False
        return self.trace.following(self.decisions[node], self.children.get(node, []))

    def usable_candidates(self, node: int) -> tuple[list[Node], list[Node], bool]:
        """Return usable candidates after a node, those that a judge rejected, and whether the record is complete."""
        children, complete = self.recorded_candidates(node)
        usable, rejected = [], []
        for child in children:
            if child.status not in UNUSABLE:
                usable.append(child)
            elif child.status is Status.FORBIDDEN and self._judged_terms(child):
                rejected.append(child)
        return usable, rejected, complete

    def _judged_terms(self, node: Node) -> int:
        """Return how many judges were asked about a node, or had nothing to say about it."""
        count = 0
        for term in self.terms:
            count += term.judge in node.judges or term.replaces in node.judgments
        return count

    def passed_all(self, nodes: Sequence[Node], taking: Bools) -> tuple[Bools, Bools]:
        """Return a mask of the candidates that passed every judge, and whether it is independent of the weights.

        Where every judge has the capacity for all candidates, it judges the same ones under any weights.

        Args:
            nodes: C candidates.
            taking: which of them take part under each setting [C, S].

        Returns:
            The mask [C, 1]; for each setting, whether the mask does not depend on its weights [S].
        """
        usable = np.empty((len(nodes), 1), dtype=bool)
        judged = np.empty_like(usable)
        for number, node in enumerate(nodes):
            usable[number] = node.status not in UNUSABLE
            judged[number] = self._judged_terms(node) == len(self.terms)
        capacity = min(self.trace.decoding.capacities(self.trace.costs, len(nodes)))
        unjudged = (taking & usable & ~judged).any(axis=0)
        return usable & judged, (taking.sum(axis=0) <= capacity) & ~unjudged


def _search(recorded: _Recorded, segment: ScoreArray, as_decoded: Bools) -> Replay:
    """Search the recorded candidates for all settings at once; `as_decoded` [S] are those that it was decoded with."""
    trace = recorded.trace
    path = _path_scores(recorded.trace, segment)
    keys = _text_keys(recorded.trace)
    count, settings = path.shape
    finished = np.zeros_like(path, dtype=bool)
    merged = np.zeros_like(path, dtype=bool)
    kept = np.zeros((count + 1, settings), dtype=bool)
    kept[ROOT] = True  # the last row: every setting starts at the root
    exact = np.ones(settings, dtype=bool)
    level: list[int] = [ROOT]
    while level:
        candidates: list[int] = []
        for node in level:
            chosen = kept[node]
            if not chosen.any():
                continue
            following: list[Node] = []
            rejected: list[Node] = []
            if not trace.over(node):
                following, rejected, complete = recorded.usable_candidates(node)
                exact &= complete | ~chosen
            if node != ROOT and not following:
                finished[node] = chosen
            candidates += sorted(child.id for child in (*following, *rejected))
        if candidates:
            nodes = [trace.nodes[i] for i in candidates]
            alive = kept[[node.parent for node in nodes]]
            if recorded.terms:
                passed, sure = recorded.passed_all(nodes, alive)
                alive = alive & passed
                exact &= as_decoded | sure
            values = np.where(alive, path[candidates], -np.inf)
            over = [trace.over(i) for i in candidates]
            text_and_end = list(zip([keys[i] for i in candidates], over, strict=True))
            merged[candidates] = _drop_twins(values, text_and_end)
            kept[candidates] = _best(values, trace.decoding.beam) | (
                (values > -np.inf) & np.array(over)[:, None]
            )
        level = candidates
    none = np.full(settings, -1)
    ending = finished
    if trace.decoding.pool == "deepest":
        depths = np.array([node.depth for node in trace.nodes])[:, None]
        deepest = np.where(finished, depths, 0).max(axis=0, initial=0)
        ending = finished & (depths == deepest)
    ends = np.where(ending, path, -np.inf)
    best = np.where(finished.any(axis=0), ends.argmax(axis=0), none) if count else none
    return Replay(best, exact, segment, path, kept[:-1], finished, merged)


def _best(values: ScoreArray, beam: int) -> Bools:
    """Return the `beam` highest rows of each column, the earlier of equals; -inf is never taken. [C, S] to [C, S]."""
    usable: Bools = values > -np.inf
    if beam >= len(values):
        return usable
    taken = np.zeros_like(usable)
    if beam > _WIDE_BEAM:
        order = np.argsort(-values, axis=0, kind="stable")
        np.put_along_axis(taken, order[:beam], True, axis=0)
        return taken & usable
    left = values.copy()
    columns = np.arange(values.shape[1])
    for _ in range(beam):
        top = left.argmax(axis=0)
        taken[top, columns] = True
        left[top, columns] = -np.inf
    return taken & usable


def _drop_twins(values: ScoreArray, keys: Sequence[Hashable]) -> Bools:
    """Keep the best of the rows with equal keys, the earlier of equals; set the others to -inf and return them."""
    dropped = np.zeros(values.shape, dtype=bool)
    rows_by_key: dict[Hashable, list[int]] = {}
    for row, key in enumerate(keys):
        rows_by_key.setdefault(key, []).append(row)
    for rows in rows_by_key.values():
        if len(rows) == 1:
            continue
        twins = values[rows]
        is_best = np.arange(len(rows))[:, None] == twins.argmax(axis=0)
        dropped[rows] = ~is_best & (twins > -np.inf)
    values[dropped] = -np.inf
    return dropped


def _text_keys(trace: Trace) -> list[int]:
    """Return a number for each node, equal where all segments of the paths have the same text."""
    if trace.decoding.pool == "deepest":
        return list(range(len(trace.nodes)))  # none are equal
    known: dict[tuple[int, tuple[int, ...]], int] = {}
    keys: list[int] = []
    for node in trace.nodes:
        before = ROOT if node.parent == ROOT else keys[node.parent]
        keys.append(known.setdefault((before, node.text_ids), len(known)))
    return keys


def _path_scores(trace: Trace, segment: ScoreArray) -> ScoreArray:
    """Return path scores [N, S] from segment scores; a blank last segment adds nothing to its path, as in decoding."""
    accumulate = trace.decoding.accumulate
    totals: list[ScoreArray] = []  # of the segments that count on the path to each node
    counts: list[int] = []
    path = np.empty_like(segment)
    for node in trace.nodes:
        total = segment[node.id]
        count = 1
        if node.parent != ROOT:
            before = totals[node.parent]
            if node.text.strip() or trace.decoding.pool == "deepest":
                total = add_to_path(before, total, accumulate)
                count = counts[node.parent] + 1
            else:
                total = before
                count = counts[node.parent]
        totals.append(total)
        counts.append(count)
        path[node.id] = total / count if accumulate == "mean" else total
    return path


def _choose(
    recorded: _Recorded, likelihood: ScoreArray, critique: ScoreArray
) -> Replay:
    """Choose the option with the largest sum over passages, with its best passage. `critique` is [N, S].

    In a product a critique below 0 counts as 0. If no candidate has a critique above 0, all have the same weight.
    """
    trace = recorded.trace
    candidates, _, complete = recorded.usable_candidates(ROOT)
    if not candidates:
        nothing = np.zeros_like(critique)
        none = np.zeros(critique.shape, dtype=bool)
        settings = critique.shape[1]
        exact = np.full(settings, complete)
        return Replay(np.full(settings, -1), exact, nothing, nothing, none, none, none)
    usable = np.zeros(critique.shape, dtype=bool)
    usable[[node.id for node in candidates]] = True
    if trace.decoding.aggregate != "product":
        parts = np.where(usable, likelihood + critique, 0.0)
    else:
        weight = np.where(usable, np.maximum(critique, 0.0), 0.0)
        weight += usable & ~weight.any(axis=0)
        parts = weight * likelihood
    number = {text: i for i, text in enumerate(trace.options)}
    option = np.array([number[node.text] for node in trace.nodes], dtype=np.int64)
    totals = np.zeros((len(trace.options), critique.shape[1]))
    offered = np.zeros(totals.shape, dtype=bool)
    np.add.at(totals, option, parts)  # in the order of the nodes
    np.logical_or.at(offered, option, usable)
    winner = np.where(offered, totals, -np.inf).argmax(axis=0)
    of_winner = np.where((option[:, None] == winner) & usable, parts, -np.inf)
    best = np.where(usable.any(axis=0), of_winner.argmax(axis=0), -1)
    exact = np.full(critique.shape[1], complete)
    return Replay(
        best, exact, parts, totals[option], usable, usable, np.zeros_like(usable)
    )
