"""Questions a second: ours with 1, 8 and 64 live questions, and the published loop.

Both run the same module in the same process. Ours asks for the log-probabilities of the reflection tokens; the loop
asks for the 20 or the 5,000 most probable ones of every token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from scripts.benchmarks.job import Job, SkipStep
from scripts.benchmarks.models import checkpoint_7b, demo_checkpoint
from scripts.benchmarks.random_models import (
    LLAMA_7B,
    TINY_7B,
    make_model,
    make_tokenizer,
    prompting_for,
)
from scripts.benchmarks.speed.generate import TransformersLLM
from scripts.benchmarks.speed.rivals import KIND, OfficialLoop
from scripts.benchmarks.speed.timing import Run, Served, answer_all, prompting_of, serve
from scripts.benchmarks.speed.workload import FORMS, SHORT, Form, Item
from selfrag.engines.transformers import TransformersConfig, TransformersEngine
from selfrag.engines.transformers_model import LoadedModel, load
from selfrag.engines.vllm import VLLMConfig
from selfrag.loading import load_tokenizer
from selfrag.prompting import Prompting
from selfrag.reflection.requests import Failed, Finish, Generate, Generated
from selfrag.runtime.sessions import Serving

WARM_QUESTIONS = 2
"""Questions before the clock: the first calls of a device are slow."""

FIXED_TOKENS = 20
"""New tokens of every candidate where weights are random."""

TINY_TOKENS = 6
"""Most new tokens of a candidate in a tiny run."""

RIVAL_SECONDS = 5.0
"""Time that must be left before another way begins."""


@dataclass(frozen=True, slots=True)
class QuestionCounts:
    """How many questions of one form are questions_asked."""

    # live questions, and questions that are questions_asked with so many
    live: tuple[tuple[int, int], ...]
    rival: int  # questions of each loop


COUNTS = {
    "short": QuestionCounts(((1, 3), (8, 16), (64, 64)), 3),
    "long": QuestionCounts(((1, 2), (8, 8), (64, 64)), 1),
}
TINY_COUNTS = QuestionCounts(((1, 1), (8, 2), (64, 2)), 1)


@dataclass(slots=True)
class FixedLength:
    """Runs every candidate to its full budget, and puts a Retrieve token in the place of its last id.

    Random weights end nowhere. With this, every path has all its segments, each of equal length.
    """

    engine: Serving
    ending: int

    def submit(self, request: Generate) -> int:
        """Queue a request without its stop ids."""
        return self.engine.submit(replace(request, stop_ids=()))

    def step(self) -> Sequence[tuple[int, Generated | Failed]]:
        """Work, and end what is done."""
        results: list[tuple[int, Generated | Failed]] = []
        for ticket, result in self.engine.step():
            if isinstance(result, Generated):
                token_ids = (*result.token_ids[:-1], self.ending)
                results.append(
                    (ticket, replace(result, token_ids=token_ids, finish=Finish.STOP))
                )
            else:
                results.append((ticket, result))
        return results

    def abort(self, tickets: Iterable[int]) -> None:
        """Forget requests."""
        self.engine.abort(tickets)


@dataclass(frozen=True, slots=True)
class Contest:
    """One model, and the ways to answer with it."""

    name: str  # of the model
    prompting: Prompting
    fresh: Callable[[], Serving]  # an engine that knows no earlier prompt
    llm: Any = None  # what the published loop calls; None leaves the loop out
    # makes the settings of its calls; None for vLLM's `SamplingParams`
    sampling: Any = None
    # whether weights are random, so that every candidate has the same length
    is_random: bool = False


def run_contest(job: Job, contest: Contest) -> None:
    """Time every way in every form, ours first. Before each time the engine has forgotten all prompts."""
    items = job.items()
    warm, questions_asked = items[:WARM_QUESTIONS], items[WARM_QUESTIONS:]
    tokens = FIXED_TOKENS if contest.is_random else None
    if job.settings.tiny:
        tokens = TINY_TOKENS
    for form in FORMS.values():
        count = TINY_COUNTS if job.settings.tiny else COUNTS[form.name]
        if tokens is not None:
            form = replace(form, policy=replace(form.policy, segment_tokens=tokens))
        answer_all(warm, contest.prompting, form.policy, contest.fresh())
        fastest = 0.0
        for live, questions in count.live:
            run = answer_all(
                questions_asked[:questions],
                contest.prompting,
                form.policy,
                contest.fresh(),
                max_live=live,
            )
            fastest = max(fastest, run.speed)
            _result(job, contest, form, "ours", live, run)
        if contest.llm is not None:
            _time_loops(
                job, contest, form, warm, questions_asked[: count.rival], fastest
            )


def _time_loops(
    job: Job,
    contest: Contest,
    form: Form,
    warm: Sequence[Item],
    items: Sequence[Item],
    fastest: float,
) -> None:
    """Time the published loop; with the 32,000 log-probabilities of the long form it would take minutes a question."""
    for logprobs in (KIND, SHORT.rival_logprobs):
        loop = OfficialLoop(
            contest.llm, contest.prompting, form, logprobs, contest.sampling
        )
        if form.name == SHORT.name:
            loop.answer_all(warm[:1])
        if job.has_time(RIVAL_SECONDS):
            contest.fresh()
            run = loop.answer_all(items)
            way = f"published loop, {logprobs:,} log-probabilities"
            _result(job, contest, form, way, 1, run, fastest / run.speed)


def _result(
    job: Job,
    contest: Contest,
    form: Form,
    way: str,
    live: int,
    run: Run,
    slower: float | None = None,
) -> None:
    """Write a line of the table; `slower` is the highest speed of ours over that of this way."""
    questions = len(run.texts)
    job.result(
        **{
            "model": contest.name,
            "form": form.name,
            "way": way,
            "live": live,
            "questions": questions,
            "seconds": round(run.seconds, 3),
            "questions/s": run.speed,
            "new tokens/s": run.work.generated_tokens / run.seconds,
            "requests/question": run.work.requests / questions,
            "new tokens/question": run.work.generated_tokens / questions,
            "prompt tokens/question": run.work.prompt_tokens / questions,
            "of these cached": run.work.cached_tokens / questions,
            "ours, fastest, is times as fast": slower,
        }
    )


def engine_config(job: Job, model: str, max_batch: int) -> TransformersConfig:
    """Return how a model is run for speed: batches and kept prompts as the memory of a large card allows."""
    cache = 4096 if job.on_gpu else 512
    return TransformersConfig(
        model,
        dtype=job.dtype,
        device=job.device,
        max_batch=max_batch,
        prefix_cache_mib=cache,
        max_prefill_tokens=16384,
    )


def time_demo(job: Job) -> None:
    """Time the demo model, whose answers end where it ends them."""
    path = demo_checkpoint(job)
    config = engine_config(job, str(path), 320)
    loaded = load(config)
    llm = TransformersLLM(
        loaded.module, load_tokenizer(path), tuple(sorted(loaded.eos_ids))
    )
    fresh = partial(TransformersEngine, loaded, config)
    run_contest(
        job, Contest("demo", prompting_of(str(path)), fresh, llm, SimpleNamespace)
    )


def time_7b(job: Job) -> None:
    """Time a model of the shape of Llama-2 7B with random weights; every candidate has the same length."""
    shape = TINY_7B if job.settings.tiny else LLAMA_7B
    tokenizer = make_tokenizer(job.items())
    prompting = prompting_for(tokenizer)
    module = make_model(shape, tokenizer, job.device, getattr(torch, job.dtype))
    eos_id = prompting.vocabulary.eos_id
    ending = prompting.vocabulary.ids["[Retrieval]"]
    loaded = LoadedModel(
        module, module.device, shape.context, shape.vocabulary, frozenset((eos_id,))
    )
    config = engine_config(job, shape.name, 96)
    llm = TransformersLLM(module, tokenizer, (eos_id,), ending)

    def fresh() -> Serving:
        return FixedLength(TransformersEngine(loaded, config), ending)

    run_contest(
        job, Contest(shape.name, prompting, fresh, llm, SimpleNamespace, is_random=True)
    )


def time_vllm_demo(job: Job) -> None:
    """Time the demo model on vLLM, in this process."""
    path = demo_checkpoint(job)
    served = _served(path)

    def fresh() -> Serving:
        served.forget()
        return served.engine

    run_contest(job, Contest("demo", prompting_of(str(path)), fresh, served.llm))
    served.engine.close()


def time_vllm_7b(job: Job) -> None:
    """Time ours on vLLM with a model of the shape of Llama-2 7B and random weights."""
    path = checkpoint_7b(job)
    served, prompting = _served(path), prompting_of(str(path))

    def fresh() -> Serving:
        served.forget()
        return FixedLength(served.engine, prompting.vocabulary.ids["[Retrieval]"])

    run_contest(job, Contest(path.name, prompting, fresh, is_random=True))
    served.engine.close()


def _served(path: Path) -> Served:
    if find_spec("vllm") is None:
        raise SkipStep("vLLM is not installed")
    return serve(
        VLLMConfig(str(path), engine_args={"max_logprobs": SHORT.rival_logprobs})
    )
