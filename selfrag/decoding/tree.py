"""The growing tree of one question and the steps that every decoder shares, from the request to the written segment.

Sans-IO: everything here yields batches of requests and gets their results.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from retrieval.passage import Passage
from selfrag.common.errors import SearchError
from selfrag.decoding.answer import Answer, Segment
from selfrag.decoding.policy import Decoding
from selfrag.decoding.segments import SegmentReading, path_score, segment_score
from selfrag.decoding.trace import (
    CUT,
    ROOT,
    UNUSABLE,
    Decision,
    Node,
    Status,
    Trace,
)
from selfrag.decoding.writer import Candidate, Hypothesis, SegmentWriter
from selfrag.prompting import Turn
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import ISREL
from selfrag.reflection.requests import (
    Failed,
    Finish,
    Request,
    RequestResult,
    Retrieve,
    Retrieved,
    Steps,
    failure_of,
)

if TYPE_CHECKING:
    from selfrag.decoding.terms import Guardrail
    from selfrag.reflection.findings import Reflection
    from selfrag.reflection.judge import Judge

JudgedEvidence: TypeAlias = tuple[str, tuple[tuple[str, str, str], ...]]
"""A judge and the keys of the passages that it judged with the question alone."""


@dataclass(frozen=True, slots=True)
class Commit:
    """A segment that every hypothesis still alive begins with: it will not change any more."""

    segment: Segment


RequestBatch: TypeAlias = list[Request]
Yielded: TypeAlias = RequestBatch | Commit
Decoder: TypeAlias = Generator[Yielded, list[RequestResult], Answer]
"""Yields batches, answered by their results in the same order, and `Commit` events; returns the answer."""


@dataclass(slots=True)
class Tree:
    """The growing tree of one question."""

    question: str
    writer: SegmentWriter
    policy: Decoding
    # of the caller; None where the decoder searches
    given_evidence: tuple[Passage, ...] | None
    nodes: list[Node] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    # first search's passages, for retrieve_once
    fixed: tuple[Passage, ...] | None = None
    query: str | None = None  # searched for in place of the question
    history: tuple[Turn, ...] = ()  # turns before the question
    judges: Mapping[str, Judge] = field(default_factory=dict)  # by name
    # what judges said of evidence and the question alone, kept for the whole answer
    reflections: dict[JudgedEvidence | int, Reflection] = field(default_factory=dict)

    def trace(self, best: int | None, options: tuple[str, ...] = ()) -> Trace:
        """Return what has been recorded so far."""
        costs = {}
        for term in self.policy.judges:
            costs[term.judge] = self.judges[term.judge].cost
        return Trace(
            self.question,
            self.policy,
            tuple(self.nodes),
            tuple(self.decisions),
            best,
            options,
            costs,
        )

    def score(self, node: Node) -> None:
        """Set the segment and path score of a node from what has been judged so far."""
        policy = self.policy
        node.score = segment_score(
            node.likelihood,
            node.judgments,
            policy.term_weights,
            policy.undefined,
            judges=node.judges,
            terms=policy.terms,
        )
        before = self.scores(node.parent)
        bare = before and not self.counts(node)  # a bare end says nothing new
        node.path_score = path_score(
            before if bare else [*before, node.score], policy.accumulate
        )

    def counts(self, node: Node) -> bool:
        """Return whether the score of a later segment counts in its path."""
        return bool(node.text.strip()) or self.policy.pool == "deepest"

    def scores(self, node: int) -> list[float]:
        """Return the scores of the segments that count in the path that ends at a node; none for the root."""
        path: list[Node] = []
        while node != ROOT:
            path.append(self.nodes[node])
            node = path[-1].parent
        scores: list[float] = []
        for step in reversed(path):
            if self.counts(step) or not scores:
                scores.append(step.score)
        return scores


def read_boundaries(
    tree: Tree, hypotheses: Sequence[Hypothesis]
) -> Steps[list[Hypothesis]]:
    """Return hypotheses with Retrieve at their end, asked for where it is unknown, in the mode that needs it."""
    unknown = [hypothesis for hypothesis in hypotheses if hypothesis.boundary is None]
    if not unknown or tree.policy.mode != "adaptive":
        return list(hypotheses)
    judgments = yield from tree.writer.boundaries(unknown)
    arrived = iter(judgments)
    completed = []
    for hypothesis in hypotheses:
        if hypothesis.boundary is None:
            hypothesis = replace(hypothesis, boundary=next(arrived))
            if hypothesis.node != ROOT:
                tree.nodes[hypothesis.node].boundary = hypothesis.boundary
        completed.append(hypothesis)
    return completed


@dataclass(frozen=True, slots=True)
class RetrievedEvidence:
    """Evidence for the next segment, the query that found it (None if nothing was searched), why the search failed."""

    query: str | None = None
    passages: tuple[Passage, ...] = ()
    failure: str | None = None


def find(
    tree: Tree, last_segments: Sequence[str], query: str | None = None
) -> Steps[list[RetrievedEvidence]]:
    """Return passages for each segment to come: given by the caller, kept from the first search, or searched for now.

    A query is the question, or `query` in its place, and the text written last; with `retrieve_once` the question
    alone. Equal queries are searched once. A search that fails before anything was written is an error.
    """
    policy = tree.policy
    ready = tree.fixed if tree.given_evidence is None else tree.given_evidence
    if ready is not None:
        evidence = RetrievedEvidence(None, distinct(ready)[: policy.searched])
        return [evidence] * len(last_segments)
    if not last_segments:
        return []
    start = query or tree.question
    queries = []
    for text in last_segments:
        alone = policy.retrieve_once or not text
        queries.append(start if alone else f"{start} {text}")
    unique = list(dict.fromkeys(queries))
    results = yield [Retrieve(query, policy.searched) for query in unique]
    hits: dict[str, RetrievedEvidence] = {}
    for query, result in zip(unique, results, strict=True):
        if isinstance(result, Retrieved):
            passages = distinct(result.passages)[: policy.searched]
            hits[query] = RetrievedEvidence(query, passages)
            continue
        reason = failure_of(result)
        if not tree.nodes:
            raise SearchError(f"search failed: {reason}")
        hits[query] = RetrievedEvidence(query, (), reason)
    if policy.retrieve_once and hits[start].failure is None:
        tree.fixed = hits[start].passages
    return [hits[query] for query in queries]


ShortlistedPassages: TypeAlias = tuple[
    tuple[Passage, ...], tuple[tuple[str, Judgment], ...]
]
"""The passages that are written from, best first, and the judgments of all that were there."""


def shortlisted(
    tree: Tree, searches: Sequence[tuple[Hypothesis, tuple[Passage, ...]]]
) -> Steps[list[ShortlistedPassages]]:
    """Return for each search the passages that are written from, and what IsRel said of all that were there.

    Each is judged where its segment would begin, so the engine has its prompt when the segment is written. One that
    cannot be judged comes last.
    """
    if tree.policy.shortlist is None:
        return [(passages, ()) for _, passages in searches]
    places = []
    for hypothesis, passages in searches:
        places += [(hypothesis, passage) for passage in passages]
    judgments = iter((yield from tree.writer.relevance(places)))
    lists: list[ShortlistedPassages] = []
    for _, passages in searches:
        scores: dict[Passage, float] = {}
        known = []
        for passage in passages:
            judgment = next(judgments)
            scores[passage] = math.inf if judgment is None else -judgment.score
            if judgment is not None:
                known.append((str(ISREL.role), judgment))
        # Sorting is stable, so equals stay in the order of the search.
        ranked = sorted(passages, key=scores.__getitem__)
        lists.append((tuple(ranked[: tree.policy.passages]), tuple(known)))
    return lists


def distinct(passages: Sequence[Passage]) -> tuple[Passage, ...]:
    """Return passages without repeated and blank texts, in order. One id may stand for several texts."""
    kept: dict[tuple[str, str], Passage] = {}
    for passage in passages:
        if passage.text.strip():
            kept.setdefault((passage.title, passage.text), passage)
    return tuple(kept.values())


@dataclass(slots=True)
class EvidenceFilterResult:
    """Result of the guardrails."""

    passages: tuple[Passage, ...] = ()  # evidence that is left
    abstained: bool = False  # whether the fixed abstention replaces the answer
    writes: bool = False  # whether a guardrail has the segment written without evidence
    reasons: list[str] = field(default_factory=list)  # what each guardrail did
    # judge and judgment, in the order asked
    judged: list[tuple[str, Judgment]] = field(default_factory=list)

    def note(self, guardrail: Guardrail, judgment: Judgment | None, done: str) -> bool:
        """Record a judgment; return whether it is below the guardrail's threshold."""
        if judgment is None:
            return False
        self.judged.append((guardrail.judge, judgment))
        below = judgment.score < guardrail.threshold
        if below:
            self.reasons.append(
                f"{guardrail.judge} {judgment.score:.3f} < {guardrail.threshold:g}, {done}"
            )
        return below


