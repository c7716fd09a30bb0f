"""`EngineExecutor`: requests of codecs on any engine of this library, exact on token ids. Sans-IO but for `run`.

All slots and all texts of all requests go out as one batch, so adapters mix and what prompts share is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from selfrag.decoding.requests import Failed, Generate, Generated
from selfrag.decoding.sessions import close
from selfrag.engines.base import Engine, pump
from selfrag.errors import EngineError, UserError
from selfrag.intrinsics.contract import Completion, Request, Steps
from selfrag.intrinsics.execution.generated import ENDED, label_ids, mask, tokens
from selfrag.intrinsics.execution.slots import SlotPlan, plan
from selfrag.intrinsics.rendering import Renderer


@dataclass(frozen=True, slots=True)
class _Plan:
    """The engine requests of one request: its text, if any, then its slots."""

    request: Request
    text: Generate | None
    slots: tuple[SlotPlan, ...]

    @property
    def requests(self) -> list[Generate]:
        first = [] if self.text is None else [self.text]
        return first + [one for slot in self.slots for one in slot.requests]


class EngineExecutor:
    """A `SteppedExecutor` over an engine.

    Attributes:
        engine: where requests run.
        renderer: of the model's tokenizer.
    """

    def __init__(self, engine: Engine, tokenizer: Any) -> None:
        """Join an engine and the tokenizer of its model.

        Args:
            engine: loaded with the adapters that requests will name.
            tokenizer: of Hugging Face, or a `Renderer`.
        """
        self.engine = engine
        self.renderer = tokenizer if isinstance(tokenizer, Renderer) else Renderer.of(tokenizer)

    def run(self, requests: Sequence[Request]) -> list[Completion | Failed]:
        """See `Executor.run`. Decoding is greedy."""
        return pump(self.engine, self.steps(requests))

    def steps(self, requests: Sequence[Request]) -> Steps[list[Completion | Failed]]:
        """The same with the engine left to the caller; one batch.

        Raises:
            UserError: an adapter is not loaded, sampling is asked for, or the tokenizer cannot render the prompt.
        """
        plans = [self._plan(request) for request in requests]
        results = iter((yield [one for made in plans for one in made.requests]))
        return [self._completion(made, [next(results) for _ in made.requests]) for made in plans]

    def close(self) -> None:
        """Free the engine."""
        close(self.engine)

    def _plan(self, request: Request) -> _Plan:
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
            text = Generate(
                prompt,
                request.max_tokens,
                stop_ids=(self.renderer.end_id,),
                watch_ids=watch,
                adapter=request.adapter,
                constraint=mask(request.constraint),
            )
        slots = tuple(
            plan(self.renderer, slot, prompt, adapter=request.adapter, most_watched=limits.max_watch)
            for slot in request.slots
        )
        return _Plan(request, text, slots)

    def _completion(self, made: _Plan, results: Sequence[Generated | Failed]) -> Completion | Failed:
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
        ended = ENDED[written.finish] == "stop"
        ids = written.token_ids[:-1] if ended else written.token_ids
        return replace(
            bare,
            text=self.renderer.text.decode(ids),
            finish=ENDED[written.finish],
            tokens=tokens(self.renderer.text, ids, written, made.text.watch_ids),
        )
