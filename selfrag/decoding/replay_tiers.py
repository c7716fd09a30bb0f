"""Which candidates of a recorded step would have been judged by dear reflectors under other settings. Vectorised.

Repeats the pruning of `selfrag.decoding.tiers` on a trace. Where another setting would have kept a candidate that the
recorded search did not let be judged, the replay says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from selfrag.decoding.joining import Joined
from selfrag.decoding.scoring import Floats
from selfrag.decoding.trace import Node, Status, Trace

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Tier:
    """Reflectors of one cost, and what the trace has of them.

    Attributes:
        unknown: [T] terms of the score that are not known before they judge.
        unjudged: [N] nodes that they did not judge.
        rejected: [N] nodes that they rejected.
    """

    unknown: Bools
    unjudged: Bools
    rejected: Bools


def judged(node: Node, part: Joined) -> bool:
    """Whether a reflector was asked about a node, or had nothing to say about it."""
    return part.reflector in node.joined if part.replaces is None else part.replaces in node.judgments


def recorded_tiers(trace: Trace) -> list[Tier]:
    """The tiers of a recorded decode, cheapest first."""
    policy = trace.decoding
    groups = policy.tiers(trace.costs)
    column = {part: policy.terms.index(part.replaces or part.reflector) for part in policy.reflectors}
    found: list[Tier] = []
    for position, (_, group) in enumerate(groups):
        unknown = np.zeros(len(policy.terms), dtype=bool)
        unknown[[column[part] for _, later in groups[position:] for part in later]] = True
        here = [all(judged(node, part) for part in group) for node in trace.nodes]
        dearer = [part for _, later in groups[position + 1 :] for part in later]
        rejected = [
            node.status is Status.FORBIDDEN and asked and not any(judged(node, part) for part in dearer)
            for node, asked in zip(trace.nodes, here, strict=True)
        ]
        found.append(Tier(unknown, ~np.array(here, dtype=bool), np.array(rejected, dtype=bool)))
    return found


@dataclass(slots=True)
class Cascade:
    """The tiers at work on the C candidates of one step, for S settings at once.

    Attributes:
        unjudged: for each tier [C] candidates that it did not judge in the recorded decode.
        rejected: for each tier [C] candidates that it rejected.
        order: for each tier [C, S] candidates by their score before it judges, best first.
        rooms: how many candidates go on from each tier.
        waiting: for each tier [C, S] candidates that the tiers before let through and it has not judged.
        refused: [C, S] candidates that some tier has judged and rejected.
        exact: [S] whether the trace knows what all tiers said.
    """

    unjudged: list[Bools]
    rejected: list[Bools]
    order: list[NDArray[np.int64]]
    rooms: list[int]
    waiting: list[Bools]
    refused: Bools
    exact: Bools

    @classmethod
    def of(cls, trace: Trace, tiers: Sequence[tuple[Tier, Floats]], candidates: Sequence[int], alive: Bools) -> Cascade:
        """Before any tier has judged.

        Args:
            trace: the recorded decode.
            tiers: each with the path scores [N, S] before it judges.
            candidates: C nodes of one step, those that a reflector rejected included.
            alive: [C, S] whether a candidate takes part.
        """
        nobody = np.zeros_like(alive)
        return cls(
            [tier.unjudged[candidates] for tier, _ in tiers],
            [tier.rejected[candidates] for tier, _ in tiers],
            [np.argsort(-path[candidates], axis=0, kind="stable") for _, path in tiers],
            trace.decoding.rooms(trace.costs, len(candidates)),
            [nobody] * len(tiers),
            nobody.copy(),
            np.ones(alive.shape[1], dtype=bool),
        )

    def run(self, alive: Bools) -> Bools:
        """[C, S] the candidates that stay after all tiers, of those that take part."""
        for number, room in enumerate(self.rooms):
            self.waiting[number] = alive
            alive = self._passing(number, np.full(alive.shape[1], room))
        return alive

    def _passing(self, number: int, wanted: NDArray[np.int64]) -> Bools:
        """[C, S] up to `wanted` [S] more candidates that a tier lets through."""
        passed = np.zeros_like(self.refused)
        while True:
            missing = wanted - passed.sum(axis=0)
            if number and (short := (missing > 0) & ~self.waiting[number].any(axis=0)).any():
                self.waiting[number] = self.waiting[number] | self._passing(number - 1, np.where(short, missing, 0))
            wave = _first(self.order[number], self.waiting[number], missing)
            if not wave.any():
                return passed
            self.waiting[number] = self.waiting[number] & ~wave
            self.exact &= ~(wave & self.unjudged[number][:, None]).any(axis=0)
            self.refused |= wave & self.rejected[number][:, None]
            passed |= wave & ~self.rejected[number][:, None]


def _first(order: NDArray[np.int64], waiting: Bools, wanted: NDArray[np.int64]) -> Bools:
    """[C, S] of those that wait the first `wanted` [S] in `order`."""
    ranked = np.take_along_axis(waiting, order, axis=0)
    found = np.zeros_like(waiting)
    np.put_along_axis(found, order, ranked & (ranked.cumsum(axis=0) <= wanted), axis=0)
    return found
