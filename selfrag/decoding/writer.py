"""`SegmentWriter`: what the decoder needs of a model that writes the answer to one question and reflects on it.

`selfrag.decoding.token_writer` writes with a model that has reflection tokens, `selfrag.judges.chat_model` with any
chat model, whose critiques are judges that it brings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from retrieval.passage import Passage
from selfrag.decoding.policy import Action, Decoding
from selfrag.decoding.segments import Branch, SegmentReading
from selfrag.prompting import Turn
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import Role
from selfrag.reflection.requests import Failed, Steps
from selfrag.tokenization import TextCodec

if TYPE_CHECKING:
    from selfrag.reflection.judge import Judge


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A beam entry: where it stands in the tree and what led there."""

    node: int
    # ids of the prompt and of everything written so far; empty for a model without ids
    prefix: tuple[int, ...]
    # Retrieve at its end; None where nobody has judged that yet
    boundary: Judgment | None
    texts: tuple[tuple[int, ...], ...] = ()  # text ids of its segments
    evidence: Passage | None = None  # what its last segment used
    spent: int = 0  # new tokens so far
    text: str = ""  # of its last segment
    answer: str = ""  # all that was written so far, white space included
    segment: tuple[int, ...] = ()  # ids of its last segment, without the boundary


@dataclass(frozen=True, slots=True)
class Candidate:
    """A continuation that was asked for."""

    parent: Hypothesis
    branch: Branch
    passage: Passage | None
    max_tokens: int  # most new tokens
    prompt_ids: tuple[int, ...] = ()  # empty for a model without ids
    dropped_tokens: int = 0  # tokens of the passage that were cut

    @property
    def site(self) -> str:
        """Name the place of its judgments."""
        return f"segment {len(self.parent.texts) + 1}, {f'passage {self.passage.id}' if self.passage else 'no passage'}"

    @property
    def evidence(self) -> str | None:
        """Return the id of the passage."""
        return None if self.passage is None else self.passage.id


def branch_of(action: Action, passage: Passage | None) -> Branch:
    """Return what a segment is written from."""
    if passage is None:
        return "none"
    return "continue" if action == "continue" else "passage"


def tokens_left(policy: Decoding, parent: Hypothesis) -> int:
    """Return the most new tokens of the segment after a hypothesis."""
    return max(1, min(policy.segment_tokens, policy.answer_tokens - parent.spent))


@dataclass(frozen=True, slots=True)
class ScoredOptions:
    """The options of a multiple choice after one passage, or after none."""

    ids: Sequence[tuple[int, ...]]  # of each option
    logprobs: Sequence[float]  # natural log-probability of each option
    # IsRel, IsSup and IsUse of each option; None where undefined
    judgments: Sequence[dict[Role, Judgment | None]]


class SegmentWriter(Protocol):
    """Writes the answer to one question, segment by segment. Every step shares the batch of the engine.

    Example:
        >>> from selfrag.decoding.token_writer import writer_of
        >>> from selfrag.judges.text_pieces import TextPieces
        >>> from selfrag.prompting import Prompting
        >>> from selfrag.reflection.labels import TOKENS
        >>> from selfrag.reflection.vocabulary import Vocabulary
        >>> vocabulary = Vocabulary({token: number for number, token in enumerate(TOKENS)}, eos_id=15)
        >>> writer: SegmentWriter = writer_of(Prompting(TextPieces(), vocabulary), "Who?", (), Decoding())
        >>> writer.candidate(writer.start(), "retrieve", Passage("p", "Goethe wrote Faust.")).site
        'segment 1, passage p'
    """

    policy: Decoding  # the settings, with the model's own judges among the terms of the score
    # the model's own judges by name; empty where critiques are written with the text
    judges: Mapping[str, Judge]
    # whether candidates are whole answers, because the model's server cannot go on with what was written
    whole_answers: bool = False

    def start(self) -> Hypothesis:
        """Return the hypothesis before anything is written; refuses a question that is no text."""

    def boundaries(
        self, hypotheses: Sequence[Hypothesis]
    ) -> Steps[list[Judgment | None]]:
        """Return Retrieve at the end of each hypothesis. A failure at the start of the answer is an error."""

    def relevance(
        self, places: Sequence[tuple[Hypothesis, Passage]]
    ) -> Steps[list[Judgment | None]]:
        """Return IsRel of each passage where its segment would begin; None where the request failed."""

    def candidate(
        self, parent: Hypothesis, action: Action, passage: Passage | None
    ) -> Candidate:
        """Lay out the next segment of a hypothesis."""

    def write(
        self, candidates: Sequence[Candidate]
    ) -> Steps[list[SegmentReading | Failed]]:
        """Write one segment a candidate."""

    def prefix(self, candidate: Candidate, reading: SegmentReading) -> tuple[int, ...]:
        """Return `Hypothesis.prefix` after a segment."""

    def choose(
        self, candidates: Sequence[Candidate], options: Sequence[str], most_watched: int
    ) -> Steps[list[ScoredOptions | Failed]]:
        """Score every option after each candidate's evidence."""


class WritingModel(Protocol):
    """A model that writes and reflects; `selfrag.prompting.Prompting` is another, with reflection tokens.

    Example:
        >>> from selfrag.judges.chat_model import ChatModel
        >>> from selfrag.judges.wire import Completion, Executor
        >>> class Silent(Executor):
        ...     def steps(self, requests):
        ...         return [Completion() for _ in requests]
        ...         yield []  # a generator, as all steps
        >>> model: WritingModel = ChatModel.on(Silent())
        >>> sorted(model.judges)
        ['prompt_isrel', 'prompt_issup', 'prompt_isuse', 'prompt_retrieve', 'prompt_retrieve_later']
    """

    @property
    def codec(self) -> TextCodec:
        """Tokenises text as the model does, or nearly so."""

    @property
    def judges(self) -> Mapping[str, Judge]:
        """Return the judges of its groups of labels by name, for texts of any origin."""

    def uncalibrated(self) -> WritingModel:
        """Return the same model with the probabilities that it gives."""

    def as_dict(self) -> dict[str, Any]:
        """Return what decides its prompts and judgments, apart from the model, as plain values."""

    def writer(
        self, question: str, history: Sequence[Turn], policy: Decoding
    ) -> SegmentWriter:
        """Return what writes the answer to a question after earlier turns."""
