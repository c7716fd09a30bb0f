"""Traces to JSON and back. Knows the fields; knows nothing of decoding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from retrieval.passage import Passage
from retrieval.reading import parse_json
from selfrag.decoding.judgment_json import judgment_dict, read_judgment
from selfrag.decoding.policy import Decoding
from selfrag.decoding.trace import Decision, Node, Status, Trace, decoding_dict
from selfrag.errors import UserError
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import Role
from selfrag.reflection.weights import Weights

PLAIN = ("id", "parent", "depth", "branch", "text", "finish", "likelihood", "ended", "score", "path_score")
"""Fields of a node that are JSON values as they are; `dropped_tokens` stands last."""


def trace_dict(trace: Trace) -> dict[str, Any]:
    """A trace as plain values."""
    shown = {decision.after: decision.passages for decision in trace.decisions}
    return {
        "question": trace.question,
        "decoding": decoding_dict(trace.decoding),
        "best": trace.best,
        **({"partial": trace.partial} if trace.partial else {}),
        "options": list(trace.options),
        **({"costs": dict(trace.costs)} if trace.costs else {}),
        "decisions": [_decision_dict(decision) for decision in trace.decisions],
        "nodes": [_node_dict(node, shown.get(node.parent, ())) for node in trace.nodes],
    }


def read_trace(text: str) -> Trace:
    """A trace from what `trace_dict` gave, as JSON.

    Raises:
        UserError: the text is no such JSON.
    """
    return trace_of(parse_json(text, "this is no trace in JSON", nan=True))


def trace_of(data: Mapping[str, Any]) -> Trace:
    """A trace from what `trace_dict` gave, as it stands in the record of a run.

    Raises:
        UserError: the values are no trace.
    """
    try:
        decisions = tuple(_decision(given) for given in data["decisions"])
        shown = {decision.after: decision.passages for decision in decisions}
        nodes = tuple(_node(given, shown.get(given["parent"], ())) for given in data["nodes"])
        decoding = Decoding(**data["decoding"] | {"weights": Weights(**data["decoding"]["weights"])})
        costs = data.get("costs", {})
        return Trace(data["question"], decoding, nodes, decisions, data["best"], tuple(data["options"]), costs)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"this is no trace in JSON: {type(error).__name__}: {error}") from error


def _decision_dict(decision: Decision) -> dict[str, Any]:
    values: dict[str, Any] = {
        "after": decision.after,
        "action": decision.action,
        "reason": decision.reason,
        "judgment": _optional(decision.judgment),
        "query": decision.query,
        "passages": [passage.as_dict() for passage in decision.passages],
    }
    if decision.gates:
        values["gates"] = [[name, judgment_dict(judgment)] for name, judgment in decision.gates]
    return values | ({} if decision.failure is None else {"failure": decision.failure})


def _decision(given: Mapping[str, Any]) -> Decision:
    passages = tuple(Passage(**passage) for passage in given["passages"])
    judgment = _judgment(given["judgment"])
    gates = tuple((name, read_judgment(asked)) for name, asked in given.get("gates", ()))
    head = given["after"], given["action"], given["reason"]
    return Decision(*head, judgment, given["query"], passages, gates, given.get("failure"))


def _node_dict(node: Node, shown: Sequence[Passage]) -> dict[str, Any]:
    values = {name: getattr(node, name) for name in PLAIN} | {
        "status": str(node.status),
        "passage_id": node.passage.id if node.passage else None,
        "token_ids": list(node.token_ids),
        "text_ids": list(node.text_ids),
        "judgments": {str(role): _optional(judgment) for role, judgment in node.judgments.items()},
        "boundary": _optional(node.boundary),
        "dropped_tokens": node.dropped_tokens,
    }
    if node.passage is not None and _named(node.passage.id, shown) != node.passage:
        values["passage_at"] = shown.index(node.passage)  # another passage before it has the same id
    if node.joined:
        values["joined"] = {name: _optional(judgment) for name, judgment in node.joined.items()}
    if node.places:
        values["places"] = {name: [judgment_dict(j) for j in found] for name, found in node.places.items()}
    return values


def _named(name: str, shown: Sequence[Passage]) -> Passage | None:
    """The first of the passages with an id."""
    return next((passage for passage in shown if passage.id == name), None)


def _node(given: Mapping[str, Any], shown: Sequence[Passage]) -> Node:
    name = given["passage_id"]
    passage = None
    if name is not None:
        passage = shown[given["passage_at"]] if "passage_at" in given else _named(name, shown)
        if passage is None or passage.id != name:
            raise KeyError(name)
    return Node(
        **{name: given[name] for name in PLAIN},
        passage=passage,
        token_ids=tuple(given["token_ids"]),
        text_ids=tuple(given["text_ids"]),
        judgments={Role(role): _judgment(judgment) for role, judgment in given["judgments"].items()},
        boundary=_judgment(given["boundary"]),
        status=Status(given["status"]),
        dropped_tokens=given["dropped_tokens"],
        joined={name: _judgment(judgment) for name, judgment in given.get("joined", {}).items()},
        places={name: tuple(map(read_judgment, found)) for name, found in given.get("places", {}).items()},
    )


def _optional(judgment: Judgment | None) -> dict[str, Any] | None:
    return None if judgment is None else judgment_dict(judgment)


def _judgment(given: Mapping[str, Any] | None) -> Judgment | None:
    return None if given is None else read_judgment(given)
