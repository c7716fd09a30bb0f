"""Traces to JSON and back. Knows the fields; knows nothing of decoding."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from retrieval.passage import Passage
from selfrag.decoding.policy import Decoding
from selfrag.decoding.trace import Decision, Node, Status, Trace, decoding_dict
from selfrag.errors import UserError
from selfrag.reflection.judgment import Judgment, Source
from selfrag.reflection.labels import Role, group
from selfrag.reflection.weights import Weights

PLAIN = ("id", "parent", "depth", "branch", "text", "finish", "likelihood", "ended", "score", "path_score")
"""Fields of a node that are JSON values as they are; `dropped_tokens` stands last."""


def trace_dict(trace: Trace) -> dict[str, Any]:
    """A trace as plain values."""
    return {
        "question": trace.question,
        "decoding": decoding_dict(trace.decoding),
        "best": trace.best,
        "options": list(trace.options),
        "decisions": [_decision_dict(decision) for decision in trace.decisions],
        "nodes": [_node_dict(node) for node in trace.nodes],
    }


def read_trace(text: str) -> Trace:
    """A trace from what `trace_dict` gave, as JSON.

    Raises:
        UserError: the text is no such JSON.
    """
    try:
        data = json.loads(text)
        decisions = tuple(_decision(given) for given in data["decisions"])
        passages = {decision.after: {p.id: p for p in decision.passages} for decision in decisions}
        nodes = tuple(_node(given, passages) for given in data["nodes"])
        decoding = Decoding(**data["decoding"] | {"weights": Weights(**data["decoding"]["weights"])})
        return Trace(data["question"], decoding, nodes, decisions, data["best"], tuple(data["options"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"this is no trace in JSON: {type(error).__name__}: {error}") from error


def _decision_dict(decision: Decision) -> dict[str, Any]:
    return {
        "after": decision.after,
        "action": decision.action,
        "reason": decision.reason,
        "judgment": _optional(decision.judgment),
        "query": decision.query,
        "passages": [passage.as_dict() for passage in decision.passages],
    }


def _decision(given: Mapping[str, Any]) -> Decision:
    passages = tuple(Passage(**passage) for passage in given["passages"])
    judgment = _judgment(given["judgment"])
    return Decision(given["after"], given["action"], given["reason"], judgment, given["query"], passages)


def _node_dict(node: Node) -> dict[str, Any]:
    return {name: getattr(node, name) for name in PLAIN} | {
        "status": str(node.status),
        "passage_id": node.passage.id if node.passage else None,
        "token_ids": list(node.token_ids),
        "text_ids": list(node.text_ids),
        "judgments": {str(role): _optional(judgment) for role, judgment in node.judgments.items()},
        "boundary": _optional(node.boundary),
        "dropped_tokens": node.dropped_tokens,
    }


def _node(given: Mapping[str, Any], passages: Mapping[int, Mapping[str, Passage]]) -> Node:
    name = given["passage_id"]
    return Node(
        **{name: given[name] for name in PLAIN},
        passage=None if name is None else passages[given["parent"]][name],
        token_ids=tuple(given["token_ids"]),
        text_ids=tuple(given["text_ids"]),
        judgments={Role(role): _judgment(judgment) for role, judgment in given["judgments"].items()},
        boundary=_judgment(given["boundary"]),
        status=Status(given["status"]),
        dropped_tokens=given["dropped_tokens"],
    )


def _optional(judgment: Judgment | None) -> dict[str, Any] | None:
    return None if judgment is None else judgment.as_dict()


def _judgment(given: Mapping[str, Any] | None) -> Judgment | None:
    if given is None:
        return None
    labels = group(given["role"])
    distribution = tuple(given["distribution"][name] for name in labels.names)
    source = Source(given["source"])
    return Judgment(labels, given["site"], distribution, given["coverage"], source, given["evidence"])
