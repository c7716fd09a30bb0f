"""The trace: every decision and every candidate of one decode, as plain values, to JSON and back."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from retrieval.passage import Passage
from selfrag.common.errors import UserError, generation_error
from selfrag.common.reading import parse_json
from selfrag.decoding.policy import Action, AnswerReason, Decoding
from selfrag.decoding.refusals import LONGEST_REFUSAL, refuses
from selfrag.decoding.segments import Branch
from selfrag.reflection.judgment import SELF_RAG_LABELS, Judgment
from selfrag.reflection.labels import Role
from selfrag.reflection.requests import Finish

ROOT = -1
"""Parent of the first segments."""
QUESTION = "question"
"""Site of judgments on the question alone, before anything is searched."""
CUT = "cut"
"""`Node.finish` of a segment that its budget cut, and that the next one follows (`Decoding.after_cut`)."""
FinishReason = Literal["stop", "length"]
"""How a text ended: by itself, or because the token budget or the context of the model was used up."""


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
            nothing was found or a guardrail let nothing through; see `Decoding.without_evidence`.
        guardrails: judges that were asked before writing, each with a judgment; undefined ones are left out. `isrel`
            are the judgments of a shortlist.
        failure: why the search failed; the answer then ends at this boundary.
        cause: why there is no evidence although it was looked for, or why the answer is the abstention.
    """

    after: int
    action: Action
    reason: str
    judgment: Judgment | None = None
    query: str | None = None
    passages: tuple[Passage, ...] = ()
    guardrails: tuple[tuple[str, Judgment], ...] = ()
    failure: str | None = None
    cause: AnswerReason | None = None

    @property
    def routed(self) -> bool:
        """Return whether guardrails on the question alone decided in place of the model."""
        return any(judgment.site == QUESTION for _, judgment in self.guardrails)


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
        judgments: isrel, issup, isuse; None where undefined. A critique that a judge replaces is left out where the
            cascade did not ask the judge.
        judges: judgments of the judges with a term of their own, by name, likewise.
        places: of judges that said several things about the segment, each; `judgments` and `judges` hold their mean.
        undefined: why a judge said nothing, by its name, where that is known.
        boundary: distribution over Retrieve at its end.
        ended: the answer cannot continue after it (EOS, or no token is left to spend).
        score: segment score.
        path_score: score of the hypothesis that ends here.
        status: what became of it.
        dropped_tokens: tokens of the passage cut to fit the budget.
        reasoning: what the model thought before the text; never cited or judged.
        remark: why there is no text, or not all of it, where the model or its server held it back.
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
    judges: dict[str, Judgment | None] = field(default_factory=dict)
    places: dict[str, tuple[Judgment, ...]] = field(default_factory=dict)
    undefined: dict[str, str] = field(default_factory=dict)
    reasoning: str = ""
    remark: str = ""

    @property
    def cut(self) -> bool:
        """Return whether the token budget or the context ended the segment before the model did."""
        return self.finish == CUT or (
            self.boundary is None and self.finish in (Finish.BUDGET, Finish.CONTEXT)
        )


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
        costs: cost of each judge of the settings, see `selfrag.reflection.judge.Cost`.
        narrow: whether this was rescored, and other settings decided what was written or judged.
        resegmented: whether this was rescored with a threshold under which segments would end elsewhere.
    """

    question: str
    decoding: Decoding
    nodes: tuple[Node, ...]
    decisions: tuple[Decision, ...]
    best: int | None
    options: tuple[str, ...] = ()
    costs: Mapping[str, int] = field(default_factory=dict)
    narrow: bool = False
    resegmented: bool = False

    def path(self, node: int | None) -> list[Node]:
        """Return the segments from the first to `node`."""
        result: list[Node] = []
        while node is not None and node != ROOT:
            result.append(self.nodes[node])
            node = self.nodes[node].parent
        return result[::-1]

    def decisions_by_node(self) -> dict[int, Decision]:
        """Return each decision under the id of the node that it follows."""
        return {decision.after: decision for decision in self.decisions}

    def leading(self) -> list[Decision]:
        """Return the decisions that led to the answer, in order; all of them where there is none."""
        if self.best is None:
            return list(self.decisions)
        after = {step.parent for step in self.path(self.best)}
        return [decision for decision in self.decisions if decision.after in after]

    def over(self, node: int) -> bool:
        """Return whether nothing may follow a node: the model ended there, or no token or segment is left."""
        return node != ROOT and (
            self.nodes[node].ended
            or self.nodes[node].depth == self.decoding.max_segments
        )

    def action(self, decision: Decision) -> Action:
        """Return what the settings do at a boundary; after rescoring they may differ from those of the decode."""
        if decision.routed or decision.judgment is None:
            return decision.action
        path = self.path(decision.after)
        has_evidence = any(step.passage is not None for step in path)
        action, _ = self.decoding.action(decision.judgment, has_evidence=has_evidence)
        if action == "retrieve" and decision.action == "abstain":
            return "abstain"
        return action

    def following(
        self, decision: Decision, children: Sequence[Node]
    ) -> tuple[Sequence[Node], bool]:
        """Return the candidates after a boundary that the settings ask for, and whether the record holds all of them.

        If the record does not hold them, all candidates are returned.
        """
        action = self.action(decision)
        if action != "write" or action == decision.action:
            return children, action == decision.action
        # tried beside the passages, or none found
        without = [child for child in children if child.branch == "none"]
        return without or children, bool(without)

    def text(self, node: int | None) -> str:
        """Return the text of the hypothesis that ends at `node`."""
        text = ""
        for step in self.path(node):
            text += appended(text, step.text)
        return text

    def refuses(self, text: str) -> bool:
        """Return whether a text says that there is no answer, in the model's words or in those of the abstention."""
        return refuses(text) or text == self.decoding.abstention

    @property
    def refused(self) -> bool:
        """Return whether the model refused; never for multiple choice, where a text is an option whatever it says."""
        return not self.options and self.refuses(self.text(self.best))

    @property
    def abstained(self) -> bool:
        """Return whether there is no answer: the fixed text stands in place of one, or the model refused."""
        return self.refused or (self.best is None and self.reason is not None)

    @property
    def reason(self) -> AnswerReason | None:
        """Return why the answer abstains, or was written without the evidence looked for; else None."""
        for decision in self.decisions:
            if decision.action == "abstain":
                return decision.cause or AnswerReason.GUARDRAIL
        if self.best is None:
            first = self._after(ROOT)
            if any(map(self._is_forbidden, first)):
                return AnswerReason.CONSTRAINTS
            remarks = [node.remark for node in first if node.remark]
            if any(remark.startswith(AnswerReason.REFUSED) for remark in remarks):
                return AnswerReason.REFUSED
            return AnswerReason.NO_TEXT if remarks else None
        return AnswerReason.REFUSED if self.refused else self.evidence_missing

    @property
    def evidence_missing(self) -> AnswerReason | None:
        """Return why the model wrote the answer, or a part of it, without the evidence looked for; else None."""
        decisions = self.decisions_by_node()
        for step in self.path(self.best):
            decision = decisions[step.parent]
            if (
                step.text.strip()
                and decision.cause is not None
                and self.action(decision) != "write"
            ):
                return decision.cause
        return None

    def _is_forbidden(self, node: Node) -> bool:
        """Return whether a constraint rules a candidate out, whatever else does: a blank one may have been given up."""
        if node.status is Status.EMPTY:
            return not self.decoding.allows(node.judgments, self.decoding.own)
        return node.status is Status.FORBIDDEN

    @property
    def finish(self) -> FinishReason:
        """`length` where the token budget or the context ended the answer, else `stop`."""
        if self.best is not None:
            end = self.nodes[self.best]
            # but for its tokens
            goes_on = end.boundary is not None or end.finish == Finish.STOP
            if end.cut or (end.ended and goes_on):
                return "length"
            if self.over(self.best):
                return "stop"
        following = self._after(ROOT if self.best is None else self.best)
        empty = any(node.cut and node.status is Status.EMPTY for node in following)
        withheld = self.reason in (None, AnswerReason.NO_TEXT)
        return "length" if empty and withheld else "stop"

    def _after(self, node: int) -> Sequence[Node]:
        """Return the candidates after a node that the settings ask for."""
        decision = self.decisions_by_node().get(node)
        if decision is None:
            return ()
        children = [child for child in self.nodes if child.parent == node]
        return self.following(decision, children)[0]

    @property
    def partial(self) -> str | None:
        """Return why the answer ends early, in one line; None if it is complete.

        A search after it failed or found nothing, or a generation failed.
        """
        end = ROOT if self.best is None else self.best
        decision = self.decisions_by_node().get(end)
        if decision is None or self.over(end):
            return None
        place = f"segment {1 if end == ROOT else self.nodes[end].depth + 1}"
        if decision.failure is not None:
            return f"the search for {place} failed: {decision.failure}"
        children = self._after(end)
        if end != ROOT and decision.cause is not None and not children:
            return f"the search for {place}: {decision.cause}"
        for node in children:
            if node.status is Status.FAILED:
                return f"{place} could not be written: {node.finish}"
        return None

    def _written(self) -> Sequence[Node]:
        """Return the segments of the answer, or the first candidates where there is none."""
        return self._after(ROOT) if self.best is None else self.path(self.best)

    @property
    def reasoning(self) -> str:
        """Return what the model thought before it wrote the answer; empty for most models."""
        thoughts = [node.reasoning for node in self._written() if node.reasoning]
        return "\n\n".join(thoughts)

    @property
    def note(self) -> str | None:
        """Return what was held back of the answer, and which of its segments could not be judged; None for neither."""
        remarks = []
        for node in self._written():
            judgments = [*node.judgments.values(), *node.judges.values()]
            if node.remark:
                remarks.append(node.remark)
            if node.undefined and not any(judgments):
                reason = next(iter(node.undefined.values()))
                remarks.append(f"segment {node.depth} is not judged: {reason}")
        return "; ".join(dict.fromkeys(remarks)) or None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        values: dict[str, Any] = {
            "question": self.question,
            "decoding": decoding_dict(self.decoding),
            "best": self.best,
        }
        for name in ("partial", "reason", "note"):
            if getattr(self, name):
                values[name] = str(getattr(self, name))
        values["options"] = list(self.options)
        if self.costs:
            values["costs"] = dict(self.costs)
        for name in ("narrow", "resegmented"):
            if getattr(self, name):
                values[name] = True
        evidence = {}
        values["decisions"] = []
        for decision in self.decisions:
            evidence[decision.after] = _Evidence(decision.passages)
            values["decisions"].append(_decision_dict(decision))
        values["nodes"] = []
        texts = {ROOT: ""}  # of each path, up to the length that no refusal has
        for node in self.nodes:
            record = _node_dict(node, evidence[node.parent])
            before = texts[node.parent]
            text = (before + appended(before, node.text))[: LONGEST_REFUSAL + 1]
            texts[node.id] = text
            # for the page: a refusal shows no citation, and an answer that is one abstains
            if self.refuses(node.text.strip()):
                record["refuses"] = True
            if not self.options and self.refuses(text):
                record["abstains"] = True
            values["nodes"].append(record)
        return values

    def to_json(self) -> str:
        """Return the trace as one JSON object; `from_json` reads it back."""
        return json.dumps(self.as_dict(), ensure_ascii=False, indent=1)

    @classmethod
    def from_json(cls, text: str) -> Trace:
        """Read what `to_json` wrote, for instance to replay it under other weights.

        Raises:
            UserError: the text is no such JSON.
        """
        return trace_of(parse_json(text, "this is no trace in JSON", nan=True))


