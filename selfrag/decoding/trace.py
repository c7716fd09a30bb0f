"""The trace: every decision and every candidate of one decode, as values that go to JSON and back.

Knows how a tree was searched, not how to search one. A trace holds what rescoring needs: likelihoods, distributions,
the tree, and which nodes were expanded.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from retrieval.passage import Passage
from selfrag.decoding.policy import Action, Decoding
from selfrag.decoding.reading import Branch
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import Role

ROOT = -1
"""Parent of the first segments."""


class Status(StrEnum):
    """What became of a candidate."""

    KEPT = "kept"  # in the beam after its step
    FINISHED = "finished"  # in the pool of finished hypotheses
    PRUNED = "pruned"  # fell out of the beam
    MERGED = "merged"  # same text as a better-scored candidate of its step
    DUPLICATE = "duplicate"  # repeats an earlier segment of its own path
    EMPTY = "empty"  # no text, and not the end of the answer
    FORBIDDEN = "forbidden"  # violates a hard constraint
    FAILED = "failed"  # its request could not be served


UNUSABLE = frozenset({Status.DUPLICATE, Status.EMPTY, Status.FORBIDDEN, Status.FAILED})
"""Candidates that no weights can bring back."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A choice at a segment boundary: retrieve, continue with the same evidence, or write without.

    Attributes:
        after: node whose end this is, `ROOT` for the start of the answer.
        action: what was done.
        reason: why, in a few words.
        judgment: distribution over Retrieve; None in modes that do not look.
        query: what was searched for, None if nothing was.
        passages: evidence for the next segment, one candidate each, duplicates removed; empty after `retrieve` if
            nothing was found, and the segment is then written without.
    """

    after: int
    action: Action
    reason: str
    judgment: Judgment | None = None
    query: str | None = None
    passages: tuple[Passage, ...] = ()


@dataclass(slots=True)
class Node:
    """A candidate segment.

    Attributes:
        id: position in `Trace.nodes`.
        parent: id of the segment before, or `ROOT`.
        depth: 1 for a first segment.
        branch: `passage`, `continue` or `none` (written without evidence).
        passage: the evidence, if any.
        text: text of the segment, without reflection tokens.
        token_ids: generated ids without the boundary.
        text_ids: `token_ids` without reflection tokens; what makes two segments equal.
        finish: why generation ended, or why it failed.
        likelihood: p(y_t|..) as scored.
        judgments: isrel, issup, isuse; None where undefined.
        boundary: distribution over Retrieve at its end.
        ended: the answer cannot go on after it (EOS, or no token is left to spend).
        score: segment score.
        path_score: score of the hypothesis that ends here.
        status: what became of it.
        dropped_tokens: tokens of the passage cut to fit the budget.
    """

    id: int
    parent: int
    depth: int
    branch: Branch
    passage: Passage | None
    text: str = ""
    token_ids: tuple[int, ...] = ()
    text_ids: tuple[int, ...] = ()
    finish: str = ""
    likelihood: float = 0.0
    judgments: dict[Role, Judgment | None] = field(default_factory=dict)
    boundary: Judgment | None = None
    ended: bool = False
    score: float = 0.0
    path_score: float = 0.0
    status: Status = Status.PRUNED
    dropped_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Trace:
    """One decode, whole.

    Attributes:
        question: as asked.
        decoding: the settings.
        nodes: all candidates; `nodes[i].id == i`, parents before children.
        decisions: one for each expanded node, in order.
        best: id of the node that ends the answer, None if there is none.
        options: for a closed set, the options in order; each node is then one option after one passage.
    """

    question: str
    decoding: Decoding
    nodes: tuple[Node, ...]
    decisions: tuple[Decision, ...]
    best: int | None
    options: tuple[str, ...] = ()

    def path(self, node: int | None) -> list[Node]:
        """Segments from the first to `node`."""
        result: list[Node] = []
        while node is not None and node != ROOT:
            result.append(self.nodes[node])
            node = self.nodes[node].parent
        return result[::-1]

    def decision_before(self, node: Node) -> Decision:
        """The decision that led to `node`."""
        return next(decision for decision in self.decisions if decision.after == node.parent)

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return {
            "question": self.question,
            "decoding": decoding_dict(self.decoding),
            "best": self.best,
            "options": list(self.options),
            "decisions": [_decision_dict(decision) for decision in self.decisions],
            "nodes": [_node_dict(node) for node in self.nodes],
        }

    def to_json(self, *, indent: int | None = 1) -> str:
        """The trace as one JSON object."""
        return json.dumps(self.as_dict(), ensure_ascii=False, indent=indent)


def decoding_dict(decoding: Decoding) -> dict[str, Any]:
    """Settings as plain values."""
    values = {name: getattr(decoding, name) for name in decoding.__dataclass_fields__}
    for name in ("require", "forbid"):
        values[name] = {str(role): sorted(labels) for role, labels in values[name].items()}
    return values | {"weights": str(decoding.weights)}


def _optional(judgment: Judgment | None) -> dict[str, Any] | None:
    return None if judgment is None else judgment.as_dict()


def judgments_dict(judgments: Mapping[Role, Judgment | None]) -> dict[str, Any]:
    """Judgments by role name."""
    return {str(role): _optional(judgment) for role, judgment in judgments.items()}


def _decision_dict(decision: Decision) -> dict[str, Any]:
    return {
        "after": decision.after,
        "action": decision.action,
        "reason": decision.reason,
        "judgment": _optional(decision.judgment),
        "query": decision.query,
        "passages": [passage.as_dict() for passage in decision.passages],
    }


def _node_dict(node: Node) -> dict[str, Any]:
    plain = {
        name: getattr(node, name)
        for name in ("id", "parent", "depth", "branch", "text", "finish", "likelihood", "ended", "score", "path_score")
    }
    return plain | {
        "status": str(node.status),
        "passage_id": node.passage.id if node.passage else None,
        "token_ids": list(node.token_ids),
        "judgments": judgments_dict(node.judgments),
        "boundary": _optional(node.boundary),
        "dropped_tokens": node.dropped_tokens,
    }
