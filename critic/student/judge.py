"""`StudentCritic`: a trained critic on any engine, asked for the exact probability of each label. Generates no text.

One one-token request a case where the labels part at their first token, else one for each inner node of their trie.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from critic.cases import Case
from critic.student.prompt import Prompt
from selfrag.common.errors import EngineError, UserError
from selfrag.decoding.options import option_logprobs, option_requests
from selfrag.decoding.requests import Failed, Generate, Generated
from selfrag.loading import resolve_model
from selfrag.reflection.judgment import Judgment, Source

if TYPE_CHECKING:
    from selfrag.engines.base import Engine

Ids: TypeAlias = tuple[int, ...]

DEMO = "demo"
"""The critic of the package."""

IN_FLIGHT = 512
"""Requests handed to the engine at a time: enough for any batch, few enough that neighbours meet in its cache."""


class Asking(Protocol):
    """What turns a case into ids: `PromptCodec`, or another way of asking."""

    @property
    def eos_id(self) -> int:
        """Ends an answer."""

    @property
    def max_length(self) -> int:
        """Tokens of the longest prompt with its longest label."""

    def prompt(self, case: Case) -> Prompt:
        """Lay out one case."""


@dataclass(frozen=True)
class StudentCritic:
    """A `critic.cases.Critic`."""

    engine: Engine
    codec: Asking  # the prompt that the model was trained with, or another way of asking it
    exact: bool = False
    """Score every token of a label written as words. Otherwise a label is scored up to where it differs from the others
    of its group, which is all that a trained critic needs."""
    progress: Callable[[int], object] | None = field(default=None, compare=False)  # called with cases done

    def __post_init__(self) -> None:
        room = self.engine.limits.max_model_len
        if self.codec.max_length > room:
            raise UserError(
                f"prompts of up to {self.codec.max_length} tokens do not fit"
                f" the engine's max_model_len={room}; raise it"
            )

    def __enter__(self) -> StudentCritic:
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()

    def judge(self, cases: Sequence[Case]) -> list[Judgment | None]:
        """One judgment a case, in order; equal prompts are asked once. None where no label has any probability.

        The probability mass on the labels of a case's group is its coverage.
        """
        keys = [(prompt.ids, prompt.options) for prompt in map(self.codec.prompt, cases)]
        # In the order of ids, prompts that begin alike are neighbours: a prefix cache computes what they share once.
        end = (self.codec.eos_id,)
        plans = {key: option_requests(key[0], self._options(key[1]), end) for key in sorted(set(keys))}
        times = Counter(keys)
        scores: dict[tuple[Ids, tuple[Ids, ...]], list[float]] = {}
        results = self._serve([request for plan in plans.values() for request in plan])
        for key, plan in plans.items():
            found = [next(results) for _ in plan]
            offered = iter(option_logprobs(plan, found, key[0], self._options(key[1]), end))
            scores[key] = [next(offered) if ids else -math.inf for ids in key[1]]
            if self.progress is not None:
                self.progress(times[key])
        return [_judgment(case, scores[key], n) for n, (case, key) in enumerate(zip(cases, keys, strict=True))]

    def shortened(self, cases: Sequence[Case]) -> int:
        """How many cases are asked with less than they hold, because their prompts would be too long."""
        return sum(bool(self.codec.prompt(case).dropped) for case in cases)

    def _options(self, options: tuple[Ids, ...]) -> tuple[Ids, ...]:
        offered = tuple(ids for ids in options if ids)
        return offered if self.exact else distinguishing(offered)

    def _serve(self, requests: Sequence[Generate]) -> Iterator[Generated]:
        """Results in the order of the requests, as soon as they and all before them are there."""
        pending = deque(requests)
        order: deque[int] = deque()
        done: dict[int, Generated] = {}
        try:
            while pending or order:
                while pending and len(order) - len(done) < IN_FLIGHT:
                    order.append(self.engine.submit(pending.popleft()))
                for ticket, result in self.engine.step():
                    if isinstance(result, Failed):
                        raise EngineError(f"the engine could not judge a case: {result.reason}")
                    done[ticket] = result
                while order and order[0] in done:
                    yield done.pop(order.popleft())
        finally:
            with suppress(EngineError):  # a dead engine has nothing to abort, and must not hide why it died
                self.engine.abort(order)


def resolve_critic(name: str | Path) -> Path:
    """Folder of a critic's checkpoint: the package's, a local one, or one on the hub."""
    if name == DEMO:
        from critic.demo import critic_path

        return critic_path()
    return resolve_model(name)


def load_critic(
    model_dir: str | Path, engine: str | None = None, *, exact: bool = False, **options: Any
) -> StudentCritic:
    """Load a critic that `train_critic` wrote.

    Args:
        model_dir: directory of the checkpoint with its `critic.json`; `demo` for the critic of the package.
        engine: as for `load_engine`.
        exact: as in `StudentCritic`.
        options: settings of the engine.

    Raises:
        UserError: the directory holds no critic, or the engine cannot load it.
    """
    from critic.student.prompt import read_card
    from selfrag.engines.select import load_engine
    from selfrag.loading import load_tokenizer

    directory = resolve_critic(model_dir)
    codec = read_card(directory, load_tokenizer(directory))
    return StudentCritic(load_engine(engine, directory, **options), codec, exact=exact)


def distinguishing(options: Sequence[Ids]) -> tuple[Ids, ...]:
    """Each option up to the first token at which it differs from all others; one token where first tokens differ."""
    shortest = []
    for ids in options:
        others = [other for other in options if other != ids]
        known = next((n for n in range(1, len(ids)) if all(other[:n] != ids[:n] for other in others)), len(ids))
        shortest.append(ids[:known])
    return tuple(shortest)


def _judgment(case: Case, logprobs: Sequence[float], number: int) -> Judgment | None:
    if not any(math.isfinite(value) for value in logprobs) or any(math.isnan(value) for value in logprobs):
        return None
    evidence = None if case.evidence is None else case.evidence.id
    return Judgment.from_logprobs(case.labels, logprobs, site=f"case {number}", source=Source.JUDGE, evidence=evidence)
