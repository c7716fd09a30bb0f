"""The contract of the intrinsics: the values above the wire and four protocols around them. Runs nothing.

    State --Codec.encode--> Request --Executor--> Completion --Codec.decode--> Reflection --Capability.result--> typed

An *intrinsic* is typed input and a typed judgment; a *dialect* is the bytes of one adapter family; an *executor* runs
requests on a model. A `Reflector` hides all three behind states and reflections. Tokens, adapters, prompted judges
and whole intrinsics look alike to the decoder ("A Library of LLM Intrinsics for RAG", arXiv 2504.11704).
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from itertools import pairwise
from typing import Any, Protocol, TypeAlias, TypeVar

from selfrag.common.untrusted import printable
from selfrag.decoding.requests import Constraint as Constraint
from selfrag.decoding.requests import Failed as Failed
from selfrag.decoding.requests import Generate, Generated
from selfrag.intrinsics.state import Message as Message
from selfrag.intrinsics.state import Scope as Scope
from selfrag.intrinsics.state import Site as Site
from selfrag.intrinsics.state import State as State
from selfrag.reflection.judgment import Judgment
from selfrag.reflection.labels import Role

DIALECT = "chat"
"""Name of the default dialect, which any chat model understands (`selfrag.intrinsics.chat`)."""


class Code(StrEnum):
    """Kinds of trouble with what a model wrote."""

    INVALID = "invalid"  # not the form that was asked for, nothing recovered
    RECOVERED = "recovered"  # not quite that form; what could be read was read
    TRUNCATED = "truncated"  # the output ends in the middle
    OUT_OF_RANGE = "out-of-range"  # a number that names no site
    DUPLICATE = "duplicate"  # a second record for the same site
    UNKNOWN_LABEL = "unknown-label"
    MISSING = "missing"  # a site that the model left out
    NO_LOGPROBS = "no-logprobs"  # a label without probabilities: taken as certain
    LOW_COVERAGE = "low-coverage"  # under half of the probability is on the labels
    UNMATCHED = "unmatched"  # log-probabilities do not fit the text
    EMPTY = "empty"  # an empty passage or an empty output
    FAILED = "failed"  # the request was not served


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One thing to know about an output."""

    code: Code  # what kind
    message: str  # one line, safe to print
    site: int | None = None  # number of the site it concerns, in `Request.sites`; None for the whole output


@dataclass(frozen=True, slots=True)
class Citation:
    """A piece of a passage (or of an earlier turn) that a response sentence rests on."""

    site: Site  # where; adjacent sentences of one passage are merged
    probability: float | None = None  # of this citation; None where the model gave no probabilities


@dataclass(frozen=True, slots=True)
class Finding:
    """One judgment at one site."""

    site: Site  # what was judged, in the caller's text
    judgment: Judgment | None  # None where undefined: left out, unreadable or without probability. Never a number then.
    citations: tuple[Citation, ...] = ()  # what it rests on; empty is "no citation" if `judgment` says so
    explanation: str | None = None  # the model's own words, untrusted


@dataclass(frozen=True, slots=True)
class Reflection:
    """What one request found."""

    state: State  # what was looked at
    findings: tuple[Finding, ...] = ()  # in the order of the sites, one a site for intrinsics that judge sentences
    # what was written, for intrinsics that write (rewrite, clarification, correction); None if undefined
    text: str | None = None
    raw: str = ""  # the model's output as it came
    diagnostics: tuple[Diagnostic, ...] = ()  # what was wrong with it

    @classmethod
    def failed(cls, state: State, reason: str) -> Reflection:
        """What is found where a request was not served."""
        return cls(state, diagnostics=(Diagnostic(Code.FAILED, printable(reason)),))

    @property
    def judgments(self) -> tuple[Judgment, ...]:
        """The judgments that are defined."""
        return tuple(finding.judgment for finding in self.findings if finding.judgment is not None)


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of prompt text."""

    text: str  # the characters
    # whether special tokens in it are meant; False for everything a caller, a passage or a model wrote
    control: bool = False


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A prompt that the client renders. Neighbouring pieces of one kind are tokenised as one text."""

    pieces: tuple[Piece, ...]  # in order
    own: str = ""  # wording of the codec itself, see `ChatPrompt`

    @property
    def text(self) -> str:
        """The prompt as one string, for comparison with recorded traffic."""
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

    surfaces: tuple[str, ...]  # one string a label, in label order, as the model would write it after `prefill`
    site: Site  # what is judged
    prefill: str = ""  # text of the reply before the label

    def __post_init__(self) -> None:
        if not self.surfaces or not all(self.surfaces):
            raise ValueError("a slot needs surfaces that are not empty")
        ordered = sorted(self.surfaces)
        if any(b.startswith(a) for a, b in pairwise(ordered)):
            raise ValueError(f"a surface is a prefix of another: {ordered[:8]}")


