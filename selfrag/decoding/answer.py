"""`Answer`: text, segments with offsets, citations, judgments, usage, trace. Built from a trace; runs no model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from retrieval.passage import Passage
from selfrag.common.errors import UserError, require
from selfrag.decoding.policy import AnswerReason, Decoding
from selfrag.decoding.terms import as_label
from selfrag.decoding.trace import FinishReason, Node, Trace, appended
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import GROUPS, Role
from selfrag.reflection.requests import Usage as Usage
from selfrag.reflection.weights import Weights
from selfrag.render import html, plain


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of the answer, the unit of citation.

    Attributes:
        text: `answer.text[start:end]`.
        start: character offset.
        end: character offset, exclusive.
        citation: the passage that the segment uses, new or kept from the segment before; None without evidence, if
            the model judged the passage irrelevant, or if the segment only says that there is no answer.
        judgments: retrieve, isrel, issup, isuse; None where undefined.
        score: segment score (Eq. 3).
        node: id in the trace.
        judges: judgments of the judges with a term of their own, by name; None where undefined.
        finish: `stop`, or `length` where the token budget or the context cut the segment.

    Example:
        >>> from selfrag import generate
        >>> faust = Passage("faust", "Faust is a tragedy by Johann Wolfgang von Goethe.", "Faust")
        >>> (segment,) = generate("Who wrote Faust?", evidence=[faust]).segments
        >>> segment.text, segment.citation.title, segment.judgments[Role.RELEVANCE].label
        ('Johann Wolfgang von Goethe', 'Faust', 'Relevant')
    """

    text: str
    start: int
    end: int
    citation: Passage | None
    judgments: Mapping[Role, Judgment | None]
    score: float
    node: int
    judges: Mapping[str, Judgment | None] = field(default_factory=dict)
    finish: FinishReason = "stop"

    @property
    def all_judgments(self) -> dict[str, Judgment | None]:
        """Judgments by the names of the groups and judges; None where undefined."""
        return {
            str(labels.role): self.judgments.get(labels.role) for labels in GROUPS
        } | dict(self.judges)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        reflections: dict[str, dict[str, float] | None] = {}
        for name, judgment in self.all_judgments.items():
            reflections[name] = None if judgment is None else judgment.probabilities
        return {
            "text": self.text,
            "start": self.start,
            "end": self.end,
            "citation": self.citation.as_dict() if self.citation else None,
            "reflections": reflections,
            "score": self.score,
            "finish": self.finish,
        }


