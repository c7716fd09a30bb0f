"""The shape of a trace in JSON, checked strictly before anything is made of it.

A trace may come from a stranger, over HTTP or in a file. One pass, linear in its size, checks the types of all values,
the tree (ids in order, parents before children, one decision before each candidate) and the distributions. What passes
can be rescored and drawn without further checks.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, NotRequired

from pydantic import AliasChoices, Field
from typing_extensions import TypedDict

from selfrag.common.errors import UserError
from selfrag.common.validation import validate
from selfrag.decoding.policy import Action, AnswerReason
from selfrag.decoding.segments import Branch
from selfrag.reflection.judgment import SELF_RAG_LABELS, JudgmentSource
from selfrag.reflection.labels import (
    CRITIQUES,
    RETRIEVE,
    Label,
    LabelKind,
    LabelSet,
    Role,
)

MAX_NODES = 100_000
"""Candidates of a trace that is read."""
MAX_DEPTH = 1_024
"""Segments of a path in a trace that is read."""
_MAX_INTEGER = 1 << 31
SUM_TOLERANCE = 1e-3
"""By how much the probabilities of a distribution that is read may differ from 1."""


_CRITIQUE_ROLES = frozenset(labels.role for labels in CRITIQUES)

Share = Annotated[float, Field(ge=0, le=1 + SUM_TOLERANCE)]
RecordedCount = Annotated[int, Field(ge=0, lt=_MAX_INTEGER)]
# an id of a model behind an endpoint holds its text, see `selfrag.judges.text_pieces`
RecordedIds = tuple[Annotated[int, Field(ge=0, lt=1 << 58)], ...]
NodeId = Annotated[int, Field(ge=0, lt=MAX_NODES)]
ParentId = Annotated[int, Field(ge=-1, lt=MAX_NODES)]


def _former(name: str, former: str) -> Any:
    """Return a field that earlier versions wrote under another name."""
    return Field(validation_alias=AliasChoices(name, former))


class PassageRecord(TypedDict):
    """A passage; numbers of its metadata that are not finite were never written."""

    id: str
    text: str
    title: NotRequired[str]
    score: NotRequired[float | None]
    metadata: NotRequired[dict[str, str | int | float | bool]]


class JudgmentRecord(TypedDict):
    """A judgment; `labels` are written out where they are not those of Self-RAG."""

    role: Role
    distribution: dict[str, Share]
    coverage: Share
    source: JudgmentSource
    site: str
    evidence: str | None
    labels: NotRequired[list[tuple[str, float, str, LabelKind]]]


class DecisionRecord(TypedDict):
    """A decision at a segment boundary."""

    after: ParentId
    action: Action
    reason: str
    judgment: JudgmentRecord | None
    query: str | None
    passages: list[PassageRecord]
    guardrails: NotRequired[
        Annotated[list[tuple[str, JudgmentRecord]], _former("guardrails", "gates")]
    ]
    failure: NotRequired[str]
    cause: NotRequired[AnswerReason]


class NodeRecord(TypedDict):
    """A candidate segment; its passage is one of the decision before it."""

    id: NodeId
    parent: ParentId
    depth: Annotated[int, Field(ge=1, le=MAX_DEPTH)]
    branch: Branch
    text: str
    finish: str
    likelihood: float
    ended: bool
    score: float
    path_score: float
    status: str
    passage_id: str | None
    passage_at: NotRequired[RecordedCount]
    token_ids: RecordedIds
    text_ids: RecordedIds
    judgments: dict[Role, JudgmentRecord | None]
    boundary: JudgmentRecord | None
    dropped_tokens: RecordedCount
    judges: NotRequired[
        Annotated[dict[str, JudgmentRecord | None], _former("judges", "joined")]
    ]
    places: NotRequired[dict[str, list[JudgmentRecord]]]
    undefined: NotRequired[dict[str, str]]
    reasoning: NotRequired[str]
    remark: NotRequired[str]
    refuses: NotRequired[bool]
    abstains: NotRequired[bool]


class TraceRecord(TypedDict):
    """A whole trace. `partial`, `reason` and `note`, and of nodes `refuses` and `abstains`, follow from the rest.

    They are written for readers: `refuses` says that the text of a node is a refusal, `abstains` that the whole answer
    is one where it ends there. A trace of an earlier version lacks them, and they are found again when it is read.
    """

    question: str
    decoding: dict[str, Any]
    best: NodeId | None
    partial: NotRequired[str]
    reason: NotRequired[str]
    note: NotRequired[str]
    options: list[str]
    costs: NotRequired[dict[str, Annotated[int, Field(ge=0, le=3)]]]
    narrow: NotRequired[bool]
    resegmented: NotRequired[bool]
    decisions: Annotated[list[DecisionRecord], Field(max_length=MAX_NODES + 1)]
    nodes: list[NodeRecord]  # `read_record` counts them


def read_record(data: object) -> TraceRecord:
    """Check the values of a trace and how they hang together.

    Raises:
        UserError: what is wrong first, in one line.
    """
    nodes = data.get("nodes") if isinstance(data, dict) else None
    if isinstance(nodes, list) and len(nodes) > MAX_NODES:
        # Counted first: to check the fields of so many nodes takes half a minute.
        raise UserError(f"'nodes' must have at most {MAX_NODES} items")
    record = validate(TraceRecord, data, mended=True)
    if record["best"] is not None and record["best"] >= len(record["nodes"]):
        raise UserError(f"best: there is no node {record['best']}")
    _check_decisions(record)
    _check_nodes(record)
    return record


def _check_decisions(record: TraceRecord) -> None:
    decided: set[int] = set()
    for decision in record["decisions"]:
        after = decision["after"]
        place = f"the decision after node {after}"
        if after >= len(record["nodes"]):
            raise UserError(f"{place}: there is no such node")
        if after in decided:
            raise UserError(f"{place} occurs twice")
        _check_retrieve(decision["judgment"], place)
        decided.add(after)


def _check_nodes(record: TraceRecord) -> None:
    """Raise UserError unless the nodes form one tree with a decision before each of them."""
    decided = {decision["after"] for decision in record["decisions"]}
    options = set(record["options"])
    depths: list[int] = []
    for position, node in enumerate(record["nodes"]):
        place = f"node {position}"
        parent = node["parent"]
        if node["id"] != position:
            raise UserError(f"{place} has the id {node['id']}; ids count from 0")
        if parent >= position:
            raise UserError(
                f"{place} has the parent {parent}; parents stand before their children"
            )
        if parent not in decided:
            raise UserError(f"{place} follows node {parent}, where nothing was decided")
        depth = 1 if parent < 0 else depths[parent] + 1
        if node["depth"] != depth:
            raise UserError(
                f"{place} has the depth {node['depth']} in place of {depth}"
            )
        depths.append(depth)
        if options and node["text"] not in options:
            raise UserError(f"{place} is none of the options")
        if not node["judgments"].keys() <= _CRITIQUE_ROLES:
            raise UserError(f"{place} has judgments that are no critiques")
        _check_retrieve(node["boundary"], place)


def _check_retrieve(judgment: JudgmentRecord | None, place: str) -> None:
    if judgment is not None and labels_of(judgment) != RETRIEVE:
        raise UserError(f"{place}: its judgment is not about Retrieve")


def labels_of(record: JudgmentRecord) -> LabelSet:
    """Return the labels that a judgment of a trace is over.

    Raises:
        UserError: they are missing, or the distribution names others or does not sum to 1.
    """
    role = record["role"]
    distribution = record["distribution"]
    site = record["site"]
    if "labels" in record:
        labels = LabelSet(role, tuple([Label(*values) for values in record["labels"]]))
    elif role in SELF_RAG_LABELS:
        labels = SELF_RAG_LABELS[role]
    else:
        raise UserError(f"the judgment {site!r:.80} about {role} has no labels")
    if tuple(distribution) != labels.names and sorted(distribution) != sorted(
        labels.names
    ):
        raise UserError(f"the judgment {site!r:.80} is not over the labels of {role}")
    total = math.fsum(distribution.values())
    if abs(total - 1) > SUM_TOLERANCE:
        raise UserError(
            f"the probabilities of the judgment {site!r:.80} sum to {total:g}, not 1"
        )
    return labels