def segment_separator(before: str, segment: str) -> str:
    """Return the separator of two segments: empty next to white space or before closing punctuation, else one space."""
    if (
        not before
        or before[-1].isspace()
        or segment[0].isspace()
        or segment[0] in ".,;:!?)]}%"
    ):
        return ""
    return " "


def appended(before: str, segment: str) -> str:
    """Return what a segment adds to the text before it, with the separator; "" for a blank one."""
    body = segment.strip(" ") if before else segment.lstrip().rstrip(" ")
    if not body.strip():
        return ""
    return segment_separator(before, body) + body


def check_generated(candidates: Sequence[Node]) -> None:
    """Refuse first candidates that all failed; there is then no answer, not even an empty one."""
    if candidates and all(node.status is Status.FAILED for node in candidates):
        raise generation_error(
            f"no candidate could be generated: {candidates[0].finish}"
        )


_LEFT_OUT: Mapping[str, Any] = {
    "shortlist": None,
    "keep_evidence": "most_probable",
    "after_cut": "end",
    "aggregate": "product",
    "pool": "finished",
    "calibrated": True,
    "judges": [],
    "guardrails": [],
    "survivors": list(Decoding.survivors),
    "abstention": Decoding.abstention,
    "without_evidence": "write",
}
"""Values of settings that a record does not write; of times when no other value of `without_evidence` was known."""


