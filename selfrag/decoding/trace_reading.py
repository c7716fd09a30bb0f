"""Read a trace: what `trace_schema` has checked becomes the arguments of `Trace`, its decisions and its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from retrieval.passage import Passage
from selfrag.common.errors import UserError
from selfrag.decoding.policy import Decoding
from selfrag.decoding.trace_schema import (
    DecisionRecord,
    JudgmentRecord,
    NodeRecord,
    labels_of,
    read_record,
)
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.weights import Weights

ConstructorFields: TypeAlias = dict[str, Any]
"""Arguments of a constructor."""
FORMER_NAMES = {"reflectors": "judges", "gates": "guardrails", "joined": "judges"}
"""Fields of traces by the names that earlier versions wrote."""


def read_values(data: object) -> ConstructorFields:
    """Return the fields of a trace, with those of its decisions and nodes in two lists.

    Raises:
        UserError: the first fault.
    """
    record = read_record(data)
    decisions = list(map(_read_decision, record["decisions"]))
    passages = {decision["after"]: decision["passages"] for decision in decisions}
    by_id = {after: _by_id(of_decision) for after, of_decision in passages.items()}
    nodes = []
    for item in record["nodes"]:
        parent = item["parent"]
        nodes.append(
            _read_node(item, _find_passage(item, passages[parent], by_id[parent]))
        )
    return {
        "question": record["question"],
        "decoding": _read_decoding(record["decoding"]),
        "decisions": decisions,
        "nodes": nodes,
        "best": record["best"],
        "options": tuple(record["options"]),
        "costs": record.get("costs", {}),
        "narrow": record.get("narrow", False),
        "resegmented": record.get("resegmented", False),
    }


def _read_decoding(values: Mapping[str, Any]) -> Decoding:
    values = {FORMER_NAMES.get(name, name): value for name, value in values.items()}
    for name in sorted(values.keys() - Decoding.__dataclass_fields__.keys()):
        raise UserError(
            f"decoding has the setting {name!r:.80}, which this version does not know"
        )
    weights = values.get("weights")
    if not isinstance(weights, Mapping):
        raise UserError("decoding has no weights")
    weights = {FORMER_NAMES.get(name, name): value for name, value in weights.items()}
    try:
        return Decoding(
            **{"without_evidence": "write", **values, "weights": Weights(**weights)}
        )
    except (TypeError, ValueError, ArithmeticError) as error:
        raise UserError(f"decoding: {error}") from error


def _read_decision(record: DecisionRecord) -> ConstructorFields:
    guardrails = record.get("guardrails", ())
    return {
        **record,
        "judgment": _read_optional(record["judgment"]),
        "passages": tuple([Passage(**passage) for passage in record["passages"]]),
        "guardrails": tuple(
            [(name, _read_judgment(judgment)) for name, judgment in guardrails]
        ),
    }


def _by_id(passages: tuple[Passage, ...]) -> dict[str, Passage]:
    """Return passages by their ids, the first of each."""
    return {passage.id: passage for passage in reversed(passages)}


def _find_passage(
    record: NodeRecord, passages: tuple[Passage, ...], by_id: Mapping[str, Passage]
) -> Passage | None:
    """Return the passage that a candidate names: by id, or by position where two share an id.

    Raises:
        UserError: the decision before it has no such passage.
    """
    identifier = record["passage_id"]
    position = record.get("passage_at")
    if identifier is None:
        return None
    passage = None
    if position is None:
        passage = by_id.get(identifier)
    elif position < len(passages) and passages[position].id == identifier:
        passage = passages[position]
    if passage is None:
        raise UserError(
            f"node {record['id']} has the unknown passage {identifier!r:.80}"
        )
    return passage


_DERIVED = ("passage_id", "passage_at", "refuses", "abstains")
"""Fields of a recorded node that follow from the others, or stand for its passage."""


def _read_node(record: NodeRecord, passage: Passage | None) -> ConstructorFields:
    fields: ConstructorFields = {**record, "passage": passage}
    for name in _DERIVED:
        fields.pop(name, None)
    fields["judgments"] = _read_all(record["judgments"])
    fields["boundary"] = _read_optional(record["boundary"])
    fields["judges"] = _read_all(record.get("judges", {}))
    fields["places"] = {}
    for name, judgments in record.get("places", {}).items():
        fields["places"][name] = tuple(map(_read_judgment, judgments))
    return fields


def _read_all(
    records: Mapping[Any, JudgmentRecord | None],
) -> dict[Any, Judgment | None]:
    return {key: _read_optional(record) for key, record in records.items()}


def _read_optional(record: JudgmentRecord | None) -> Judgment | None:
    return None if record is None else _read_judgment(record)


def _read_judgment(record: JudgmentRecord) -> Judgment:
    labels = labels_of(record)
    distribution = record["distribution"]
    probabilities = tuple([distribution[name] for name in labels.names])
    return Judgment(
        labels,
        record["site"],
        probabilities,
        record["coverage"],
        record["source"],
        record["evidence"],
    )
