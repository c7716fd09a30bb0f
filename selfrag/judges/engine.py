"""`EngineExecutor`: requests of codecs on any engine of this library, exact on token ids. Sans-IO.

All slots and all texts of all requests go out as one batch, so adapters mix and what prompts share is computed once.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from selfrag.common.errors import EngineError, UserError
from selfrag.decoding.option_scoring import option_logprobs, option_requests
from selfrag.engines.base import Engine, common_length
from selfrag.judges.rendering import Renderer
from selfrag.judges.wire import Completion, Executor, ModelRequest, Slot, TokenLogprob, logsumexp
from selfrag.reflection.requests import (
    Constraint,
    ConstraintForm,
    Failed,
    Finish,
    Generate,
    Generated,
    RequestResult,
    Steps,
    failure_of,
)
from selfrag.runtime.sessions import close
from selfrag.tokenization import TextCodec

LONGEST = 4
"""Bytes of a character, so tokens that may go by without text."""

WINDOW = 8
"""Earlier pieces of text with which a token is decoded, because its text depends on what stands before it."""

ENDED = {Finish.STOP: "stop", Finish.EOS: "stop", Finish.BUDGET: "length", Finish.CONTEXT: "length"}
"""The words of OpenAI-compatible servers."""


def tokens(
    codec: TextCodec, ids: Sequence[int], generated: Generated, watch: Sequence[int]
) -> tuple[TokenLogprob, ...]:
    """One entry a token of the text; `ids` are the generated ones up to where the text ends.

    A token that ends in the middle of a character has no text of its own; the token that completes it has the whole.
    """
    found = []
    done = [0]  # places at which all text before was out; a window begins at one, never inside a character
    for at, token_id in enumerate(ids):
        begin = done[max(0, len(done) - WINDOW)]
        said = codec.decode(ids[begin : done[-1]])
        whole = codec.decode(ids[begin : at + 1])
        waits = whole.endswith("\ufffd") and at - done[-1] < LONGEST - 1
        text = "" if waits else _rest(said, whole)
        row = zip(watch, generated.watched[at].tolist(), strict=True)
        others = {
            _rest(said, codec.decode([*ids[begin:at], other])): value
            for other, value in row
            if value > -math.inf and other != token_id
        }
        top = {**others, text: generated.token_logprobs[at]}
        ranked = sorted(top.items(), key=lambda pair: -pair[1]) if watch else ()
        found.append(TokenLogprob(text, generated.token_logprobs[at], tuple(ranked)))
        if not waits:
            done.append(at + 1)
    return tuple(found)


def _rest(said: str, whole: str) -> str:
    """What `whole` adds to it."""
    return whole[len(said) :] if whole.startswith(said) else whole


def label_ids(codec: TextCodec, constraint: Constraint | None, most: int) -> tuple[int, ...]:
    """Ids that can be part of a label that a constraint enumerates, those that can begin one first, `most` at most."""
    texts: list[str] = []
    if constraint is not None and constraint.form is ConstraintForm.CHOICE:
        texts = constraint.value
    elif constraint is not None and constraint.form is ConstraintForm.JSON:
        texts = [json.dumps(value, ensure_ascii=False) for value in _labels(constraint.value)]
    written = [w for text in dict.fromkeys(texts) for w in (text, f" {text}", text.removeprefix('"'))]
    # A label need not be written in its usual tokens: `y` and `es` are allowed where `yes` is.
    beginnings = [codec.encode(one[:end]) for one in written for end in range(1, len(one) + 1)]
    firsts = [ids[0] for ids in beginnings if len(ids) == 1]
    rest = [token_id for one in written for token_id in codec.encode(one)]
    return tuple(dict.fromkeys((*firsts, *rest)))[:most]


def _labels(schema: Any) -> Iterator[Any]:
    """Values of all enumerations of a JSON schema, in order."""
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


Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """How one slot is scored."""

    prefix: Ids  # everything before the surfaces
    paths: tuple[Ids, ...]  # token sequences, none the beginning of another
    owners: tuple[int, ...]  # for each path the number of the surface that it writes
    requests: tuple[Generate, ...]  # one a node of the trie; more where more ids part than an engine can watch

    def scores(self, results: Sequence[RequestResult]) -> tuple[float, ...] | None:
        """Natural log-probability of each surface; None if a request failed or a value is no probability."""
        served = [result for result in results if isinstance(result, Generated)]
        if len(served) < len(self.requests):
            return None
        logprobs = option_logprobs(self.requests, served, self.prefix, self.paths)
        if any(math.isnan(value) for value in logprobs):
            return None
        surfaces = range(max(self.owners) + 1)
        return tuple(
            logsumexp([value for value, owner in zip(logprobs, self.owners, strict=True) if owner == surface])
            for surface in surfaces
        )


def plan(renderer: Renderer, slot: Slot, prompt: Ids, *, adapter: str | None, most_watched: int) -> SlotPlan:
    """The requests of a slot after a prompt."""
    shared, rests = renderer.slot(slot)
    before = tuple(renderer.text.encode(slot.prefill))
    border = common_length(shared, before)
    paths = {(*shared[border:], *rest): owner for owner, rest in enumerate(rests)}
    if border < len(before):
        paths |= _seams(renderer, slot, before, border, taken=paths)
    prefix = (*prompt, *before[:border])
    requests = option_requests(prefix, list(paths), adapter=adapter, most_watched=most_watched)
    return SlotPlan(prefix, tuple(paths), tuple(paths.values()), tuple(requests))


def _seams(renderer: Renderer, slot: Slot, before: Ids, border: int, *, taken: dict[Ids, int]) -> dict[Ids, int]:
    """Ways of writing that keep the seam: the prefill's own tokens, then the surface by itself."""
    found: dict[Ids, int] = {}
    for owner, surface in enumerate(slot.surfaces):
        ids = (*before, *renderer.text.encode(surface))
        path = ids[border:]
        # A tokenizer may put a space before a text that stands alone; such a path would write something else.
        if path not in taken and renderer.text.decode(ids) == renderer.text.decode(
            (*before[:border], *_of(taken, owner))
        ):
            found[path] = owner
    return found