@dataclass(frozen=True, slots=True)
class Request:
    """One call of an intrinsic, ready for an executor."""

    state: State  # what it was made from; decoding needs it for offsets
    prompt: TextPrompt | ChatPrompt  # rendered here, or by the model's chat template
    max_tokens: int = 0  # most new tokens of generated text; 0 if only slots are scored
    temperature: float | None = 0.0  # of generated text; None leaves it to the server
    constraint: Constraint | None = None  # what the text must match; None for free text
    slots: tuple[Slot, ...] = ()  # labels to be scored, each a result in `Completion.scores`
    sites: tuple[Site, ...] = ()  # places that the model calls by number, response sentences as a rule
    sources: tuple[Site, ...] = ()  # places that the model may cite by number
    top_logprobs: int = 0  # alternatives wanted at each generated token; 0 for none
    adapter: str | None = None  # name of the LoRA adapter, as engine or server know it; None for the base model


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One generated token."""

    token: str  # its text
    logprob: float  # natural log-probability
    top: tuple[tuple[str, float], ...] = ()  # alternatives, itself as a rule among them, best first


@dataclass(frozen=True, slots=True)
class Completion:
    """What came back for a request."""

    text: str = ""  # generated text without the prompt; empty if none was asked for
    finish: str | None = None  # `stop`, `length`, or the server's own word; None if unknown
    tokens: tuple[TokenLogprob, ...] | None = None  # log-probabilities of the text's tokens; None if there are none
    # for each slot the natural log-probability of each surface under the raw model, -inf allowed; None for a slot that
    # could not be scored
    scores: tuple[tuple[float, ...] | None, ...] = ()
    prompt_tokens: int = 0  # tokens of all prompts, cached ones included
    cached_tokens: int = 0  # of these, tokens that were not computed again
    generated_tokens: int = 0  # new tokens


def logsumexp(values: Sequence[float]) -> float:
    """Logarithm of the sum of the exponentials; -inf for none."""
    top = max(values, default=-math.inf)
    return top if top == -math.inf else top + math.log(math.fsum(math.exp(value - top) for value in values))


@dataclass(frozen=True, slots=True)
class Target:
    """What a model is taught to write for a request: after the prompt and `prefill`, `text`, then its end of turn."""

    prefill: str  # not trained on; that of the slot, or empty
    text: str  # trained on
    weight: float = 1.0  # of this target in the loss


@dataclass(frozen=True, slots=True)
class Gold:
    """What is known to be right, from which a codec makes training targets."""

    labels: tuple[str | None, ...] = ()  # names, one for each of `Request.sites`, or a single one; None where unknown
    # for each site the indices of `Request.sources` it rests on, empty for no citation; None where unknown
    sources: tuple[tuple[int, ...] | None, ...] = ()
    text: str | None = None  # a rewrite or a clarification


T = TypeVar("T")

Steps: TypeAlias = Generator[list[Generate], list[Generated | Failed], T]
"""A sans-IO computation: yields batches of engine requests, receives their results in order, returns a `T`."""


class Codec(Protocol):
    """One intrinsic in one dialect. Pure: equal states give equal requests."""

    @property
    def intrinsic(self) -> str:
        """Name of the intrinsic, such as `answerability`."""

    @property
    def dialect(self) -> str:
        """Name of the dialect, such as `granite-3.2`."""

    def encode(self, state: State) -> Request:
        """The request for a state; odd roles and missing passages are accepted where there is any form for them."""

    def decode(self, request: Request, completion: Completion) -> Reflection:
        """What the model meant. Never raises for what a model wrote: what cannot be read is undefined, with why."""


class Teachable(Codec, Protocol):
    """A codec that also writes what a perfect model would answer; training uses nothing else."""

    def teach(self, request: Request, gold: Gold) -> tuple[Target, ...]:
        """Training targets of a request; decoding them gives the gold back, and gold that does not fit is refused."""


class Executor(Protocol):
    """Runs requests on a model: scores slots exactly, generates constrained text. Requests share the batch.

    One over an engine of this library also has `steps`, the same without IO, which can run inside a decoder.
    """

    def run(self, requests: Sequence[Request]) -> list[Completion | Failed]:
        """One result a request, in order; a request that failed alone comes back as `Failed`.

        An `EngineError` says that the model is gone, a `UserError` that the executor cannot do what is asked of it.
        """


class Cost(IntEnum):
    """What a reflector costs; cheap ones judge first, expensive ones only survivors."""

    INLINE = 0  # tokens of the generation itself
    ONE_TOKEN = 1  # one token a label on a shared prefix
    PREFILL = 2  # a new prefill, such as a plain LoRA adapter
    GENERATED = 3  # text is written


class Execution(Protocol):
    """A way to judge the states of one intrinsic that needs no codec: reflection tokens, or words in common."""

    @property
    def name(self) -> str:
        """What callers ask for it by, such as `tokens`."""

    @property
    def cost(self) -> Cost:
        """Its tier."""

    def steps(self, states: Sequence[State]) -> Steps[list[Reflection]]:
        """One reflection a state, in order. Yields engine requests, if it needs any."""


class Reflector(Protocol):
    """Turns states into reflections; anything that judges or rewrites."""

    @property
    def name(self) -> str:
        """Its name in weights, traces and reports."""

    @property
    def role(self) -> Role:
        """The role of its judgments."""

    @property
    def cost(self) -> int:
        """Its cost, as in `selfrag.decoding.reflectors.Critic.cost`."""

    def reflect(self, states: Sequence[State]) -> Steps[list[Reflection]]:
        """One reflection a state, in order. A reflector on a remote model does its own IO and yields nothing."""