def grow(
    tree: Tree,
    candidate: Candidate,
    reading: SegmentReading | Failed,
    number: int,
    depth: int,
) -> tuple[Node, Hypothesis | None]:
    """Return the node `number` of a candidate, and its hypothesis if it can be used."""
    node = Node(
        number, candidate.parent.node, depth, candidate.branch, candidate.passage
    )
    node.dropped_tokens = candidate.dropped_tokens
    if isinstance(reading, Failed):
        node.status = Status.FAILED
        node.finish = reading.reason
        return node, None
    policy = tree.policy
    parent = candidate.parent
    node.text = reading.text
    node.reasoning = reading.reasoning
    node.remark = reading.remark
    node.token_ids = reading.ids
    node.text_ids = reading.text_ids
    node.finish = str(reading.finish)
    if reading.cut and not reading.ended:
        node.finish = CUT
    node.likelihood = reading.likelihood
    node.judgments = {
        role: judgment
        for role, judgment in reading.judgments.items()
        if role in policy.own
    }
    spent = parent.spent + reading.tokens
    node.boundary = reading.boundary
    node.ended = reading.ended or spent >= policy.answer_tokens
    tree.score(node)
    blank = not node.text.strip()
    leaves_out = policy.pool == "finished"
    if leaves_out and blank and not (reading.finish is Finish.EOS and parent.texts):
        node.status = Status.EMPTY
    elif leaves_out and not blank and reading.text_ids in parent.texts:
        node.status = Status.DUPLICATE
    elif not policy.allows(node.judgments, policy.own):
        node.status = Status.FORBIDDEN
    if node.status in UNUSABLE:
        return node, None
    return node, Hypothesis(
        node=node.id,
        prefix=tree.writer.prefix(candidate, reading),
        boundary=reading.boundary,
        texts=(*parent.texts, reading.text_ids),
        evidence=candidate.passage or parent.evidence,
        spent=spent,
        text=node.text.strip(),
        answer=parent.answer + reading.text,
        segment=reading.ids,
    )


def write(
    tree: Tree, candidates: list[Candidate], depth: int
) -> Steps[list[Hypothesis]]:
    """Write all candidates of a step, record them in the tree, and return the usable hypotheses."""
    readings = yield from tree.writer.write(candidates)
    usable = []
    for candidate, reading in zip(candidates, readings, strict=True):
        node, hypothesis = grow(tree, candidate, reading, len(tree.nodes), depth)
        tree.nodes.append(node)
        if hypothesis is not None:
            usable.append(hypothesis)
    return usable