def _of(paths: dict[Ids, int], owner: int) -> Ids:
    return next(path for path, number in paths.items() if number == owner)


@dataclass(frozen=True, slots=True)
class _Plan:
    """The engine requests of one request: its text, if any, then its slots."""

    request: ModelRequest
    text: Generate | None
    slots: tuple[SlotPlan, ...]

    @property
    def requests(self) -> list[Generate]:
        first = [] if self.text is None else [self.text]
        return first + [one for slot in self.slots for one in slot.requests]


class EngineExecutor(Executor):
    """An `Executor` over an engine, which can run inside a decoder."""

    def __init__(self, engine: Engine, tokenizer: Any) -> None:
        """Join an engine, with the adapters that requests will name, and its model's tokenizer or `Renderer`."""
        self.engine = engine
        self.renderer = tokenizer if isinstance(tokenizer, Renderer) else Renderer.of(tokenizer)

        self.activated = engine.limits.activated

    def steps(self, requests: Sequence[ModelRequest]) -> Steps[list[Completion | Failed]]:
        """Return the results of one batch. Decoding is greedy; refuses sampling and adapters that are not loaded."""
        plans = [self._plan(request) for request in requests]
        results = iter((yield [one for made in plans for one in made.requests]))
        return [self._completion(made, [next(results) for _ in made.requests]) for made in plans]

    def option_steps(
        self, requests: Sequence[ModelRequest], options: Sequence[str]
    ) -> Steps[list[list[float] | Failed]]:
        """Return for each request the exact log-probability of each option as the reply.

        Where one option begins another, that of the shorter one includes the end of the turn.
        """
        encoded = [tuple(self.renderer.text.encode(option)) for option in options]
        enders = (self.renderer.end_id,)
        plans: list[tuple[Ids, list[Generate]]] = []
        for request in requests:
            prefix = (*self.renderer.prompt(request.prompt), *self.renderer.text.encode(request.prefill))
            plans.append((prefix, option_requests(prefix, encoded, enders, most_watched=self.engine.limits.max_watch)))
        results = yield [generate for _, generates in plans for generate in generates]
        rows: list[list[float] | Failed] = []
        begin = 0
        for prefix, generates in plans:
            own = results[begin : begin + len(generates)]
            begin += len(generates)
            served = [result for result in own if isinstance(result, Generated)]
            if len(served) < len(own):
                rows.append(Failed(next(failure_of(result) for result in own if not isinstance(result, Generated))))
                continue
            rows.append(option_logprobs(generates, served, prefix, encoded, enders))
        return rows

    def close(self) -> None:
        """Free the engine."""
        close(self.engine)

    def _plan(self, request: ModelRequest) -> _Plan:
        limits = self.engine.limits
        if request.adapter is not None and request.adapter not in limits.adapters:
            raise EngineError(
                f"adapter {request.adapter!r} is not loaded; loaded: {', '.join(sorted(limits.adapters)) or 'none'}"
            )
        prompt = self.renderer.prompt(request.prompt)
        text = None
        if request.max_tokens > 0:
            if request.temperature:
                raise UserError(f"temperature={request.temperature:g}: engines decode greedily; ask for 0")
            watch: tuple[int, ...] = ()
            if request.top_logprobs:
                watch = label_ids(self.renderer.text, request.constraint, limits.max_watch)
            stops = self.renderer.sentence_stops if request.sentence else ()
            text = Generate(
                (*prompt, *self.renderer.text.encode(request.prefill)),
                request.max_tokens,
                stop_ids=(self.renderer.end_id, *stops),
                watch_ids=watch,
                adapter=request.adapter,
                constraint=request.constraint,
            )
        slots = tuple(
            plan(self.renderer, slot, prompt, adapter=request.adapter, most_watched=limits.max_watch)
            for slot in request.slots
        )
        return _Plan(request, text, slots)

    def _completion(self, made: _Plan, results: Sequence[RequestResult]) -> Completion | Failed:
        failures = [result for result in results if isinstance(result, Failed)]
        if failures and (len(failures) == len(results) or (made.text is not None and isinstance(results[0], Failed))):
            return failures[0]
        served = [result for result in results if isinstance(result, Generated)]
        rest = iter(results if made.text is None else results[1:])
        scores = tuple(slot.scores([next(rest) for _ in slot.requests]) for slot in made.slots)
        bare = Completion(
            scores=scores,
            prompt_tokens=sum(len(one.prompt_ids) for one in made.requests),
            cached_tokens=sum(result.cached_tokens for result in served),
            generated_tokens=sum(len(result.token_ids) for result in served),
        )
        if made.text is None or not isinstance(results[0], Generated):
            return bare
        written = results[0]
        ids, finish = written.token_ids, ENDED[written.finish]
        if written.finish is Finish.STOP and ids[-1] != self.renderer.end_id:
            finish = "sentence"
        if finish == "stop":
            ids = ids[:-1]
        return replace(
            bare,
            text=self.renderer.text.decode(ids),
            finish=finish,
            tokens=tokens(self.renderer.text, ids, written, made.text.watch_ids),
        )
