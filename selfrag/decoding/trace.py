"""The trace: every decision and every candidate of one decode, as plain values, to JSON and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from retrieval.passage import Passage
from retrieval.reading import parse_json
from selfrag.decoding.policy import Action, Decoding
from selfrag.decoding.segments import Branch
from selfrag.errors import UserError, generation_error
from selfrag.reflection.judgment import Judgment, Source
from selfrag.reflection.labels import GROUPS, Kind, Label, LabelSet, Role
from selfrag.reflection.weights import Weights

ROOT = -1
"""Parent of the first segments."""
QUESTION = "question"
"""Site of judgments on the question alone, before anything is searched."""


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
    BOUNDED = "bounded"  # given up: its scores and its likelihood are the highest that were possible


UNUSABLE = frozenset({Status.DUPLICATE, Status.EMPTY, Status.FORBIDDEN, Status.FAILED, Status.BOUNDED})
"""Candidates that no weights can bring back from the record."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A choice at a segment boundary: retrieve, continue with the same evidence, or write without.

    Attributes:
        after: node that the boundary follows, `ROOT` at the start of the answer.
        action: what was done.
        reason: why, in a few words.
        judgment: distribution over Retrieve; None in modes that do not read it.
        query: what was searched for, None if nothing was.
        passages: evidence for the next segment, one candidate each, duplicates removed; empty after `retrieve` if
            nothing was found or a guardrail let nothing through; the segment is then written without evidence.
        gates: reflectors that were asked before writing, each with a judgment; undefined ones are left out. `isrel` are
            the judgments of a shortlist.
        failure: why the search failed; the answer then ends at this boundary.
    """

    after: int
    action: Action
    reason: str
    judgment: Judgment | None = None
    query: str | None = None
    passages: tuple[Passage, ...] = ()
    gates: tuple[tuple[str, Judgment], ...] = ()
    failure: str | None = None

    @property
    def routed(self) -> bool:
        """Whether guardrails on the question alone decided in place of the model."""
        return any(judgment.site == QUESTION for _, judgment in self.gates)


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
        finish: why generation ended, why it failed, or why it was given up.
        likelihood: p(y_t|..) as scored.
        judgments: isrel, issup, isuse; None where undefined. A critique that a reflector replaces is left out where the
            cascade did not ask the reflector.
        joined: reflectors with a term of their own, likewise.
        places: for reflectors that judged several places of the segment, each place; `judgments` and `joined` hold
            their mean.
        boundary: distribution over Retrieve at its end.
        ended: the answer cannot continue after it (EOS, or no token is left to spend).
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
    joined: dict[str, Judgment | None] = field(default_factory=dict)
    places: dict[str, tuple[Judgment, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trace:
    """The record of one decode.

    Attributes:
        question: the question.
        decoding: the settings.
        nodes: all candidates; `nodes[i].id == i`, parents before children.
        decisions: one for each expanded node, in order.
        best: id of the node that ends the answer, None if there is none.
        options: for multiple choice, the options in order; each node is then one option after one passage.
        costs: tier of each reflector of the settings, see `selfrag.decoding.reflectors.Critic.cost`.
        narrow: whether this was rescored, and other settings decided what was written or judged.
    """

    question: str
    decoding: Decoding
    nodes: tuple[Node, ...]
    decisions: tuple[Decision, ...]
    best: int | None
    options: tuple[str, ...] = ()
    costs: Mapping[str, int] = field(default_factory=dict)
    narrow: bool = False

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

    def over(self, node: int) -> bool:
        """Whether nothing may follow a node: the model ended there, or no token or segment is left."""
        return node != ROOT and (self.nodes[node].ended or self.nodes[node].depth == self.decoding.max_segments)

    def action(self, decision: Decision) -> Action:
        """What the settings do at a boundary; after rescoring they may differ from those that were decoded with."""
        if decision.routed or decision.judgment is None:
            return decision.action
        path = self.path(decision.after)
        action = self.decoding.action(decision.judgment, has_evidence=any(step.passage is not None for step in path))[0]
        return decision.action if action == "retrieve" and decision.action == "abstain" else action

    def following(self, decision: Decision, children: Sequence[Node]) -> tuple[Sequence[Node], bool]:
        """The candidates after a boundary that the settings ask for, and whether the record holds all of them.

        If the record does not hold them, all candidates are returned.
        """
        action = self.action(decision)
        if action != "write" or action == decision.action:
            return children, action == decision.action
        without = [child for child in children if child.branch == "none"]  # tried beside the passages, or none found
        return without or children, bool(without)

    @property
    def abstained(self) -> bool:
        """Whether a guardrail gave a fixed text in place of an answer."""
        return bool(self.decisions) and self.decisions[0].action == "abstain"

    @property
    def partial(self) -> str | None:
        """Why the answer ends early, in one line: a search or a generation after it failed. None if it is complete."""
        end = ROOT if self.best is None else self.best
        decision = next((decision for decision in self.decisions if decision.after == end), None)
        if decision is None or self.over(end):
            return None
        place = f"segment {1 if end == ROOT else self.nodes[end].depth + 1}"
        if decision.failure is not None:
            return f"the search for {place} failed: {decision.failure}"
        children, _ = self.following(decision, [node for node in self.nodes if node.parent == end])
        reason = next((node.finish for node in children if node.status is Status.FAILED), None)
        return None if reason is None else f"{place} could not be written: {reason}"

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        shown = {decision.after: decision.passages for decision in self.decisions}
        return {
            "question": self.question,
            "decoding": decoding_dict(self.decoding),
            "best": self.best,
            **({"partial": self.partial} if self.partial else {}),
            "options": list(self.options),
            **({"costs": dict(self.costs)} if self.costs else {}),
            **({"narrow": True} if self.narrow else {}),
            "decisions": [_decision_dict(decision) for decision in self.decisions],
            "nodes": [_node_dict(node, shown.get(node.parent, ())) for node in self.nodes],
        }

    def to_json(self, *, indent: int | None = 1) -> str:
        """The trace as one JSON object; `from_json` reads it back."""
        return json.dumps(self.as_dict(), ensure_ascii=False, indent=indent)

    @classmethod
    def from_json(cls, text: str) -> Trace:
        """Read what `to_json` wrote, for instance to replay it under other weights.

        Raises:
            UserError: the text is no such JSON.
        """
        return trace_of(parse_json(text, "this is no trace in JSON", nan=True))


def check_generated(candidates: Sequence[Node]) -> None:
    """Refuse first candidates that all failed; there is then no answer, not even an empty one."""
    if candidates and all(node.status is Status.FAILED for node in candidates):
        raise generation_error(f"no candidate could be generated: {candidates[0].finish}")


def decoding_dict(decoding: Decoding) -> dict[str, Any]:
    """Settings as plain values; those of reflectors only where there are any."""
    values = {name: getattr(decoding, name) for name in decoding.__dataclass_fields__}
    for name in ("require", "forbid"):
        values[name] = {str(role): sorted(labels) for role, labels in values[name].items()}
    joined, gates = [str(part) for part in values.pop("reflectors")], [str(gate) for gate in values.pop("gates")]
    survivors, abstention = list(values.pop("survivors")), values.pop("abstention")
    for name, usual in (
        ("branch_and_bound", False),
        ("shortlist", None),
        ("aggregate", "product"),
        ("calibrated", True),
    ):
        if values[name] == usual:
            del values[name]
    if joined:
        values |= {"reflectors": joined, "survivors": survivors}
    if gates:
        values |= {"gates": gates, "abstention": abstention}
    return values | {"weights": decoding.weights.as_dict()}


_OWN = {labels.role: labels for labels in GROUPS}


def judgment_dict(judgment: Judgment) -> dict[str, Any]:
    """Plain values; a label set that is not Self-RAG's is written out, so that the trace can be read alone."""
    values = judgment.as_dict()
    if judgment.labels == _OWN.get(judgment.role):
        return values
    return values | {"labels": [[label.name, label.value, label.token, str(label.kind)] for label in judgment.labels]}


