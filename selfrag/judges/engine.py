"""`EngineExecutor`: requests of codecs on any engine of this library, exact on token ids. Sans-IO.

All slots and all texts of all requests go out as one batch, so adapters mix and what prompts share is computed once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from selfrag.common.errors import EngineError, UserError
from selfrag.decoding.option_scoring import (
    MOST_WATCHED,
    option_logprobs,
    option_requests,
    score_options,
)
from selfrag.engines.base import Engine, EngineLimits, common_length
from selfrag.judges.reasoning import without_reasoning
from selfrag.judges.rendering import Renderer
from selfrag.judges.wire import (
    Completion,
    Executor,
    ModelRequest,
    Slot,
    TokenLogprob,
    logsumexp,
)
from selfrag.reflection.requests import (
    Constraint,
    ConstraintForm,
    Failed,
    Finish,
    Generate,
    Generated,
    Internals,
    RequestResult,
    Steps,
    TokenIds,
    ask,
)
from selfrag.runtime.sessions import close
from selfrag.tokenization import TextCodec

LONGEST = 4
"""Bytes of a character, so tokens that may go by without text."""

WINDOW = 8
"""Earlier pieces of text with which a token is decoded, because its text depends on what stands before it."""

ENDED = {
    Finish.STOP: "stop",
    Finish.EOS: "stop",
    Finish.BUDGET: "length",
    Finish.CONTEXT: "length",
}
"""The words of OpenAI-compatible servers."""


def pieces(codec: TextCodec, ids: Sequence[int]) -> Iterator[tuple[int, str, str]]:
    """Yield for each token where its decoding begins, the text from there to the token, and its own text.

    A token that ends in the middle of a character has no text of its own; the token that completes it has all of it.
    """
    # positions before which all text is complete; a window begins at one, never inside a character
    ends = [0]
    for position in range(len(ids)):
        begin = ends[max(0, len(ends) - WINDOW)]
        before = codec.decode(ids[begin : ends[-1]])
        text = codec.decode(ids[begin : position + 1])
        if text.endswith("\ufffd") and position - ends[-1] < LONGEST - 1:
            yield begin, before, ""
            continue
        yield begin, before, text.removeprefix(before)
        ends.append(position + 1)


def tokens(
    codec: TextCodec, ids: Sequence[int], generated: Generated, watch: Sequence[int]
) -> tuple[TokenLogprob, ...]:
    """Return one entry a token of the text; `ids` are the generated ones up to where the text ends."""
    entries = []
    for position, (begin, before, text) in enumerate(pieces(codec, ids)):
        token_id = ids[position]
        logprob = generated.token_logprobs[position]
        top: dict[str, float] = {}
        for alternative, value in zip(
            watch, generated.watched[position].tolist(), strict=True
        ):
            if value > -math.inf and alternative != token_id:
                written = codec.decode([*ids[begin:position], alternative])
                top[written.removeprefix(before)] = value
        top[text] = logprob
        ranked = sorted(top.items(), key=lambda pair: -pair[1]) if watch else ()
        entries.append(TokenLogprob(text, logprob, tuple(ranked)))
    return tuple(entries)


def label_ids(
    codec: TextCodec, constraint: Constraint | None, most: int
) -> tuple[int, ...]:
    """Return ids that can be part of a label that a constraint enumerates, those that can begin one first.

    At most `most` ids are returned.
    """
    labels: list[str] = []
    if constraint is not None and constraint.form is ConstraintForm.CHOICE:
        labels = constraint.value
    elif constraint is not None and constraint.form is ConstraintForm.JSON:
        labels = [
            json.dumps(value, ensure_ascii=False) for value in _labels(constraint.value)
        ]
    firsts: list[int] = []
    others: list[int] = []
    for label in dict.fromkeys(labels):
        for text in (label, f" {label}", label.removeprefix('"')):
            # A label need not be written in its usual tokens: `y` and `es` are allowed where `yes` is.
            for end in range(1, len(text) + 1):
                beginning = codec.encode(text[:end])
                if len(beginning) == 1:
                    firsts += beginning
            others += codec.encode(text)
    return tuple(dict.fromkeys((*firsts, *others)))[:most]


def _labels(schema: Any) -> Iterator[Any]:
    """Yield the values of all enumerations of a JSON schema, in order."""
    if isinstance(schema, Mapping):
        if isinstance(schema.get("enum"), Sequence):
            yield from schema["enum"]
        if schema.get("type") == "boolean":
            yield from (True, False)
        for value in schema.values():
            yield from _labels(value)
    elif isinstance(schema, Sequence) and not isinstance(schema, str):
        for value in schema:
            yield from _labels(value)


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """How one slot is scored."""

    prefix: TokenIds  # everything before the surfaces
    # token sequences to the number of the surface that each writes; none is the beginning of another
    paths: dict[TokenIds, int]
    # one a node of the trie; more where more ids part than an engine can watch
    requests: tuple[Generate, ...]

    def scores(self, results: Sequence[RequestResult]) -> tuple[float, ...] | None:
        """Return the natural log-probability of each surface; None if a request failed or a value is NaN."""
        served = [result for result in results if isinstance(result, Generated)]
        if len(served) < len(self.requests):
            return None
        logprobs = option_logprobs(self.requests, served, self.prefix, list(self.paths))
        if any(map(math.isnan, logprobs)):
            return None
        by_surface: list[list[float]] = [
            [] for _ in range(max(self.paths.values()) + 1)
        ]
        for value, surface in zip(logprobs, self.paths.values(), strict=True):
            by_surface[surface].append(value)
        return tuple(map(logsumexp, by_surface))


def plan(
    renderer: Renderer,
    slot: Slot,
    prompt: TokenIds,
    *,
    adapter: str | None,
    most_watched: int,
) -> SlotPlan:
    """Return the requests that score a slot after a prompt."""
    shared, endings = renderer.slot(slot)
    prefill = tuple(renderer.text.encode(slot.prefill))
    border = common_length(shared, prefill)
    paths = {
        (*shared[border:], *ending): surface for surface, ending in enumerate(endings)
    }
    if border < len(prefill):
        paths |= _seams(renderer, slot, prefill, border, paths)
    prefix = (*prompt, *prefill[:border])
    requests = option_requests(
        prefix, list(paths), adapter=adapter, most_watched=most_watched
    )
    return SlotPlan(prefix, paths, tuple(requests))


def _seams(
    renderer: Renderer,
    slot: Slot,
    prefill: TokenIds,
    border: int,
    paths: dict[TokenIds, int],
) -> dict[TokenIds, int]:
    """Return further paths that keep the seam: the prefill's own tokens, then the surface by itself."""
    codec = renderer.text
    first_path: dict[int, TokenIds] = {}  # of each surface
    for path, surface in paths.items():
        first_path.setdefault(surface, path)
    seams: dict[TokenIds, int] = {}
    for surface, text in enumerate(slot.surfaces):
        ids = (*prefill, *codec.encode(text))
        # A tokenizer may put a space before a text that stands alone; such a path would write something else.
        same_text = codec.decode(ids) == codec.decode(
            (*prefill[:border], *first_path[surface])
        )
        if same_text and ids[border:] not in paths:
            seams[ids[border:]] = surface
    return seams


