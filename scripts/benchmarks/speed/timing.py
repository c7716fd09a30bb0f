"""Questions answered against the clock, and several ways of answering timed in turns on one vLLM."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from scripts.benchmarks.speed.workload import Item
from selfrag.common.errors import DecodingError, require
from selfrag.decoding.answer import Answer
from selfrag.decoding.beam import decode
from selfrag.decoding.policy import Decoding
from selfrag.engines.base import check_model, common_length
from selfrag.engines.vllm import (
    VLLMConfig,
    VLLMEngine,
    build_environment,
    engine_arguments,
    environment,
    quiet_import,
    spare_llvmlite,
)
from selfrag.loading import load_tokenizer
from selfrag.prompting import Prompting
from selfrag.runtime import QuestionAnswered, QuestionFailed, drive
from selfrag.runtime.sessions import Serving


def least_tokens(prompts: Iterable[Sequence[int]], block: int = 1) -> int:
    """Return the tokens of the trie of all prompts, the fewest to compute where each prefix is computed once.

    What a prompt holds of an earlier answer counts, although its keys and values exist already. An engine that shares
    prefixes by blocks of so many tokens computes at least what it returns for that `block`.
    """
    ordered = sorted(map(tuple, prompts))
    shared = 0
    for earlier, prompt in pairwise(ordered):
        length = common_length(earlier, prompt)
        shared += length - length % block
    return sum(map(len, ordered)) - shared


@dataclass(frozen=True, slots=True)
class Work:
    """What a run had the engine do."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """Some questions answered."""

    seconds: float  # wall time, tokenising included
    texts: tuple[str, ...]  # the answers, in the order of the questions
    work: Work  # what the engine did
    # with their traces; empty for rivals
    answers: tuple[Answer, ...] = field(default=(), repr=False)

    @property
    def speed(self) -> float:
        """Return questions a second."""
        return len(self.texts) / self.seconds


def answer_all(
    items: Sequence[Item],
    prompting: Prompting,
    policy: Decoding,
    engine: Serving,
    *,
    max_live: int = 256,
) -> Run:
    """Answer all questions; `max_live` of them share the engine's batches.

    Raises:
        DecodingError: a question failed; a benchmark must not go faster by failing.
    """
    start = time.perf_counter()
    answers: dict[int, Answer] = {}
    decoders = (
        decode(item.question, prompting, policy, passages=item.passages)
        for item in items
    )
    for event in drive(decoders, engine, None, max_live=max_live):
        if isinstance(event, QuestionFailed):
            raise DecodingError(
                f"{items[event.index].question!r} failed: {event.error}"
            )
        if isinstance(event, QuestionAnswered):
            answers[event.index] = event.answer
    seconds = time.perf_counter() - start
    ordered = tuple(answers[i] for i in range(len(items)))
    counts = dict.fromkeys((field.name for field in fields(Work)), 0)
    for answer in ordered:
        for name in counts:
            counts[name] += getattr(answer.usage, name)
    work = Work(**counts)
    return Run(seconds, tuple(answer.text for answer in ordered), work, ordered)


@dataclass(frozen=True, slots=True)
class Series:
    """One way, timed several times."""

    name: str  # what is timed
    questions: int  # answered in each run
    seconds: tuple[float, ...]  # of each run
    work: Work  # of the last run; greedy decoding makes all runs alike
    texts: tuple[str, ...]  # answers of the last run

    @property
    def speed(self) -> float:
        """Return questions a second, from the median of the times."""
        return self.questions / median(self.seconds)


def race(
    ways: Mapping[str, Callable[[], Run]], repeats: int, prepare: Callable[[], None]
) -> dict[str, Series]:
    """Run all ways in turn, `repeats` times; every second round backwards.

    Args:
        ways: name to what runs it; in the first round they run in this order.
        repeats: rounds, at least 1.
        prepare: called before each run, outside the clock.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    last: dict[str, Run] = {}
    for number in range(repeats):
        for name in list(ways) if number % 2 == 0 else list(ways)[::-1]:
            prepare()
            last[name] = ways[name]()
            seconds[name].append(last[name].seconds)
    return {
        name: Series(name, len(run.texts), tuple(seconds[name]), run.work, run.texts)
        for name, run in last.items()
    }


def ratio(slow: Series, fast: Series) -> str:
    """Return the time of `slow` over the time of `fast`, a question: the median of the rounds, and their range."""
    rounds = np.divide(slow.seconds, fast.seconds) * fast.questions / slow.questions
    return f"{np.median(rounds):.2f} ({rounds.min():.2f}-{rounds.max():.2f})"


@dataclass(frozen=True, slots=True)
class Served:
    """A loaded model."""

    llm: Any  # vLLM's offline front end
    # ours, over the same vLLM engine. Never use both at the same time.
    engine: VLLMEngine

    def forget(self) -> None:
        """Empty the prefix cache, so that a run cannot profit from the one before."""
        self.llm.reset_prefix_cache()

    def settings(self) -> dict[str, Any]:
        """Return what was loaded, and how."""
        config = self.llm.llm_engine.vllm_config
        return {
            "model": Path(config.model_config.model).name,
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "eager": bool(config.model_config.enforce_eager),
            "prefix_caching": bool(config.cache_config.enable_prefix_caching),
            "block_size": config.cache_config.block_size,
            "max_logprobs": config.model_config.max_logprobs,
        }


def serve(config: VLLMConfig) -> Served:
    """Load a checkpoint with the settings that `VLLMEngine.load` would use.

    Raises:
        MissingExtraError: vLLM is not installed.
    """
    check_model(config.model)
    with quiet_import():
        require("vllm", extra="cpu")
        from vllm import LLM
        from vllm.platforms import current_platform

        cpu: bool = current_platform.is_cpu()
        ours = build_environment(
            cpu=cpu, kv_cache_is_ours=config.kv_cache_gib is not None
        )
        with environment({"LD_PRELOAD": os.environ.get("LD_PRELOAD"), **ours}):
            spare_llvmlite()
            llm = LLM(**engine_arguments(config, (), cpu=cpu))
    return Served(llm, VLLMEngine(llm.llm_engine))


def prompting_of(model: str) -> Prompting:
    """Return tokenizer, vocabulary and layout of a checkpoint directory.

    Raises:
        UserError: it has no usable tokenizer, or one without reflection tokens.
    """
    tokenizer = load_tokenizer(Path(model))
    return Prompting.from_tokenizer(tokenizer)