@dataclass(frozen=True, slots=True)
class FlowStep:
    """A stage of a flow and its outcome, see `selfrag.intrinsics.flows`."""

    name: str  # name of the stage
    outcome: str  # one line for readers; may hold text of models and users
    judgments: tuple[Judgment, ...] = ()  # what the judges said
    # whether the stage ran after an answer was written; it may then have changed or rejected the answer
    after: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        judgments = [judgment.as_dict() for judgment in self.judgments]
        return {"name": self.name, "outcome": self.outcome, "judgments": judgments}


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question.

    Attributes:
        question: the question.
        text: the answer without reflection tokens, or the abstention; empty if the model wrote nothing or `error` is
            set.
        segments: segments of the text, in order.
        usage: what it cost; counted by whoever runs the decoder (`selfrag.runtime.drive`).
        trace: everything that was considered.
        exact: after `rescore`: whether the recorded tree held everything the new settings ask for; True before. In
            16-bit formats a new decode can choose otherwise, because judgments depend on the batch
            (docs/explanation/exact.md). Never with `whole_answers`.
        error: one line on why there is no answer, None if there is one.
        steps: stages of the flow; empty without a flow.
        note: one line that a reader should see, such as that the model answers in English only; None without one.
        whole_answers: whether every candidate is a whole answer, one segment, in place of the segments that the
            settings ask for: the model's server cannot go on with a reply that has begun.

    Example:
        >>> from selfrag import generate
        >>> faust = Passage("faust", "Faust is a tragedy by Johann Wolfgang von Goethe.", "Faust")
        >>> answer = generate("Who wrote Faust?", evidence=[faust])
        >>> print(answer)
        Johann Wolfgang von Goethe [1]
        [1] Faust
        >>> answer.rescore(threshold=0.5).text
        'Johann Wolfgang von Goethe'
    """

    question: str
    text: str
    segments: tuple[Segment, ...]
    usage: Usage
    trace: Trace = field(repr=False)
    exact: bool = True
    error: str | None = None
    steps: tuple[FlowStep, ...] = ()
    note: str | None = None
    whole_answers: bool = False

    @classmethod
    def failed(cls, question: str, decoding: Decoding, error: Exception) -> Answer:
        """Return the answer to a question that could not be answered, in a list of others."""
        return cls(
            question,
            "",
            (),
            Usage(),
            Trace(question, decoding, (), (), None),
            error=str(error),
        )

    @property
    def abstained(self) -> bool:
        """Return whether there is no answer: `Decoding.abstention` stands in its place, or the model refused.

        `reason` says why. Whether a text refuses is decided by `selfrag.decoding.refusals.refuses`.
        """
        return self.trace.abstained

    @property
    def reason(self) -> AnswerReason | None:
        """Return why this abstains, or rests on no evidence though it was looked for; None otherwise.

        One of `nothing found`, `every passage left out`, `guardrail`, `constraints not met`, `no text`, `the model
        refused`, `no search left`.
        """
        return self.trace.reason

    @property
    def reasoning(self) -> str:
        """Return what the model thought before it wrote; empty for most models. Untrusted, never cited or judged."""
        return self.trace.reasoning

    @property
    def path_score(self) -> float | None:
        """Score of the path that ends with this answer; None for an abstention, or without an answer."""
        return (
            None
            if self.trace.best is None
            else self.trace.nodes[self.trace.best].path_score
        )

    @property
    def without_evidence(self) -> bool:
        """Return whether the model wrote by itself where evidence was looked for and there was none."""
        return self.trace.best is not None and self.trace.evidence_missing is not None

    @property
    def finish(self) -> FinishReason:
        """`length` where the token budget or the context ended the answer, else `stop`."""
        return self.trace.finish

    @property
    def partial(self) -> str | None:
        """Return why the answer ends early, in one line; None if it is complete.

        A later search failed or found nothing, or a later generation failed.
        """
        return self.trace.partial

    @property
    def citations(self) -> tuple[Passage, ...]:
        """Cited passages in order of first citation, each once; `[1]` is the first."""
        passages: dict[tuple[str, str, str], Passage] = {}
        for segment in self.segments:
            if segment.citation is not None:
                passages.setdefault(segment.citation.key, segment.citation)
        return tuple(passages.values())

    @property
    def numbers(self) -> dict[tuple[str, str, str], int]:
        """`Passage.key` of each citation to its number, counted from 1."""
        return {passage.key: number for number, passage in enumerate(self.citations, 1)}

    @property
    def retrieved(self) -> tuple[tuple[Passage, int], ...]:
        """Passages considered for this answer's segments with the number of the segment, counted from 0."""
        decisions = self.trace.decisions_by_node()
        pairs: list[tuple[Passage, int]] = []
        for number, segment in enumerate(self.segments):
            decision = decisions[self.trace.nodes[segment.node].parent]
            if decision.action == "retrieve":
                pairs.extend((passage, number) for passage in decision.passages)
        return tuple(pairs)

    def as_dict(self) -> dict[str, Any]:
        """Return the answer as plain values, `partial`, `note`, `reasoning` and `steps` only where there are any."""
        retrieved = []
        for passage, number in self.retrieved:
            retrieved.append(
                {
                    "id": passage.id,
                    "title": passage.title,
                    "score": passage.score,
                    "segment": number,
                }
            )
        values: dict[str, Any] = {
            "question": self.question,
            "text": self.text,
            "finish": self.finish,
            "abstained": self.abstained,
            "reason": None if self.reason is None else str(self.reason),
            "without_evidence": self.without_evidence,
        }
        for name in ("partial", "note", "reasoning"):
            if getattr(self, name):
                values[name] = getattr(self, name)
        values["segments"] = [segment.as_dict() for segment in self.segments]
        values |= {"retrieved": retrieved, "usage": self.usage.as_dict()}
        if self.steps:
            values["steps"] = [step.as_dict() for step in self.steps]
        return values

    def frame(self) -> Any:
        """Return a pandas frame with a row for each segment: text, citation, judgments and score.

        A critique has two columns, its likeliest label and that label's probability, such as `issup` and `issup_p`.
        `abstained` and `reason` are those of the answer. An abstention without segments has one row with its text.
        """
        pandas = require("pandas", extra="eval")
        numbers = self.numbers
        rows = []
        for segment in self.segments:
            passage = segment.citation
            row: dict[str, Any] = {
                "text": segment.text,
                "start": segment.start,
                "end": segment.end,
            }
            row |= dict.fromkeys(("citation", "title", "file", "page"))
            if passage is not None:
                row |= {"citation": numbers[passage.key], "title": passage.title}
                row |= {
                    "file": passage.metadata.get("file"),
                    "page": passage.metadata.get("page"),
                }
            for name, judgment in segment.all_judgments.items():
                row[name] = row[f"{name}_p"] = None
                if judgment is not None:
                    row[name] = judgment.label
                    row[f"{name}_p"] = max(judgment.distribution)
            rows.append(row | {"score": segment.score, "finish": segment.finish})
        if self.abstained and not rows:
            rows = [{"text": self.text, "start": 0, "end": len(self.text)}]
        told = {"abstained": self.abstained, "reason": self.reason}
        return pandas.DataFrame([row | told for row in rows])

    def rescore(
        self, weights: Weights | None = None, threshold: float | None = None
    ) -> Answer:
        """Return the answer that other weights or another threshold would have given, without the model.

        `exact` of the result says whether the recorded tree was complete for that setting, and no stage of a flow
        looked at the answer after it was written.

        Raises:
            UserError: this answer failed, or the threshold is out of range.
            DecodingError: nothing could be generated for that setting.
        """
        if self.error is not None:
            raise UserError(
                f"this answer failed ({self.error}); there is nothing to rescore"
            )
        from selfrag.decoding.rescore import rescore

        trace, exact = rescore(self.trace, weights, threshold)
        text, segments = segments_of(trace, trace.best)
        exact = exact and self.final and not self.whole_answers
        return replace(self, text=text, segments=segments, trace=trace, exact=exact)

    @property
    def final(self) -> bool:
        """Return whether no stage of a flow saw the written answer; what it says of others is not recorded."""
        return not any(step.after for step in self.steps)

    def _repr_html_(self) -> str:
        return html(self)

    def __str__(self) -> str:
        return plain(self)

    def cited_text(self, mark: Callable[[Passage], str] | None = None) -> str:
        """Return the answer with a mark after each segment that cites, before the white space at its end.

        An abstention has no segments and no marks.

        Args:
            mark: makes the mark of a citation; by default its number in brackets.
        """
        numbers = self.numbers
        marked = ""
        position = 0
        for segment in self.segments:
            written = self.text[position : segment.end]
            body = written.rstrip()
            marked += body
            if segment.citation is not None:
                shown = (
                    mark(segment.citation)
                    if mark
                    else f"[{numbers[segment.citation.key]}]"
                )
                marked += f" {shown}"
            marked += written[len(body) :]
            position = segment.end
        return marked + self.text[position:]


