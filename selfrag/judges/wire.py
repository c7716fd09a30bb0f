"""The wire: requests of codecs and their results, and the protocols around them.

    JudgeInput --Codec.encode--> Request --Executor--> Completion --Codec.decode--> Reflection

A *dialect* is the bytes of one adapter family; an *executor* runs requests on a model. `selfrag.judges.prompted` makes
a judge of both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, Protocol

from selfrag.common.errors import UserError
from selfrag.reflection.findings import Reflection
from selfrag.reflection.inputs import JudgeInput, Message, Site
from selfrag.reflection.judge import Cost
from selfrag.reflection.requests import Constraint, Failed, Internals, Steps, Usage
from selfrag.runtime import finish

DIALECT = "chat"
"""Name of the default dialect, which any chat model understands (`selfrag.judges.chat`)."""


@dataclass(frozen=True, slots=True)
class PromptPiece:
    """A run of prompt text."""

    text: str  # the characters
    # whether special tokens in it are meant; False for everything a caller, a passage or a model wrote
    control: bool = False


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A prompt that the client renders. Neighbouring pieces of one kind are tokenised as one text."""

    pieces: tuple[PromptPiece, ...]  # in order
    own: str = ""  # wording of the codec itself, see `ChatPrompt`

    @property
    def text(self) -> str:
        """Return the prompt as one string, for comparison with recorded traffic."""
        return "".join(piece.text for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation that the model's own chat template renders, with an opened assistant turn at the end."""

    messages: tuple[Message, ...]  # turns, tags and instruction included
    # `{"doc_id", "text"}` (and `title` if the dialect has it) for templates that take documents
    documents: tuple[Mapping[str, str], ...] = ()
    # further fields of the request body, as an OpenAI-compatible server expects them
    extra: Mapping[str, Any] = field(default_factory=dict)
    # wording of the codec itself. Words in brackets that it has, such as `<guardian>`, reach a server that tokenises
    # text as they are; others get a space, because they may be control tokens.
    own: str = ""


@dataclass(frozen=True, slots=True)
class Slot:
    """One label to be scored: the probability of each surface right after the prompt and `prefill`.

    Slots of a request are independent of each other and share its prompt. Surfaces are distinct and none is a prefix
    of another (end them with what follows the label), so that their exact sequence probabilities are disjoint events.
    """

    # one string a label, in label order, as the model would write it after `prefill`
    surfaces: tuple[str, ...]
    site: Site  # what is judged
    prefill: str = ""  # text of the reply before the label

    def __post_init__(self) -> None:
        if not self.surfaces or not all(self.surfaces):
            raise ValueError("a slot needs surfaces that are not empty")
        ordered = sorted(self.surfaces)
        if any(b.startswith(a) for a, b in pairwise(ordered)):
            raise ValueError(f"a surface is a prefix of another: {ordered[:8]}")


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One call of an intrinsic, ready for an executor."""

    state: JudgeInput  # what it was made from; decoding needs it for offsets
    prompt: TextPrompt | ChatPrompt  # rendered here, or by the model's chat template
    max_tokens: int = 0  # most new tokens of generated text; 0 if only slots are scored
    temperature: float | None = 0.0  # of generated text; None leaves it to the server
    constraint: Constraint | None = None  # what the text must match; None for free text
    slots: tuple[
        Slot, ...
    ] = ()  # labels to be scored, each a result in `Completion.scores`
    sites: tuple[
        Site, ...
    ] = ()  # places that the model calls by number, response sentences as a rule
    sources: tuple[Site, ...] = ()  # places that the model may cite by number
    top_logprobs: int = 0  # alternatives wanted at each generated token; 0 for none
    # name of the LoRA adapter, as engine or server know it; None for the base model
    adapter: str | None = None
    prefill: str = ""  # how the reply begins, written for the model; generated text goes on from there
    # whether the text may end with its first sentence; an executor that cannot stop there returns more
    sentence: bool = False
    # whether reasoning stays in the text, for a caller who has a text written piece by piece
    keeps_reasoning: bool = False
    seed: int | None = None  # of text that is drawn at random, at temperature 1


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One generated token."""

    token: str  # its text
    logprob: float  # natural log-probability
    top: tuple[
        tuple[str, float], ...
    ] = ()  # alternatives, itself as a rule among them, best first


@dataclass(frozen=True, slots=True)
class Completion:
    """What came back for a request."""

    # generated text without the prompt and, unless the request keeps it, without reasoning; empty if none was asked for
    text: str = ""
    # `stop` where the model ended its turn, `sentence` at the end of one, `length`, or the server's own word; None if
    # unknown
    finish: str | None = None
    # log-probabilities of the text's tokens; None if there are none
    tokens: tuple[TokenLogprob, ...] | None = None
    # for each slot the natural log-probability of each surface under the raw model, -inf allowed; None for a slot that
    # could not be scored
    scores: tuple[tuple[float, ...] | None, ...] = ()
    prompt_tokens: int = 0  # tokens of all prompts, cached ones included
    cached_tokens: int = 0  # of these, tokens that were not computed again
    generated_tokens: int = 0  # new tokens
    reasoning: str = ""  # what the model thought before it wrote, untrusted
    # why the text, or a part of it, did not come, in one line; of a refusal it begins with `AnswerReason.REFUSED`
    withheld: str = ""

    @property
    def usage(self) -> Usage:
        """Return what one request has cost."""
        return Usage(1, self.prompt_tokens, self.cached_tokens, self.generated_tokens)


def logsumexp(values: Sequence[float]) -> float:
    """Return the logarithm of the sum of the exponentials; -inf for none."""
    top = max(values, default=-math.inf)
    if top == -math.inf:
        return top
    return top + math.log(math.fsum(math.exp(value - top) for value in values))


@dataclass(frozen=True, slots=True)
class Target:
    """What a model is taught to write for a request: after the prompt and `prefill`, `text`, then its end of turn."""

    prefill: str  # not trained on; that of the slot, or empty
    text: str  # trained on
    weight: float = 1.0  # of this target in the loss


@dataclass(frozen=True, slots=True)
class Gold:
    """What is known to be right, from which a codec makes training targets."""

    labels: tuple[
        str | None, ...
    ] = ()  # names, one for each of `ModelRequest.sites`, or a single one; None where unknown
    # for each site the indices of `ModelRequest.sources` it rests on, empty for no citation; None where unknown
    sources: tuple[tuple[int, ...] | None, ...] = ()
    text: str | None = None  # a rewrite or a clarification


class Codec(Protocol):
    """One intrinsic in one dialect. Pure: equal inputs give equal requests. Subclass it to inherit the defaults.

    Example:
        >>> class Shout(Codec):
        ...     intrinsic, dialect = "shout", "plain"
        ...     def encode(self, state):
        ...         return ModelRequest(state, TextPrompt((PromptPiece(state.query),)), max_tokens=8)
        ...     def decode(self, request, completion):
        ...         return Reflection(request.state, text=completion.text.upper())
        >>> request = Shout().encode(JudgeInput((Message("user", "Who wrote Faust?"),)))
        >>> Shout().decode(request, Completion("Goethe")).text
        'GOETHE'
    """

    intrinsic: str  # name of the intrinsic, such as `answerability`
    dialect: str  # name of the dialect, such as `granite-3.2`
    cost: Cost = Cost.GENERATED  # of a request to the base model
    # how a judge is called whose adapter is inside the checkpoint
    embedded: str | None = None

    def encode(self, state: JudgeInput) -> ModelRequest:
        """Return the request for a state; odd roles and missing passages are accepted where they have any form."""

    def decode(self, request: ModelRequest, completion: Completion) -> Reflection:
        """Return what the model meant. What cannot be read is undefined, with why, and never an exception."""


class Teachable(Codec, Protocol):
    """A codec that also writes what a perfect model would answer; training uses nothing else.

    Example:
        >>> from selfrag.intrinsics import Answerability
        >>> codec: Teachable = Answerability.chat
        >>> request = codec.encode(Answerability.state("Who wrote Faust?", ["Goethe wrote Faust."]))
        >>> [target.text for target in codec.teach(request, Gold(("unanswerable",)))]
        ['unanswerable']
    """

    def teach(self, request: ModelRequest, gold: Gold) -> tuple[Target, ...]:
        """Return training targets of a request, from which decoding gets the gold; refuse gold that does not fit."""


class Executor(Protocol):
    """Runs requests on a model: scores slots exactly, generates constrained text. Requests share the batch.

    Example:
        >>> class Parrot(Executor):
        ...     def steps(self, requests):
        ...         return [Completion(request.prefill) for request in requests]
        ...         yield []  # a generator, as all steps
        >>> request = ModelRequest(JudgeInput(()), TextPrompt(()), prefill="yes")
        >>> Parrot().run([request])[0].text
        'yes'
    """

    engine: Any = None  # the engine of this library that it runs on; None where it sends `External` requests
    activated: Collection[str] = ()  # the adapters of it that are activated LoRA
    # whether a reply can be begun for the model; where not, `Request.prefill` is a wish, and whole replies are written
    continues: bool = True

    def steps(
        self, requests: Sequence[ModelRequest]
    ) -> Steps[list[Completion | Failed]]:
        """Return one result a request, in order; a request that failed alone comes back as `Failed`.

        An `EngineError` says that the model is gone, a `UserError` that the executor cannot do what is asked of it.
        """
        ...

    def option_steps(
        self, requests: Sequence[ModelRequest], options: Sequence[str]
    ) -> Steps[list[list[float] | Failed]]:
        """Return for each request the natural log-probability of each option as the reply.

        Raises:
            UserError: the executor has no probabilities of texts that it did not write.
        """
        raise UserError(
            "this model gives no probabilities of texts that it did not write; ask it without options"
        )

    def inspect_steps(
        self, requests: Sequence[ModelRequest]
    ) -> Steps[list[Internals | Failed]]:
        """Return for each request what the model does inside on its `prefill` as a reply, and the state at its end.

        Raises:
            UserError: the model is one that nobody looks into.
        """
        raise UserError(
            "this model gives no attention or hidden states; the transformers engine does (--engine transformers)"
        )

    def run(self, requests: Sequence[ModelRequest]) -> list[Completion | Failed]:
        """Return the same, run to its end."""
        return finish(self.steps(requests), self.engine)

    def close(self) -> None:
        """Free the model, if it holds one."""
        return


class LateExecutor(Executor):
    """An executor whose model is loaded by `load` with the first request."""

    def __init__(self, load: Callable[[], Executor]) -> None:
        self._load = load

    @cached_property
    def loaded(self) -> Executor:
        """Return the loaded executor."""
        return self._load()

    @cached_property
    def engine(self) -> Any:
        """Return its engine."""
        return self.loaded.engine

    def steps(
        self, requests: Sequence[ModelRequest]
    ) -> Steps[list[Completion | Failed]]:
        """Return one result a request."""
        return (yield from self.loaded.steps(requests))
