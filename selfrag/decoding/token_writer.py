"""`TokenWriter`: writes with a model that has reflection tokens, and reads its critiques off the tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from retrieval.passage import Passage
from selfrag.common.errors import UserError, generation_error
from selfrag.decoding.policy import Action, Decoding
from selfrag.decoding.segments import APPLICABLE, SegmentReading, read, read_critique
from selfrag.decoding.trace import ROOT
from selfrag.decoding.writer import (
    Candidate,
    Hypothesis,
    ScoredOptions,
    SegmentWriter,
    WritingModel,
    branch_of,
    tokens_left,
)
from selfrag.prompting import Evidence, Prompting, Turn
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import ISREL, ISSUP, ISUSE, RETRIEVE, LabelSet, Role
from selfrag.reflection.requests import (
    Failed,
    Generate,
    Generated,
    Steps,
    TokenIds,
    ask,
)
from selfrag.reflection.vocabulary import Vocabulary

if TYPE_CHECKING:
    from selfrag.reflection.judge import Judge


DecodingModel: TypeAlias = Prompting | WritingModel
"""A model that a decoder can use: with reflection tokens, or one that writes and reflects otherwise."""


def with_tokens(model: DecodingModel) -> Prompting:
    """Return a model with reflection tokens; refuse one without."""
    if not isinstance(model, Prompting):
        raise UserError(
            "this reads reflection tokens, which the model does not have; give a Self-RAG checkpoint"
        )
    return model


@dataclass(slots=True)
class _OptionContext:
    """A place after which options are scored: the prompt with one passage, or with none."""

    candidate: Candidate
    prefix: TokenIds
    relevance: Judgment | None = None
    failure: Failed | None = None


@dataclass(slots=True)
class _ScoredOption:
    """An option after a context."""

    context: _OptionContext
    text: str
    written: TokenIds  # what stands before its next critique
    judgments: dict[Role, Judgment | None]


@dataclass(slots=True)
class TokenWriter(SegmentWriter):
    """The answer to one question by a model with reflection tokens."""

    prompting: Prompting
    question: str
    history: Sequence[Turn]
    policy: Decoding
    judges: Mapping[str, Judge] = field(default_factory=dict)
    # by title and text
    _encoded: dict[tuple[str, str], Evidence] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.vocabulary.scalings and not self.policy.calibrated:
            self.prompting = replace(
                self.prompting, vocabulary=self.vocabulary.uncalibrated()
            )

    @property
    def vocabulary(self) -> Vocabulary:
        """Return the reflection tokens."""
        return self.prompting.vocabulary

    def start(self) -> Hypothesis:
        """Return the hypothesis before anything is written."""
        return Hypothesis(
            ROOT, self.prompting.prompt(self.question, history=self.history), None
        )

    def boundaries(
        self, hypotheses: Sequence[Hypothesis]
    ) -> Steps[list[Judgment | None]]:
        """Return Retrieve before anything is written, from one token; later ones are read with their segment."""
        asks_text = self.policy.retrieve_test == "written"
        requests = [
            Generate(
                hypothesis.prefix,
                25 if asks_text else 1,
                watch_ids=self.vocabulary.watch,
            )
            for hypothesis in hypotheses
        ]
        results = yield from ask(requests)
        judgments: list[Judgment | None] = []
        for result in results:
            if isinstance(result, Failed):
                raise generation_error(
                    f"the model could not read the question: {result.reason}"
                )
            if asks_text and not self._writes_retrieval(result.token_ids):
                judgments.append(None)
                continue
            judgments.append(
                read_critique(self.vocabulary, RETRIEVE, result.watched[0], "start")
            )
        return judgments

    def _writes_retrieval(self, ids: TokenIds) -> bool:
        """Return whether `[Retrieval]` stands before the first blank line."""
        retrieval = self.vocabulary.retrieve[0]
        if retrieval not in ids:
            return False
        before = ids[: ids.index(retrieval)]
        return "\n\n" not in self.prompting.text(before)

    def relevance(
        self, places: Sequence[tuple[Hypothesis, Passage]]
    ) -> Steps[list[Judgment | None]]:
        """Return IsRel of each passage, from one token; the engine then has the prompt of its segment."""
        requests = []
        for hypothesis, passage in places:
            prompt = (
                *hypothesis.prefix,
                self.vocabulary.retrieve[0],
                *self.evidence(passage).ids,
            )
            requests.append(Generate(prompt, 1, watch_ids=self.vocabulary.watch))
        results = yield from ask(requests)
        judgments: list[Judgment | None] = []
        for (_, passage), result in zip(places, results, strict=True):
            judgment = None
            if isinstance(result, Generated):
                judgment = read_critique(
                    self.vocabulary,
                    ISREL,
                    result.watched[0],
                    f"passage {passage.id}",
                    passage.id,
                )
            judgments.append(judgment)
        return judgments

    def evidence(self, passage: Passage) -> Evidence:
        """Return a passage as ids; tokenised once for the whole question."""
        key = passage.title, passage.text
        if key not in self._encoded:
            self._encoded[key] = self.prompting.evidence(
                passage, self.policy.passage_tokens
            )
        return self._encoded[key]

    def candidate(
        self, parent: Hypothesis, action: Action, passage: Passage | None
    ) -> Candidate:
        """Lay out one continuation: prefix, marker and evidence as in training."""
        retrieval, no_retrieval, keep = self.vocabulary.retrieve
        branch = branch_of(action, passage)
        ids: TokenIds = (no_retrieval,)
        dropped = 0
        if branch == "continue" and self.policy.history == "text+passages":
            ids = (keep,)  # the passage already stands in the prefix
        elif passage is not None:
            evidence = self.evidence(passage)
            ids = (retrieval, *evidence.ids)
            dropped = evidence.dropped_tokens
        room = tokens_left(self.policy, parent)
        return Candidate(parent, branch, passage, room, (*parent.prefix, *ids), dropped)

    def request(self, candidate: Candidate) -> Generate:
        """Return what is asked of the engine for a candidate."""
        return Generate(
            prompt_ids=candidate.prompt_ids,
            max_tokens=candidate.max_tokens,
            stop_ids=self.vocabulary.retrieve
            if self.policy.segment_end == "retrieve"
            else (),
            watch_ids=self.vocabulary.watch,
        )

    def write(
        self, candidates: Sequence[Candidate]
    ) -> Steps[list[SegmentReading | Failed]]:
        """Write one segment a candidate."""
        results = yield from ask([self.request(candidate) for candidate in candidates])
        return (yield from self.read_all(candidates, results))

    def read_all(
        self, candidates: Sequence[Candidate], results: Sequence[Generated | Failed]
    ) -> Steps[list[SegmentReading | Failed]]:
        """Read what candidates wrote, with one more token for each segment that was cut before something was due."""
        readings = [
            self.read(candidate, result)
            for candidate, result in zip(candidates, results, strict=True)
        ]
        cut: list[tuple[Candidate, SegmentReading]] = []
        requests = []
        for candidate, reading in zip(candidates, readings, strict=True):
            if isinstance(reading, SegmentReading) and self.missing(candidate, reading):
                cut.append((candidate, reading))
                requests.append(
                    Generate(
                        (*candidate.prompt_ids, *reading.ids),
                        1,
                        watch_ids=self.vocabulary.watch,
                    )
                )
        endings = yield from ask(requests)
        for (candidate, reading), result in zip(cut, endings, strict=True):
            if isinstance(result, Failed):
                continue  # stays undefined, and the policy's rule for undefined critiques applies
            for labels in self.missing(candidate, reading):
                judgment = read_critique(
                    self.vocabulary,
                    labels,
                    result.watched[0],
                    candidate.site,
                    candidate.evidence,
                )
                if labels is RETRIEVE:
                    reading.boundary = judgment
                    reading.ended = False
                else:
                    reading.judgments[labels.role] = judgment
        if self.policy.history == "leaked":
            self._leak(candidates, readings)
        return readings

    def _leak(
        self,
        candidates: Sequence[Candidate],
        readings: Sequence[SegmentReading | Failed],
    ) -> None:
        """Set what stands before each segment later on: from the second sibling on the one before, not the parent."""
        parent = None
        sibling: TokenIds = ()
        no_retrieval = self.vocabulary.retrieve[1]
        for candidate, reading in zip(candidates, readings, strict=True):
            if isinstance(reading, Failed):
                continue
            prefix = candidate.parent.prefix
            reading.before = prefix
            if candidate.parent is parent:
                length = len(candidate.parent.segment)
                reading.before = (*prefix[: len(prefix) - length], *sibling)
            parent = candidate.parent
            sibling = reading.ids
            if reading.boundary is None and no_retrieval in sibling:
                sibling = (*sibling, no_retrieval)  # that code writes it once more

    def read(
        self, candidate: Candidate, result: Generated | Failed
    ) -> SegmentReading | Failed:
        """Read what a candidate wrote."""
        if isinstance(result, Failed):
            return result
        published_end = self.policy.segment_end == "retrieval"
        cut = None
        if published_end and candidate.passage is not None:
            cut = self._cut(result)
        reading = read(
            result,
            self.vocabulary,
            branch=candidate.branch,
            site=candidate.site,
            evidence=candidate.evidence,
            likelihood=self.policy.likelihood,
            forced=self.policy.forced,
            cut=cut,
        )
        reading.text = self.prompting.text(reading.ids, reading.text_ids)
        if published_end and candidate.passage is None:
            reading.text = reading.text.partition("\n\n")[0]
        return reading

    def _cut(self, result: Generated) -> int | None:
        """Return where a completion asks to retrieve: at `[Retrieval]`, or where `[No Retrieval]` is turned into it."""
        retrieval, no_retrieval, _ = self.vocabulary.retrieve
        threshold = self.policy.threshold
        for place, token in enumerate(result.token_ids):
            if token == no_retrieval and threshold is not None:
                row = result.watched[place]
                judgment = read_critique(self.vocabulary, RETRIEVE, row, "")
                yes, no, keep = judgment.distribution
                if yes + keep > threshold * (yes + no):
                    return place
            if token == retrieval:
                return place
        return None

    def missing(self, candidate: Candidate, reading: SegmentReading) -> list[LabelSet]:
        """Return what must be read after a segment that was cut: critiques that are due, and Retrieve if it goes on."""
        due = [
            labels
            for labels in APPLICABLE[candidate.branch]
            if labels.role in self.policy.forced
        ]
        missing = [labels for labels in due if reading.judgments[labels.role] is None]
        if self.policy.goes_on(
            reading.cut,
            candidate.parent.spent + len(reading.ids),
            len(candidate.parent.texts) + 1,
        ):
            missing.append(RETRIEVE)
        return missing

    def prefix(self, candidate: Candidate, reading: SegmentReading) -> TokenIds:
        """Return what the model sees of the answer so far."""
        match self.policy.history:
            case "text":
                return (*candidate.parent.prefix, *reading.text_ids)
            case "written":
                return (*candidate.parent.prefix, *reading.ids)
            case "leaked":
                return (*reading.before, *reading.ids)
            case _:
                return (*candidate.prompt_ids, *reading.ids)

    def choose(
        self, candidates: Sequence[Candidate], options: Sequence[str], most_watched: int
    ) -> Steps[list[ScoredOptions | Failed]]:
        """Score every option after each candidate's evidence; IsSup and IsUse are read after the option."""
        contexts = [
            _OptionContext(candidate, candidate.prompt_ids) for candidate in candidates
        ]
        yield from self._judge_passages(contexts)
        encoded = [tuple(self.prompting.codec.encode(option)) for option in options]
        logprobs = yield from self._option_logprobs(contexts, encoded, most_watched)
        scored: list[_ScoredOption] = []
        for context in contexts:
            if context.failure is not None:
                continue
            for option, ids in zip(options, encoded, strict=True):
                judgments = {
                    Role.RELEVANCE: context.relevance,
                    Role.SUPPORT: None,
                    Role.UTILITY: None,
                }
                scored.append(
                    _ScoredOption(context, option, (*context.prefix, *ids), judgments)
                )
        for labels in (ISSUP, ISUSE):
            yield from self._judge_options(scored, labels)
        tables: list[ScoredOptions | Failed] = []
        for number, context in enumerate(contexts):
            if context.failure is not None:
                tables.append(context.failure)
                continue
            rows = [item.judgments for item in scored if item.context is context]
            tables.append(ScoredOptions(encoded, logprobs[number], rows))
        return tables

    def _judge_passages(self, contexts: Sequence[_OptionContext]) -> Steps[None]:
        """Let the model judge each passage; the judgment becomes part of the prefix, as in generation."""
        judged = [
            context for context in contexts if context.candidate.branch == "passage"
        ]
        requests = [
            Generate(context.prefix, 1, watch_ids=self.vocabulary.watch)
            for context in judged
        ]
        results = yield from ask(requests)
        for context, result in zip(judged, results, strict=True):
            if isinstance(result, Failed):
                context.failure = result
                continue
            passage = context.candidate.evidence
            judgment = read_critique(
                self.vocabulary, ISREL, result.watched[0], f"passage {passage}", passage
            )
            context.relevance = judgment
            context.prefix = (*context.prefix, self._label_id(ISREL, judgment))

    def _option_logprobs(
        self,
        contexts: Sequence[_OptionContext],
        options: Sequence[TokenIds],
        most_watched: int,
    ) -> Steps[dict[int, list[float]]]:
        """Return log p(option|context) by the number of the context, for each that could be served."""
        # most questions have no options
        from selfrag.decoding.option_scoring import (
            score_options,
        )

        enders = (self.vocabulary.eos_id, *sorted(self.vocabulary.ids.values()))
        ready = [
            number for number, context in enumerate(contexts) if context.failure is None
        ]
        prefixes = [contexts[number].prefix for number in ready]
        rows = yield from score_options(prefixes, options, enders, most_watched)
        logprobs: dict[int, list[float]] = {}
        for number, row in zip(ready, rows, strict=True):
            if isinstance(row, Failed):
                contexts[number].failure = row
            else:
                logprobs[number] = row
        return logprobs

    def _judge_options(
        self, scored: Sequence[_ScoredOption], labels: LabelSet
    ) -> Steps[None]:
        """Judge every option where the group can be judged; the next group is read after the label."""
        due = [
            item
            for item in scored
            if labels in APPLICABLE[item.context.candidate.branch]
        ]
        results = yield from ask(
            [Generate(item.written, 1, watch_ids=self.vocabulary.watch) for item in due]
        )
        for item, result in zip(due, results, strict=True):
            if isinstance(result, Generated):
                evidence = item.context.candidate.evidence
                site = f"option {item.text!r}, passage {evidence}"
                judgment = read_critique(
                    self.vocabulary, labels, result.watched[0], site, evidence
                )
                item.judgments[labels.role] = judgment
                item.written = (*item.written, self._label_id(labels, judgment))

    def _label_id(self, labels: LabelSet, judgment: Judgment) -> int:
        return self.vocabulary.group(labels)[labels.index(judgment.label)]


def writer_of(
    model: DecodingModel, question: str, history: Sequence[Turn], policy: Decoding
) -> SegmentWriter:
    """Return what writes the answer to a question."""
    if isinstance(model, Prompting):
        return TokenWriter(model, question, tuple(history), policy)
    return model.writer(question, tuple(history), policy)