def read_judgment(given: Mapping[str, Any]) -> Judgment:
    """What `judgment_dict` gave; raises KeyError or ValueError for anything else."""
    role = Role(given["role"])
    if "labels" in given:
        written = (Label(name, value, token, Kind(kind)) for name, value, token, kind in given["labels"])
        labels = LabelSet(role, tuple(written))
    else:
        labels = _OWN[role]
    distribution = tuple(given["distribution"][name] for name in labels.names)
    source = Source(given["source"])
    return Judgment(labels, given["site"], distribution, given["coverage"], source, given["evidence"])


PLAIN = ("id", "parent", "depth", "branch", "text", "finish", "likelihood", "ended", "score", "path_score")
"""Fields of a node that are JSON values as they are; `dropped_tokens` stands last."""


def trace_of(data: Mapping[str, Any]) -> Trace:
    """A trace from what `Trace.as_dict` gave, as it stands in the record of a run."""
    try:
        decisions = tuple(_decision(given) for given in data["decisions"])
        shown = {decision.after: decision.passages for decision in decisions}
        nodes = tuple(_node(given, shown.get(given["parent"], ())) for given in data["nodes"])
        decoding = Decoding(**data["decoding"] | {"weights": Weights(**data["decoding"]["weights"])})
        rest = data["best"], tuple(data["options"]), data.get("costs", {}), data.get("narrow", False)
        return Trace(data["question"], decoding, nodes, decisions, *rest)
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