def segments_of(trace: Trace, node: int | None) -> tuple[str, tuple[Segment, ...]]:
    """Return text and segments of the hypothesis that ends at `node`, blank ones left out, or the abstention."""
    if node is None and trace.abstained:
        return trace.decoding.abstention, ()
    decisions = trace.decisions_by_node()
    text = ""
    segments: list[Segment] = []
    cited: Passage | None = None
    for step in trace.path(node):
        if step.branch == "passage":
            cited = None if _irrelevant(step) else step.passage
        addition = appended(text, step.text)
        if not addition:
            continue
        body = addition.lstrip(" ")
        text += addition
        start = len(text) - len(body)
        uncited = step.branch == "none" or trace.refuses(body)
        citation = None if uncited else cited
        judgments = {Role.RETRIEVE: decisions[step.parent].judgment, **step.judgments}
        finish: FinishReason = "length" if step.cut else "stop"
        span = body, start, len(text)
        segments.append(
            Segment(
                *span, citation, judgments, step.score, step.id, step.judges, finish
            )
        )
    return text, tuple(segments)


def _irrelevant(node: Node) -> bool:
    relevance = node.judgments.get(Role.RELEVANCE)
    return relevance is not None and as_label(relevance, Role.RELEVANCE) == "Irrelevant"
