"""What a codec asks of a model and what comes back: prompt, constraint, label slots; text, log-probabilities, scores.

Pure values. Knows no dialect and no engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from selfrag.intrinsics.state import Message, Site, State
from selfrag.reflection.labels import LabelSet


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of prompt text.

    Attributes:
        text: the characters.
        control: whether special tokens in it are meant; False for everything a caller, a passage or a model wrote.
    """

    text: str
    control: bool = False


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A prompt that the client renders. Neighbouring pieces of one kind are tokenised as one text.

    Attributes:
        pieces: in order.
        own: wording of the codec itself, see `ChatPrompt`.
    """

    pieces: tuple[Piece, ...]
    own: str = ""

    @property
    def text(self) -> str:
        """The prompt as one string, for comparison with recorded traffic."""
        return "".join(piece.text for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation that the model's own chat template renders, with an opened assistant turn at the end.

    Attributes:
        messages: turns, tags and instruction included.
        documents: `{"doc_id", "text"}` (and `title` if the dialect has it) for templates that take documents.
        extra: further fields of the request body, as an OpenAI-compatible server expects them.
        own: wording of the codec itself. Words in brackets that it has, such as `<guardian>`, reach a server that
            tokenises text as they are; others get a space, because they may be control tokens.
    """

    messages: tuple[Message, ...]
    documents: tuple[Mapping[str, str], ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    own: str = ""


@dataclass(frozen=True, slots=True)
class Constraint:
    """What generated text must match; exactly one is given."""

    json_schema: Mapping[str, Any] | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if sum(given is not None for given in (self.json_schema, self.regex, self.choice)) != 1:
            raise ValueError("a constraint is one of json_schema, regex and choice")


@dataclass(frozen=True, slots=True)
class Slot:
    """One label to be scored: the probability of each surface right after the prompt and `prefill`.

    Slots of a request are independent of each other and share its prompt. Surfaces are distinct and none is a prefix
    of another (end them with what follows the label), so that their exact sequence probabilities are disjoint events.

    Attributes:
        labels: what is judged; None where the surfaces are places, such as numbers of sentences.
        surfaces: one string a label, in label order, as the model would write it after `prefill`.
        prefill: text of the reply before the label.
        site: what is judged.
    """

    surfaces: tuple[str, ...]
    site: Site
    prefill: str = ""
    labels: LabelSet | None = None

    def __post_init__(self) -> None:
        if not self.surfaces or not all(self.surfaces):
            raise ValueError("a slot needs surfaces that are not empty")
        ordered = sorted(self.surfaces)
        if any(b.startswith(a) for a, b in pairwise(ordered)):
            raise ValueError(f"a surface is a prefix of another: {ordered[:8]}")
        if self.labels is not None and len(self.labels) != len(self.surfaces):
            raise ValueError(f"{len(self.surfaces)} surfaces for {len(self.labels)} labels")


@dataclass(frozen=True, slots=True)
class Request:
    """One call of an intrinsic, ready for an executor.

    Attributes:
        state: what it was made from; decoding needs it for offsets.
        prompt: rendered here, or by the model's chat template.
        max_tokens: most new tokens of generated text; 0 if only slots are scored.
        temperature: of generated text; None leaves it to the server.
        constraint: what the text must match; None for free text.
        slots: labels to be scored, each a result in `Completion.scores`.
        sites: places that the model calls by number, response sentences as a rule.
        sources: places that the model may cite by number.
        top_logprobs: alternatives wanted at each generated token; 0 for none.
        adapter: name of the LoRA adapter, as engine or server know it; None for the base model.
    """

    state: State
    prompt: TextPrompt | ChatPrompt
    max_tokens: int = 0
    temperature: float | None = 0.0
    constraint: Constraint | None = None
    slots: tuple[Slot, ...] = ()
    sites: tuple[Site, ...] = ()
    sources: tuple[Site, ...] = ()
    top_logprobs: int = 0
    adapter: str | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One generated token.

    Attributes:
        token: its text.
        logprob: natural log-probability.
        top: alternatives, itself as a rule among them, best first.
    """

    token: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Completion:
    """What came back for a request.

    Attributes:
        text: generated text without the prompt; empty if none was asked for.
        finish: `stop`, `length`, or the server's own word; None if unknown.
        tokens: log-probabilities of the text's tokens; None if there are none.
        scores: for each slot the natural log-probability of each surface under the raw model, -inf allowed;
            None for a slot that could not be scored.
        prompt_tokens: tokens of all prompts, cached ones included.
        cached_tokens: of these, tokens that were not computed anew.
        generated_tokens: new tokens.
    """

    text: str = ""
    finish: str | None = None
    tokens: tuple[TokenLogprob, ...] | None = None
    scores: tuple[tuple[float, ...] | None, ...] = ()
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Target:
    """What a model is taught to write for a request: after the prompt and `prefill`, `text`, then its end of turn.

    Attributes:
        prefill: not trained on; that of the slot, or empty.
        text: trained on.
        weight: of this target in the loss.
    """

    prefill: str
    text: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Gold:
    """What is known to be right, from which a codec makes training targets.

    Attributes:
        labels: names, one for each of `Request.sites`, or a single one; None where unknown.
        sources: for each site the indices of `Request.sources` it rests on, empty for no citation; None where unknown.
        text: a rewrite or a clarification.
    """

    labels: tuple[str | None, ...] = ()
    sources: tuple[tuple[int, ...] | None, ...] = ()
    text: str | None = None
