"""What branch and bound left out of a record, and whether that can matter under other weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, reduce

import numpy as np
from numpy.typing import NDArray

from selfrag.decoding.bounds import Bounds, below, bounds, segment_limits, segment_range
from selfrag.decoding.segments import Floats
from selfrag.decoding.trace import ROOT, Status, Trace

Bools = NDArray[np.bool_]


class Unseen:
    """Bounds of what is not in a record of N nodes, for S settings.

    `missed` [S] is the highest score of an answer that is not in the record, or that a candidate which is not in the
    record might have changed.
    """

    def __init__(self, trace: Trace, weights: Floats, segment: Floats) -> None:
        """Take a record, weights [S, T], and segment scores [N, S], in which those of given-up nodes are filled in."""
        self._trace, self._segment = trace, segment
        self._prunes, columns = trace.decoding.prunes, list(weights.T)
        self._limits = segment_limits(columns, trace.decoding) if self._prunes else (segment, segment)
        self._ranges: dict[int, tuple[Floats, Floats]] = {}  # of given-up nodes
        self._given_up: dict[int, list[int]] = {}  # by parent
        self._step: list[tuple[int, Bools]] = []  # given-up candidates of the step, and where their parent was kept
        decided = [decision.after for decision in trace.decisions]
        self._deepest = max((0 if node == ROOT else trace.nodes[node].depth for node in decided), default=0)
        self.missed = np.full(segment.shape[1], -np.inf)
        self._bounds = cache(self._compute)
        for node in trace.nodes:
            if node.status is Status.BOUNDED:
                self._given_up.setdefault(node.parent, []).append(node.id)
                self._ranges[node.id] = segment_range(node, columns, trace.decoding)
                segment[node.id] = self._ranges[node.id][1]

    def fill(self, path: Floats) -> None:
        """Set the path scores of given-up nodes to their bounds."""
        for number in (number for some in self._given_up.values() for number in some):
            path[number] = self._bounds(number).path

    def visit(self, node: int, chosen: Bools, *, alone: bool, complete: bool) -> Bools:
        """Take in a kept node; returns where the record of what follows it is complete but for what was given up.

        Args:
            node: id.
            chosen: [S] where it was kept.
            alone: whether no usable candidate follows it in the record.
            complete: whether the record has the candidates that a decode would have.
        """
        self._step += [(number, chosen) for number in self._given_up.get(node, [])]
        ended = node != ROOT and not self._trace.over(node) and self._trace.nodes[node].depth > self._deepest
        if self._prunes and ended:  # the search ended there, because nothing that was alive could win
            self._miss(chosen, self._bounds(node).answer)
            return np.ones_like(chosen)
        if alone and node != ROOT and node in self._given_up:  # then the answer may end there
            self._miss(chosen, self._bounds(node).path)
        return np.ones_like(chosen) if complete else ~chosen

    def step(self, candidates: Sequence[int], values: Floats, beam: int) -> None:
        """End a step.

        Args:
            candidates: C nodes.
            values: [C, S] their path scores, -inf where they do not take part.
            beam: hypotheses that go on.
        """
        for number, alive in self._step:
            bound = self._bounds(number)
            path = bound.path
            out = below(path, values).sum(axis=0) >= beam
            if not out.all() and not self._trace.over(number):  # it may take the place of another one in the beam
                others = [
                    np.where(row > -np.inf, self._bounds(i).answer, -np.inf)
                    for i, row in zip(candidates, values, strict=True)
                    if not self._trace.over(i)
                ]
                path = np.where(out, path, reduce(np.maximum, others, bound.answer))
            self._miss(alive, path)
        self._step = []

    def harmless(self, best: Floats) -> Bools:
        """Where nothing that is not in the record reaches the best path score [S]."""
        nothing = self.missed == -np.inf
        found: Bools = nothing | below(np.where(nothing, 0.0, self.missed), best)
        return found

    def _miss(self, where: Bools, score: Floats) -> None:
        self.missed = np.maximum(self.missed, np.where(where, score, -np.inf))

    def _compute(self, number: int) -> Bounds[Floats]:
        node, trace, own = self._trace.nodes[number], self._trace, self._segment[number]
        before = [self._segment[one.id] for one in trace.path(node.parent) if one.text.strip() or one.parent == ROOT]
        return bounds(node, self._ranges.get(number, (own, own)), before, trace.decoding, self._limits)
