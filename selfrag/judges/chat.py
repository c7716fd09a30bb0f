"""The default dialect: each intrinsic as one plain user turn, for any chat model, whose labels are scored by place."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from retrieval.sentences import SentenceFinder
from selfrag.common.errors import UserError, count_of
from selfrag.judges.layout import arguments as given_arguments
from selfrag.judges.layout import (
    conversation,
    numbered_documents,
    numbers,
    one_line,
    turn,
)
from selfrag.judges.output import (
    ModelOutput,
    slot_judgment,
    slot_scores,
)
from selfrag.judges.sentences import (
    cited_spans,
    earlier_sites,
    judged_site,
    last_index,
    response_sites,
    rules,
    source_sites,
)
from selfrag.judges.wire import (
    DIALECT,
    ChatPrompt,
    Completion,
    Gold,
    ModelRequest,
    Slot,
    Target,
    Teachable,
    logsumexp,
)
from selfrag.reflection.findings import Citation, Diagnostic, Finding, Reflection
from selfrag.reflection.inputs import JudgeInput, Message, Site, SiteKind
from selfrag.reflection.intrinsic_labels import CITED, in_set
from selfrag.reflection.judge import Cost
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import LabelSet
from selfrag.reflection.requests import Constraint


def _request(
    state: JudgeInput,
    task: str,
    sites: tuple[Site, ...],
    sources: tuple[Site, ...] | None,
    arguments: str = "",
    **more: Any,
) -> ModelRequest:
    """Return a request of one user turn: documents (without `sources` none), conversation, arguments and task."""
    documents = ""
    if sources is not None and (state.passages or sources):
        documents = numbered_documents(state, sources)
    prompt = turn(documents, conversation(state.messages), arguments, f"Task: {task}")
    return ModelRequest(
        state,
        ChatPrompt((Message("user", prompt),)),
        sites=sites,
        sources=sources or (),
        **more,
    )


class _SlotCodec(Teachable):
    """One finding for each slot of a request, and one target for each gold label."""

    labels: LabelSet
    dialect = DIALECT
    cost = Cost.ONE_TOKEN

    def decode(self, request: ModelRequest, completion: Completion) -> Reflection:
        """Return one finding a slot."""
        findings: list[Finding] = []
        notes: list[Diagnostic] = []
        all_scores = slot_scores(request, completion)
        for number, slot in enumerate(request.slots):
            scores = all_scores[number]
            judgment, of_slot = slot_judgment(
                self.labels, self._per_label(scores), slot.site, request, number
            )
            findings.append(
                Finding(slot.site, judgment, self._cited(request, judgment, scores))
            )
            notes += of_slot
        return Reflection(
            request.state, tuple(findings), None, completion.text, tuple(notes)
        )

    def teach(self, request: ModelRequest, gold: Gold) -> tuple[Target, ...]:
        """Return the written form of each known label; gold without one label a slot is refused."""
        if len(gold.labels) != len(request.slots):
            raise UserError(
                f"{self.intrinsic}: {count_of(len(gold.labels), 'gold labels')} for"
                f" {count_of(len(request.slots), 'places')}"
            )
        targets = []
        for slot, label in zip(request.slots, gold.labels, strict=True):
            name = None if label is None else in_set(self.labels, label)
            if name is not None:
                targets.append(
                    Target(slot.prefill, slot.surfaces[self.labels.index(name)])
                )
        return tuple(targets)

    def _per_label(self, scores: Sequence[float] | None) -> Sequence[float] | None:
        return scores

    def _cited(
        self,
        request: ModelRequest,
        judgment: Judgment | None,
        scores: Sequence[float] | None,
    ) -> tuple[Citation, ...]:
        return ()


@dataclass(frozen=True)
class LabelCodec(_SlotCodec):
    """One label on a turn or a passage, scored at one place: a `Teachable` codec for any label set and any question."""

    intrinsic: str  # its name
    labels: LabelSet  # what is distributed; `Label.token` is what the model writes
    task: str | Callable[[JudgeInput], str]  # the question at the end of the user turn
    place: Callable[[JudgeInput], Site]  # the site that is judged, for a state
    prefill: str = ""  # beginning of the reply, up to the label
    documents: bool = True  # whether the model sees the passages
    arguments: tuple[str, ...] = ()  # names of arguments that the model sees
    find: SentenceFinder = rules  # sentence splitter for the passages
    # whether the model sees nothing of the conversation but the last turn
    last_turn_only: bool = False

    def encode(self, state: JudgeInput) -> ModelRequest:
        """Return documents, conversation, arguments and task as one user turn; one slot."""
        last_index(state)
        if self.last_turn_only:
            state = replace(state, messages=state.messages[-1:])
        site = self.place(state)
        task = self.task
        if not isinstance(task, str):
            task = task(state)
        sources = None
        if self.documents:
            sources = source_sites(state, self.find)
        slot = Slot(self.labels.tokens, site, self.prefill)
        return _request(
            state,
            task,
            (site,),
            sources,
            given_arguments(state.arguments, self.arguments),
            slots=(slot,),
        )


@dataclass(frozen=True)
class SentenceCodec(_SlotCodec):
    """One label for each sentence of the response, each scored at its own place: a `Teachable` codec."""

    intrinsic: str  # its name
    labels: LabelSet  # what is distributed for each sentence; `Label.token` is what the model writes
    task: str  # the question at the end of the user turn
    asking: str  # text between a sentence and its label
    find: SentenceFinder = rules  # sentence splitter

    def encode(self, state: JudgeInput) -> ModelRequest:
        """Return documents, conversation and task as one user turn; the reply quotes a sentence before each slot."""
        sites = response_sites(state, last_index(state), self.find)
        surfaces = tuple(f" {label.token}" for label in self.labels)
        slots = _sentence_slots(sites, surfaces, self.asking)
        return _request(
            state, self.task, sites, source_sites(state, self.find), slots=slots
        )


def _sentence_slots(
    sites: Sequence[Site], surfaces: tuple[str, ...], asking: str
) -> tuple[Slot, ...]:
    slots = []
    for number, site in enumerate(sites, 1):
        slots.append(
            Slot(surfaces, site, f"Sentence {number}: {one_line(site.text)}\n{asking}")
        )
    return tuple(slots)


@dataclass(frozen=True)
class WritingCodec(Teachable):
    """A text in a JSON object with one field, for intrinsics that write: a `Teachable` codec."""

    intrinsic: str  # its name
    key: str  # the field
    labels: LabelSet  # what is judged by the text: the first label says that it is new, or that it is `quiet`
    task: str  # the question at the end of the user turn
    scope: SiteKind = SiteKind.QUERY  # what the text is about
    quiet: str | None = None  # a text that says that there is nothing to write
    documents: bool = False  # whether the model sees the passages
    max_tokens: int = 128  # of the reply
    arguments: tuple[str, ...] = ()  # names of arguments that the model sees
    find: SentenceFinder = rules  # sentence splitter for the passages
    dialect = DIALECT

    def encode(self, state: JudgeInput) -> ModelRequest:
        """Return conversation and task as one user turn; the reply is constrained to the JSON object."""
        schema = {
            "type": "object",
            "properties": {self.key: {"type": "string"}},
            "required": [self.key],
            "additionalProperties": False,
        }
        return _request(
            state,
            f"{self.task} Reply with JSON: {json.dumps({self.key: '...'})}",
            (judged_site(self.scope, state),),
            source_sites(state, self.find) if self.documents else None,
            given_arguments(state.arguments, self.arguments),
            max_tokens=self.max_tokens,
            constraint=Constraint.json(schema),
        )

    def decode(self, request: ModelRequest, completion: Completion) -> Reflection:
        """Return the text, on one line, and a hard judgment on it; both undefined if no whole text was written."""
        output = ModelOutput.of(request, completion)
        text = output.read_text((self.key,))
        finding = output.text_finding(
            text,
            self.labels,
            judged_site(self.scope, request.state),
            self.quiet,
        )
        if text is not None:
            text = one_line(text)
        notes = tuple(output.diagnostics)
        return Reflection(request.state, (finding,), text, completion.text, notes)

    def teach(self, request: ModelRequest, gold: Gold) -> tuple[Target, ...]:
        """Return the JSON object."""
        text = one_line(gold.text or "")
        if not text:
            raise UserError(f"{self.intrinsic}: the gold has no text")
        return (Target("", json.dumps({self.key: text}, ensure_ascii=False)),)


TASK = (
    "For each sentence of the last reply, name the number of a document sentence that it rests on,"
    " such as [07]. Write [{none}] if it rests on none."
)


@dataclass(frozen=True)
class CitationCodec(_SlotCodec):
    """Which numbered document sentences each response sentence rests on, as a distribution over their numbers.

    `[00]` stands for none. All numbers have one width, so they are scored along a small trie, without terminators.
    """

    intrinsic: str = "citation_generation"  # its name
    task: str = TASK  # the question at the end of the user turn, in which `none` stands for the number of no sentence
    turns: bool = False  # whether sentences of earlier turns may be cited, too
    share: float = 0.5  # a sentence is cited if it has this share of the most probable one's probability
    most: int = 3  # document sentences cited for one response sentence, at most
    find: SentenceFinder = rules  # sentence splitter
    labels: LabelSet = CITED  # whether a sentence rests on any source

    def encode(self, state: JudgeInput) -> ModelRequest:
        """Return numbered documents, conversation and task as one user turn; one slot a response sentence."""
        sites = response_sites(state, last_index(state), self.find)
        sources = source_sites(state, self.find)
        if self.turns:
            sources += earlier_sites(state, self.find)
        names = numbers(len(sources))
        slots = _sentence_slots(sites, names, "Rests on [")
        return _request(
            state, self.task.format(none=names[0]), sites, sources, slots=slots
        )

    def teach(self, request: ModelRequest, gold: Gold) -> tuple[Target, ...]:
        """Return one target for each cited sentence, together of weight 1; `[00]` where nothing is cited."""
        if len(gold.sources) != len(request.slots):
            raise UserError(
                f"{self.intrinsic}: {len(gold.sources)} gold lists for {count_of(len(request.slots), 'sentences')}"
            )
        targets: list[Target] = []
        for slot, cited in zip(request.slots, gold.sources, strict=True):
            if cited is None:
                continue
            if any(not 0 <= index < len(request.sources) for index in cited):
                raise UserError(
                    f"{self.intrinsic}: gold {cited} outside of {count_of(len(request.sources), 'document sentences')}"
                )
            numbers = [index + 1 for index in cited] or [0]
            targets += [
                Target(slot.prefill, slot.surfaces[number], 1 / len(numbers))
                for number in numbers
            ]
        return tuple(targets)

    def _per_label(self, scores: Sequence[float] | None) -> Sequence[float] | None:
        if scores is None:
            return None
        return min(logsumexp(scores[1:]), 0.0), scores[0]

    def _cited(
        self,
        request: ModelRequest,
        judgment: Judgment | None,
        scores: Sequence[float] | None,
    ) -> tuple[Citation, ...]:
        """Return the most probable sentences, neighbours merged, in the order of the documents."""
        if scores is None or judgment is None or judgment.label != "cited":
            return ()
        total = logsumexp(scores)
        shares = {
            site: math.exp(score - total)
            for site, score in zip(request.sources, scores[1:], strict=True)
        }
        return cited_spans(request.state, shares, share=self.share, most=self.most)