def decoding_dict(decoding: Decoding) -> dict[str, Any]:
    """Return settings as plain values, without those of `_LEFT_OUT`."""
    values = {name: getattr(decoding, name) for name in decoding.__dataclass_fields__}
    for name in ("require", "forbid"):
        constraint = values[name].items()
        values[name] = {str(role): sorted(labels) for role, labels in constraint}
    for name in ("judges", "guardrails"):
        values[name] = list(map(str, values[name]))
    values["survivors"] = list(values["survivors"])
    for name, usual in _LEFT_OUT.items():
        if values[name] == usual:
            del values[name]
    return values | {"weights": decoding.weights.as_dict()}


def judgment_dict(judgment: Judgment) -> dict[str, Any]:
    """Return plain values; a label set that is not Self-RAG's is written out, so that the trace can be read alone."""
    values = judgment.as_dict()
    if judgment.labels == SELF_RAG_LABELS.get(judgment.role):
        return values
    labels = [
        [label.name, label.value, label.token, str(label.kind)]
        for label in judgment.labels
    ]
    return values | {"labels": labels}


PLAIN = (
    "id",
    "parent",
    "depth",
    "branch",
    "text",
    "finish",
    "likelihood",
    "ended",
    "score",
    "path_score",
)
"""Fields of a node that are JSON values as they are; `dropped_tokens` stands last."""