@dataclass(frozen=True, slots=True)
class _Plan:
    """The engine requests of one request: its text, if any, then its slots."""

    request: ModelRequest
    text: Generate | None
    slots: tuple[SlotPlan, ...]

    @property
    def requests(self) -> list[Generate]:
        requests = [] if self.text is None else [self.text]
        for slot in self.slots:
            requests += slot.requests
        return requests


_LEAST_LIMITS = EngineLimits(max_model_len=0, vocab_size=0, max_watch=MOST_WATCHED)
"""What every engine can watch; length and vocabulary are checked by the engine itself."""


class EngineExecutor(Executor):
    """An `Executor` over an engine, which can run inside a decoder."""

    def __init__(self, engine: Engine | None, tokenizer: Any) -> None:
        """Join an engine, with the adapters that requests will name, and its model's tokenizer or `Renderer`.

        Without an engine, the steps are for a driver of whichever engine has the model, and name no adapter.
        """
        self.engine = engine
        self.limits = _LEAST_LIMITS if engine is None else engine.limits
        self.renderer = (
            tokenizer if isinstance(tokenizer, Renderer) else Renderer.of(tokenizer)
        )
        self.activated = self.limits.activated

    def steps(
        self, requests: Sequence[ModelRequest]
    ) -> Steps[list[Completion | Failed]]:
        """Return the results of one batch. Decoding is greedy; refuses sampling and adapters that are not loaded."""
        plans = [self._plan(request) for request in requests]
        results = iter(
            (yield [generate for planned in plans for generate in planned.requests])
        )
        return [
            self._completion(planned, list(islice(results, len(planned.requests))))
            for planned in plans
        ]

    def option_steps(
        self, requests: Sequence[ModelRequest], options: Sequence[str]
    ) -> Steps[list[list[float] | Failed]]:
        """Return for each request the exact log-probability of each option as the reply.

        Where one option begins another, that of the shorter one includes the end of the turn.
        """
        encoded = [tuple(self.renderer.text.encode(option)) for option in options]
        enders = (self.renderer.end_id,)
        prefixes = []
        for request in requests:
            prompt = self.renderer.prompt(request.prompt)
            prefixes.append((*prompt, *self.renderer.text.encode(request.prefill)))
        return (
            yield from score_options(prefixes, encoded, enders, self.limits.max_watch)
        )

    def inspect_steps(
        self, requests: Sequence[ModelRequest]
    ) -> Steps[list[Internals | Failed]]:
        """Return for each request what the model does inside on its `prefill` and at the end of the turn after it."""
        codec, end_id = self.renderer.text, self.renderer.end_id
        inspections = []
        for request in requests:
            reply = codec.encode(request.prefill)
            ids = (*self.renderer.prompt(request.prompt), *reply, end_id)
            inspections.append(
                Generate(ids, 1, adapter=request.adapter, inspect=len(reply) + 1)
            )
        internals: list[Internals | Failed] = []
        results = yield from ask(inspections)
        for inspection, result in zip(inspections, results, strict=True):
            if isinstance(result, Failed):
                internals.append(result)
                continue
            item = result.internals
            if item is None:
                internals.append(Failed("this model shows no attention"))
                continue
            texts = [text for *_, text in pieces(codec, inspection.prompt_ids[:-1])]
            # the end of the turn has a state alone
            internals.append(
                Internals(
                    item.entropies[:-1],
                    item.attention[:-1, :-1],
                    item.state,
                    tuple(texts),
                )
            )
        return internals

    def close(self) -> None:
        """Free the engine."""
        if self.engine is not None:
            close(self.engine)

    def _plan(self, request: ModelRequest) -> _Plan:
        limits = self.limits
        if request.adapter is not None and request.adapter not in limits.adapters:
            raise EngineError(
                f"adapter {request.adapter!r} is not loaded; loaded: {', '.join(sorted(limits.adapters)) or 'none'}"
            )
        prompt = self.renderer.prompt(request.prompt)
        text = None
        if request.max_tokens > 0:
            temperature = request.temperature
            if temperature is not None and temperature != (request.seed is not None):
                raise UserError(
                    f"temperature={temperature:g}: engines decode greedily; ask for 0, or for 1 with a seed"
                )
            watch: TokenIds = ()
            if request.top_logprobs:
                watch = label_ids(
                    self.renderer.text, request.constraint, limits.max_watch
                )
            stops = self.renderer.sentence_stops if request.sentence else ()
            text = Generate(
                (*prompt, *self.renderer.text.encode(request.prefill)),
                request.max_tokens,
                stop_ids=(self.renderer.end_id, *stops),
                watch_ids=watch,
                adapter=request.adapter,
                constraint=request.constraint,
                seed=request.seed,
            )
        score = partial(
            plan,
            self.renderer,
            prompt=prompt,
            adapter=request.adapter,
            most_watched=limits.max_watch,
        )
        return _Plan(request, text, tuple(map(score, request.slots)))

    def _completion(
        self, planned: _Plan, results: Sequence[RequestResult]
    ) -> Completion | Failed:
        written = None if planned.text is None else results[0]
        failures = [result for result in results if isinstance(result, Failed)]
        if failures and (len(failures) == len(results) or isinstance(written, Failed)):
            return failures[0]
        served = [result for result in results if isinstance(result, Generated)]
        remaining = iter(results if planned.text is None else results[1:])
        scores = [
            slot.scores(list(islice(remaining, len(slot.requests))))
            for slot in planned.slots
        ]
        prompt_tokens = sum(len(request.prompt_ids) for request in planned.requests)
        cached_tokens = sum(result.cached_tokens for result in served)
        generated_tokens = sum(len(result.token_ids) for result in served)
        completion = Completion(
            scores=tuple(scores),
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            generated_tokens=generated_tokens,
        )
        if planned.text is None or not isinstance(written, Generated):
            return completion
        codec = self.renderer.text
        finish = ENDED[written.finish]
        ids = written.token_ids
        if written.finish is Finish.STOP and ids[-1] != self.renderer.end_id:
            finish = "sentence"
        if finish == "stop":
            ids = ids[:-1]
        logprobs = tokens(codec, ids, written, planned.text.watch_ids)
        completion = replace(
            completion, text=codec.decode(ids), finish=finish, tokens=logprobs
        )
        if planned.request.keeps_reasoning:
            return completion
        return without_reasoning(completion)
