"""Candidates of a step, and the nodes that they grow into."""

from __future__ import annotations

from selfrag.decoding.segments import SegmentReading
from selfrag.decoding.trace import CUT, UNUSABLE, Node, Status
from selfrag.decoding.tree import Tree
from selfrag.decoding.writer import Candidate, Hypothesis
from selfrag.reflection.requests import Failed, Finish, Steps


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
