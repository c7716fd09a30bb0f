"""What a decoder or a judge asks for and what it gets back: value objects on token ids; and `Steps`, which ask.

Steps are sans-IO: a generator that yields lists of requests, receives their results in order, and returns a value.
`selfrag.runtime` runs them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast

from retrieval.passage import Passage

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TokenIds: TypeAlias = tuple[int, ...]


class ConstraintForm(StrEnum):
    """How a constraint is written down; the names are those of vLLM's `structured_outputs`."""

    JSON = "json"  # a JSON schema
    REGEX = "regex"  # a pattern that the whole text matches
    CHOICE = "choice"  # one of a list of texts


@dataclass(frozen=True, slots=True)
class Constraint:
    """Text must follow a JSON schema, match a pattern, or be one of some texts. Make one with a class method."""

    form: ConstraintForm  # what `text` is
    text: str  # the schema as canonical JSON, the pattern, or the texts as a JSON list

    @classmethod
    def json(cls, schema: Mapping[str, Any]) -> Constraint:
        """Return the constraint to JSON that follows `schema`, with its properties in the order of the schema."""
        return cls(ConstraintForm.JSON, json.dumps(schema, ensure_ascii=False))

    @classmethod
    def regex(cls, pattern: str) -> Constraint:
        """Return the constraint to text that matches all of `pattern`, in Python's syntax without look-around."""
        return cls(ConstraintForm.REGEX, pattern)

    @classmethod
    def choice(cls, texts: Sequence[str]) -> Constraint:
        """Return the constraint to one of `texts`, at least one."""
        if not texts:
            raise ValueError("a choice among no texts")
        return cls(ConstraintForm.CHOICE, json.dumps(list(texts), ensure_ascii=False))

    @property
    def value(self) -> Any:
        """Return the schema as a mapping, the pattern, or the list of texts."""
        return self.text if self.form is ConstraintForm.REGEX else json.loads(self.text)

    def as_structured_outputs(self) -> dict[str, Any]:
        """Return the field `structured_outputs` of a vLLM request."""
        return {str(self.form): self.value}


class Finish(StrEnum):
    """Why a generation ended."""

    STOP = "stop"  # one of the request's stop ids; it is the last id of the result
    EOS = "eos"  # the model's end of sequence; it is the last id of the result
    BUDGET = "budget"  # max_tokens reached
    CONTEXT = "context"  # the model's context is full


@dataclass(frozen=True, slots=True)
class Generate:
    """Continue a prompt, greedily unless it has a seed.

    Attributes:
        prompt_ids: the whole prompt, BOS included.
        max_tokens: at most this many new tokens, >= 1.
        stop_ids: generation ends on any of these; the id stays in the result. EOS always ends it.
        allowed_ids: only these may be generated (masking; log-probabilities stay those of the raw model).
        watch_ids: ids whose exact raw log-probability is wanted at every generated position; at most 128, distinct.
        adapter: name of a LoRA adapter of the engine, or None for the base model.
        constraint: form of the whole new text; where it is complete, only a stop id or EOS may follow. All
            log-probabilities are then those of the allowed tokens only. Not together with `allowed_ids`.
        seed: draws free text at random, at temperature 1; None takes the most probable ids.
        inspect: how many of the last prompt ids `Generated.internals` is about; 0 for no internals.
    """

    prompt_ids: tuple[int, ...]
    max_tokens: int
    stop_ids: tuple[int, ...] = ()
    allowed_ids: tuple[int, ...] | None = None
    watch_ids: tuple[int, ...] = ()
    adapter: str | None = None
    constraint: Constraint | None = None
    seed: int | None = None
    inspect: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Internals:
    """What a model computes inside on the last tokens of a text."""

    entropies: NDArray[np.float32]  # [tokens], in nats, of what was predicted there
    # [tokens, ids of the text]: from each token to all of the text, mean over the heads of the last layer
    attention: NDArray[np.float32]
    state: NDArray[np.float32]  # [size]: hidden state of the last id, middle layer
    texts: tuple[str, ...] = ()  # of all tokens of the text, if it was given as text


@dataclass(frozen=True, slots=True)
class Generated:
    """Result of `Generate`.

    Attributes:
        token_ids: T new ids, the stop id or EOS included where one ended it.
        token_logprobs: T natural log-probabilities of the generated ids under the raw model (see `constraint`).
        watched: float32 array [T, len(watch_ids)] of natural log-probabilities under the raw model (see `constraint`).
        finish: why it ended.
        cached_tokens: prompt tokens that were not computed again.
        internals: of the last prompt ids, where the request inspects them.
    """

    token_ids: tuple[int, ...]
    token_logprobs: tuple[float, ...]
    watched: NDArray[np.float32] = field(repr=False)
    finish: Finish
    cached_tokens: int = 0
    internals: Internals | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Retrieve:
    """Search for passages. Gathered over all live decoders into one batched search."""

    query: str
    k: int