def trace_of(data: object) -> Trace:
    """Read a trace from what `Trace.as_dict` gave.

    Raises:
        UserError: it is not one; the line names the first fault.
    """
    from selfrag.decoding.trace_reading import read_values  # most decodes read no trace

    try:
        values = read_values(data)
        decisions = tuple([Decision(**fields) for fields in values.pop("decisions")])
        nodes = tuple([_read_node(fields) for fields in values.pop("nodes")])
        return Trace(**values, nodes=nodes, decisions=decisions)
    except UserError as error:
        raise UserError(f"this is no trace in JSON: {error}") from error.__cause__


def _read_node(fields: dict[str, Any]) -> Node:
    try:
        fields["status"] = Status(fields["status"])
    except ValueError:
        raise UserError(
            f"node {fields['id']} has the unknown status {fields['status']!r:.80}"
        ) from None
    return Node(**fields)


def _decision_dict(decision: Decision) -> dict[str, Any]:
    values: dict[str, Any] = {
        "after": decision.after,
        "action": decision.action,
        "reason": decision.reason,
        "judgment": _optional(decision.judgment),
        "query": decision.query,
        "passages": [passage.as_dict() for passage in decision.passages],
    }
    if decision.guardrails:
        values["guardrails"] = [
            [name, judgment_dict(judgment)] for name, judgment in decision.guardrails
        ]
    if decision.failure is not None:
        values["failure"] = decision.failure
    if decision.cause is not None:
        values["cause"] = str(decision.cause)
    return values


class _Evidence:
    """The passages of a decision, as its candidates name them: by id, or by position where two share an id."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._by_id: dict[str, Passage] = {}
        self._positions: dict[tuple[str, str, str], int] = {}
        for position, passage in enumerate(passages):
            self._by_id.setdefault(passage.id, passage)
            self._positions.setdefault(passage.key, position)

    def position(self, passage: Passage) -> int | None:
        """Return the position of a passage, or None where its id is enough."""
        if self._by_id.get(passage.id) == passage:
            return None
        return self._positions[passage.key]


def _node_dict(node: Node, evidence: _Evidence) -> dict[str, Any]:
    values = {name: getattr(node, name) for name in PLAIN}
    values["status"] = str(node.status)
    values["passage_id"] = node.passage.id if node.passage else None
    values["token_ids"] = list(node.token_ids)
    values["text_ids"] = list(node.text_ids)
    values["judgments"] = _optional_all(node.judgments)
    values["boundary"] = _optional(node.boundary)
    values["dropped_tokens"] = node.dropped_tokens
    if node.passage is not None:
        position = evidence.position(node.passage)
        if position is not None:
            values["passage_at"] = position
    if node.judges:
        values["judges"] = _optional_all(node.judges)
    if node.places:
        values["places"] = {}
        for name, judgments in node.places.items():
            values["places"][name] = list(map(judgment_dict, judgments))
    if node.undefined:
        values["undefined"] = dict(node.undefined)
    for name in ("reasoning", "remark"):
        if getattr(node, name):
            values[name] = getattr(node, name)
    return values


def _optional_all(judgments: Mapping[Any, Judgment | None]) -> dict[str, Any]:
    return {str(name): _optional(judgment) for name, judgment in judgments.items()}


def _optional(judgment: Judgment | None) -> dict[str, Any] | None:
    return None if judgment is None else judgment_dict(judgment)
