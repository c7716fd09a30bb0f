"""Branch and bound: candidates that cannot matter are given up early.

docs/explanation/pruning.md has the proof that no answer changes.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from operator import attrgetter
from typing import NamedTuple

from selfrag.decoding.candidates import WrittenStep, grow
from selfrag.decoding.policy import Decoding
from selfrag.decoding.segments import (
    APPLICABLE,
    SegmentReading,
    critique_score,
    judgment_score,
    path_score,
    read_critique,
)
from selfrag.decoding.token_writer import TokenWriter
from selfrag.decoding.trace import ROOT, Node, Status
from selfrag.decoding.tree import Abort, Race, RequestBatch, Tree, race
from selfrag.decoding.writer import Candidate, Hypothesis
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import CRITIQUES, ISREL, Role
from selfrag.reflection.requests import (
    Failed,
    Generated,
    RequestResult,
    Steps,
    ask,
    has_ended,
)

GAP = 0.1
"""A candidate waits if its bound is this far below that of the last one that would fit in the beam."""

MARGIN = 1e-6
"""By how much, relative to its size, a bound must be below a score: more than the rounding of both."""


def below(bound: float, score: float) -> bool:
    """Return whether a bound is certainly below a score."""
    return bound + MARGIN * (1 + abs(bound)) < score


def highest_likelihood(policy: Decoding, logprobs: Sequence[float], most: int) -> float:
    """Return the highest likelihood of a segment of at most `most` tokens that begins with these log-probabilities.

    The tokens to come have at most probability 1, and a mean is the highest where there are most of them.
    """
    if policy.likelihood == "none":
        return 0.0
    total = min(0.0, math.fsum(logprobs))
    return math.exp(total if policy.likelihood == "product" else total / most)


def segment_range(node: Node, policy: Decoding) -> tuple[float, float]:
    """Return the lowest and the highest score of a segment that was given up, or is being written.

    `node.likelihood` is its highest, and `node.judgments` holds the critiques that are known, None among them.
    """
    choices: list[tuple[float, ...]] = []
    for labels in CRITIQUES:
        if labels.role not in node.judgments and labels in APPLICABLE[node.branch]:
            # undefined, or anywhere between
            choices.append((math.nan, min(labels.values), max(labels.values)))
        else:
            choices.append(
                (judgment_score(node.judgments.get(labels.role), policy.undefined),)
            )
    # The score is linear in the critiques that are defined, so its extremes are at their ends.
    corners = [
        critique_score(corner, policy.term_weights, policy.undefined)
        for corner in product(*choices)
    ]
    return min(corners), max(corners) + node.likelihood


def segment_limits(policy: Decoding) -> tuple[float, float]:
    """Return the lowest and the highest score that any segment can have."""
    return segment_range(
        Node(0, 0, 0, "passage", None, likelihood=float(policy.likelihood != "none")),
        policy,
    )


class ScoreBounds(NamedTuple):
    """The highest scores that are possible for a node."""

    segment: float  # of its segment
    path: float  # of the path that ends with it
    answer: float  # of an answer that begins with that path


def bounds(
    node: Node,
    segment: tuple[float, float],
    before: list[float],
    policy: Decoding,
    limits: tuple[float, float],
) -> ScoreBounds:
    """Return the highest scores of a node, from the lowest and the highest of its segment and the scores before it.

    A path score is linear in each of its segments, so its extremes are at theirs; a blank segment does not count.
    Means, sums and products of positive numbers change in one direction with each equal segment that is added, so the
    highest answer has none or all of those that may follow, each within `limits`.
    """
    low, high = segment
    ends = [path_score([*before, score], policy.accumulate) for score in segment]
    if before and not node.text.strip():
        ends.append(path_score(before, policy.accumulate))
    path = max(ends)
    left = policy.max_segments - node.depth
    if left == 0:
        return ScoreBounds(high, path, path)
    steps = [*before, high]
    most = limits[1]
    ends = [path]
    if policy.accumulate == "product":  # of two negative ones, too
        steps = [*map(abs, before), max(abs(low), abs(high))]
        most = max(map(abs, limits))
        ends.append(path_score(steps, "product"))
    ends.append(path_score(steps + [most] * left, policy.accumulate))
    return ScoreBounds(high, path, max(ends))


def write_promising(
    tree: Tree, candidates: list[Candidate], depth: int, best: float
) -> Generator[RequestBatch | Race | Abort, list[RequestResult], WrittenStep]:
    """Write the candidates of a step that can matter, and record all in the tree.

    `best` is the path score of the best finished hypothesis.
    """
    ids = range(len(tree.nodes), len(tree.nodes) + len(candidates))
    step = _Step(tree, candidates, depth, best, ids)
    results = yield from step.run()
    ended = []
    for i, candidate in enumerate(candidates):
        if i not in step.given_up and i not in step.written:
            ended.append((candidate, results[i], ids[i]))
    pairs = yield from _build_nodes(tree, ended, depth)
    nodes = list(step.given_up.values())
    usable = []
    for node, hypothesis in [*pairs, *step.written.values()]:
        nodes.append(node)
        if hypothesis is not None:
            usable.append(hypothesis)
    tree.nodes += sorted(nodes, key=attrgetter("id"))
    bounded = {}
    for i, node in step.given_up.items():
        if node.status is Status.BOUNDED:
            bounded[node.id] = candidates[i]
    return WrittenStep(sorted(usable, key=attrgetter("node")), bounded)


def _writer(tree: Tree) -> TokenWriter:
    """Return the writer of a tree with reflection tokens; no other settings prune."""
    if not isinstance(tree.writer, TokenWriter):
        raise TypeError(f"{type(tree.writer).__name__} cannot be given up early")
    return tree.writer


def _build_nodes(
    tree: Tree, ended: Sequence[tuple[Candidate, Generated | Failed, int]], depth: int
) -> Steps[list[tuple[Node, Hypothesis | None]]]:
    """Return the nodes of candidates that have ended, each with its hypothesis if it can be used."""
    candidates, results = [], []
    for candidate, result, _ in ended:
        candidates.append(candidate)
        results.append(result)
    readings = yield from _writer(tree).read_all(candidates, results)
    pairs = []
    for (candidate, _, number), reading in zip(ended, readings, strict=True):
        pairs.append(grow(tree, candidate, reading, number, depth))
    return pairs


def unresolved_nodes(
    tree: Tree, bounded: Mapping[int, Candidate], best: float
) -> list[int]:
    """Return nodes that were given up and may still end in an answer better than `best`, most promising first."""
    nodes = []
    for number in bounded:
        node = tree.nodes[number]
        if node.status is Status.BOUNDED and not below(node.path_score, best):
            nodes.append(node)
    nodes.sort(key=attrgetter("path_score"), reverse=True)  # stable
    return [node.id for node in nodes]


def can_stop_early(tree: Tree, live: Sequence[Hypothesis], best: float) -> bool:
    """Return whether no answer that begins with one of these hypotheses scores as high as `best`."""
    nodes = [tree.nodes[hypothesis.node] for hypothesis in live]
    return all(below(_highest(tree, node).answer, best) for node in nodes)


def _highest(tree: Tree, node: Node) -> ScoreBounds:
    """Return the highest scores of a node."""
    segment = node.score, node.score
    if node.status is Status.BOUNDED:
        segment = segment_range(node, tree.policy)
    return bounds(node, segment, tree.scores(node.parent), tree.policy, tree.limits)


def resume(tree: Tree, bounded: Mapping[int, Candidate]) -> Steps[list[Hypothesis]]:
    """Write candidates that were given up after all; return those that end an answer. None can enter the beam."""
    writer = _writer(tree)
    results = yield from ask(list(map(writer.request, bounded.values())))
    finished: list[Hypothesis] = []
    for (number, candidate), result in zip(bounded.items(), results, strict=True):
        ended = [(candidate, result, number)]
        ((node, hypothesis),) = yield from _build_nodes(
            tree, ended, tree.nodes[number].depth
        )
        tree.nodes[number] = node
        if hypothesis is not None and node.ended:
            finished.append(hypothesis)
    return finished


@dataclass(slots=True)
class _Step:
    """The candidates of a step while they are written."""

    tree: Tree  # the question
    candidates: Sequence[Candidate]  # of the step
    depth: int  # of the step
    best: float  # path score of the best finished hypothesis, -inf without one
    ids: Sequence[int]  # of the nodes
    # what is known of each candidate that has begun and has not ended: its scores are the highest that it can reach
    nodes: dict[int, Node] = field(default_factory=dict)
    # of each candidate that an answer may begin with, the highest score of such an answer
    answers: dict[int, float] = field(default_factory=dict)
    # those that have ended and have their score
    written: dict[int, tuple[Node, Hypothesis | None]] = field(default_factory=dict)
    given_up: dict[int, Node] = field(default_factory=dict)  # those that were given up
    # those that wait until the promising ones have ended; None before that is decided
    deferred: Collection[int] | None = None
    # latest (possibly partial) result of each
    latest: dict[int, Generated | Failed] = field(default_factory=dict)

    def run(
        self,
    ) -> Generator[Race | Abort, list[RequestResult], dict[int, Generated | Failed]]:
        """Write the candidates, and return the results of those that were not given up."""
        results: dict[int, Generated | Failed] = {}
        waiting = list(range(len(self.candidates)))
        self.answers = dict.fromkeys(waiting, math.inf)
        while waiting:
            requests = []
            for i in waiting:
                request = self.writer.request(self.candidates[i])
                requests.append(replace(request, report=True))
            known = yield from race(requests, partial(self._rule, waiting))
            for position, result in known.items():
                if has_ended(result):
                    results[waiting[position]] = result
            later = [i for i in self.deferred or () if i in self.nodes]
            self.deferred = self._unpromising()
            waiting = [i for i in later if i not in self.deferred]
        return results

    def _rule(
        self, running: Sequence[int], known: Mapping[int, Generated | Failed]
    ) -> list[int]:
        """Return the running requests to end now: those that are ruled out, and once those that wait for others."""
        for position, result in known.items():
            self._update(running[position], result)
        self._give_up()
        if self.deferred is None and len(known) == len(running):
            self.deferred = self._unpromising()
        ended = {*self.given_up, *(self.deferred or ())}
        return [position for position, i in enumerate(running) if i in ended]

    def _update(self, i: int, result: Generated | Failed) -> None:
        """Update a candidate from a partial or final result."""
        if i in self.given_up or self.latest.get(i) is result:
            return
        self.latest[i] = result
        if not isinstance(result, Failed) and not has_ended(result):
            self.nodes[i] = self._bounded(i, result)
            return
        self.nodes.pop(i, None)
        del self.answers[i]
        candidate = self.candidates[i]
        reading = self.writer.read(candidate, result)
        if not isinstance(reading, SegmentReading):
            return
        if self.writer.missing(candidate, reading):
            self.answers[i] = math.inf  # its score is not known yet
            return
        self.written[i] = node, hypothesis = grow(
            self.tree, candidate, reading, self.ids[i], self.depth
        )
        if hypothesis is not None and not self._over(node):
            self.answers[i] = _highest(self.tree, node).answer

    @property
    def writer(self) -> TokenWriter:
        """Return what reads the tokens."""
        return _writer(self.tree)

    def _usable(self) -> Iterator[tuple[Node, Hypothesis]]:
        """Yield those that have ended and can be used."""
        for node, hypothesis in self.written.values():
            if hypothesis is not None:
                yield node, hypothesis

    def _give_up(self) -> None:
        """Give up the candidates that are not allowed, or are ruled out by those that have ended."""
        needed = self._needed()
        finished = self.best
        parents = {ROOT}
        for node, _ in self._usable():
            parents.add(node.parent)
            if self._over(node):
                finished = max(finished, node.path_score)
        if all(below(answer, finished) for answer in self.answers.values()):
            for i, node in list(self.nodes.items()):
                node.finish = f"no answer that begins with it reaches {finished:.3f}"
                self._drop(i)
        for i, node in list(self.nodes.items()):
            if node.status is not Status.FORBIDDEN:
                if not below(node.path_score, needed):
                    continue
                # If nothing else follows its parent, the answer may end there.
                if node.parent not in parents and not below(
                    self.tree.nodes[node.parent].path_score, finished
                ):
                    continue
                node.finish = f"at most {node.path_score:.3f}, below {needed:.3f}"
            self._drop(i)

    def _drop(self, i: int) -> None:
        self.given_up[i] = self.nodes.pop(i)
        del self.answers[i]

    def _bounded(self, i: int, partial_result: Generated) -> Node:
        """Return the node of a candidate that has begun, with the highest scores that it can reach."""
        policy = self.tree.policy
        candidate = self.candidates[i]
        parent = candidate.parent.node
        node = Node(
            self.ids[i],
            parent,
            self.depth,
            candidate.branch,
            candidate.passage,
            status=Status.BOUNDED,
        )
        node.dropped_tokens = candidate.dropped_tokens
        node.token_ids = partial_result.token_ids
        node.likelihood = highest_likelihood(
            policy, partial_result.token_logprobs, candidate.max_tokens
        )
        relevance = self._relevance(candidate, partial_result)
        node.judgments = {Role.RELEVANCE: relevance}
        node.score, node.path_score, self.answers[i] = _highest(self.tree, node)
        if not policy.allows(node.judgments, node.judgments.keys()):
            node.status = Status.FORBIDDEN
            node.finish = "its IsRel is not allowed"
            self.answers[i] = -math.inf
        return node

    def _relevance(
        self, candidate: Candidate, partial_result: Generated
    ) -> Judgment | None:
        """Return IsRel as it will be read of the whole segment: it is due at the first token, or nowhere."""
        vocabulary = self.writer.vocabulary
        written = partial_result.token_ids[0] in vocabulary.group(ISREL)
        if candidate.branch != "passage" or not (
            written or Role.RELEVANCE in self.tree.policy.forced
        ):
            return None
        return read_critique(
            vocabulary,
            ISREL,
            partial_result.watched[0],
            candidate.site,
            candidate.evidence,
        )

    def _over(self, node: Node) -> bool:
        return node.ended or self.depth == self.tree.policy.max_segments

    def _needed(self) -> float:
        """Return the path score below which a candidate can neither enter the beam nor, at the end, be the answer."""
        if self.depth == self.tree.policy.max_segments:
            scores = [node.path_score for node, _ in self._usable()]
            return max([self.best, *scores])
        distinct: dict[object, float] = {}
        for node, hypothesis in self._usable():
            key = hypothesis.texts, self._over(node)
            distinct[key] = max(node.path_score, distinct.get(key, -math.inf))
        beam = self.tree.policy.beam
        if len(distinct) < beam:
            return -math.inf
        return sorted(distinct.values(), reverse=True)[beam - 1]

    def _unpromising(self) -> list[int]:
        """Return candidates whose bound is so far below the best ones that these will probably rule them out.

        They wait for the best ones, and cost one token if the guess is right. A wrong guess costs time, no answer.
        """
        room = self.tree.policy.beam
        if self.depth == self.tree.policy.max_segments:
            room = 1
        if len(self.nodes) <= room:
            return []
        bounds = {i: node.path_score for i, node in self.nodes.items()}
        promising = sorted(bounds.values(), reverse=True)[room - 1]
        return [i for i, bound in bounds.items() if bound < promising - GAP]