@dataclass(frozen=True, slots=True)
class Retrieved:
    """Result of `Retrieve`: up to k passages, best first."""

    passages: tuple[Passage, ...]


ExternalService: TypeAlias = Callable[[Sequence[Any]], Sequence[Any]]
"""Payloads in, one value, `ExternalResult` or `Failed` each out. Where it raises, each payload is served alone."""

PATIENCE = 600.0
"""Seconds that a service has for a batch, unless told otherwise: enough to load a model."""


@dataclass(frozen=True, slots=True)
class External:
    """Ask a service beside the engine, such as a judge on another model. Gathered over all live decoders."""

    service: ExternalService  # equal services share their batches; called by one thread at a time
    payload: Any  # what the service takes
    name: str = "the service"  # for messages
    # seconds for the batch; after them the request has failed
    timeout: float = PATIENCE


@dataclass(frozen=True, slots=True)
class Usage:
    """What an answer cost, or a part of it."""

    requests: int = 0  # to the engine, or to a model behind a service
    prompt_tokens: int = 0  # tokens of all prompts, cached ones included
    cached_tokens: int = 0  # of these, tokens that were not computed again
    generated_tokens: int = 0  # new tokens
    searches: int = 0  # queries to the retriever
    seconds: float = 0.0  # wall time from the first request to the answer, shared with the other questions of the batch

    def __add__(self, added: Usage) -> Usage:
        return Usage(  # field by field: the driver adds after each batch
            self.requests + added.requests,
            self.prompt_tokens + added.prompt_tokens,
            self.cached_tokens + added.cached_tokens,
            self.generated_tokens + added.generated_tokens,
            self.searches + added.searches,
            self.seconds + added.seconds,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, slots=True)
class ExternalResult:
    """Result of `External`: whatever the service gives. One that counts tokens makes it itself."""

    value: Any
    usage: Usage = Usage()


@dataclass(frozen=True, slots=True)
class Failed:
    """A request that could not be served; `reason` is one line. The decoder decides what that means."""

    reason: str


Request: TypeAlias = Generate | Retrieve | External
RequestResult: TypeAlias = Generated | Retrieved | ExternalResult | Failed


def failure_of(result: RequestResult) -> str:
    """Return why a result is not the one that was asked for."""
    return (
        result.reason if isinstance(result, Failed) else f"got {type(result).__name__}"
    )


def external_value(result: RequestResult) -> Any:
    """Return what a service gave for a payload, or `Failed`."""
    return (
        result.value
        if isinstance(result, ExternalResult)
        else Failed(failure_of(result))
    )


T = TypeVar("T")
AskedT = TypeVar("AskedT")
Steps: TypeAlias = Generator[list[Request], list[RequestResult], T]
"""A sans-IO computation that returns a `T`."""


def ask(requests: Sequence[Generate]) -> Steps[list[Generated | Failed]]:
    """Return the results of one batch of generations; asks for nothing if there are none."""
    if not requests:
        return []
    results = yield list(requests)
    generations: list[Generated | Failed] = []
    for result in results:
        if isinstance(result, Generated):
            generations.append(result)
        else:
            generations.append(Failed(failure_of(result)))
    return generations


@dataclass(frozen=True, slots=True)
class Returned(Generic[T]):
    """What a computation returned at its end."""

    value: T


def resume(
    steps: Generator[AskedT, list[RequestResult], T],
    results: list[RequestResult] | None,
) -> AskedT | Returned[T]:
    """Send results into a computation, None to start it; return what it asks for next, or its value.

    The one place where computations are run: the driver serves what many of them ask for, `gather` makes one of many.
    """
    try:
        return steps.send(cast(Any, results))
    except StopIteration as stop:
        return Returned(stop.value)


def ask_batch(batch: list[Request]) -> Steps[list[RequestResult]]:
    """Return the results of one batch of any requests."""
    return (yield batch)


def gather(
    steps: Sequence[Steps[T]],
    serve: Callable[[list[Request]], Steps[list[RequestResult]]] = ask_batch,
) -> Steps[list[T]]:
    """Return the values of computations that run side by side: the requests of all that wait are one batch.

    No second driver: it serves nothing, and is one more computation, which whoever runs it serves. `serve` may serve
    the requests of a round in other batches.
    """
    values: dict[int, T] = {}
    received: dict[int, list[RequestResult] | None] = dict.fromkeys(range(len(steps)))
    while received:
        batch: list[Request] = []
        counts: dict[int, int] = {}
        for number, results in received.items():
            item = resume(steps[number], results)
            if isinstance(item, Returned):
                values[number] = item.value
            else:
                batch += item
                counts[number] = len(item)
        arrived = iter((yield from serve(batch)) if counts else ())
        received = {}
        for number, count in counts.items():
            received[number] = list(islice(arrived, count))
    return [values[number] for number in range(len(steps))]
