"""Measure decoding speed: `bench_decoding.py [--model DIR] [--data FILE.jsonl.gz] [--out REPORT.json]`.

Ours answers all questions. The floor gets the same requests at once, without log-probabilities. On
a few of the questions ours meets the published loop, with 20 and with all of its log-probabilities, in turn.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Literal

from scripts.benchmarks.measure import (
    Report,
    Run,
    answer_all,
    race,
    ratio,
    speed_of,
)
from scripts.benchmarks.rivals import (
    FEW,
    Complete,
    PublishedLoop,
    complete_on_transformers,
    complete_on_vllm,
    replay_on,
    replay_on_vllm,
)
from scripts.benchmarks.workload import FORMS, Item, items_of
from scripts.command import command
from selfrag.common.checks import check_choice
from selfrag.decoding.policy import Decoding
from selfrag.engines import load_engine
from selfrag.engines.transformers import TransformersConfig, TransformersEngine
from selfrag.engines.transformers_model import load
from selfrag.engines.vllm import VLLMConfig, VLLMEngine
from selfrag.loading import load_tokenizer, resolve_model
from selfrag.prompting import Prompting
from selfrag.reflection.requests import Failed, Finish, Generate, Generated, Usage
from selfrag.runtime.sessions import Serving


@dataclass(slots=True)
class Recording:
    """Passes everything on and keeps the requests, in order.

    With `ending` every candidate runs to its full budget, and this id, a Retrieve token, takes the place of its last
    one: random weights end nowhere, and so every path has all its segments, each of equal length.
    """

    engine: Serving
    ending: int | None = None
    requests: list[Generate] = field(default_factory=list)

    def submit(self, request: Generate) -> int:
        """Queue and record a request."""
        if self.ending is not None:
            request = replace(request, stop_ids=())
        self.requests.append(request)
        return self.engine.submit(request)

    def step(self) -> Sequence[tuple[int, Generated | Failed]]:
        """Work, and end what is done."""
        results = list(self.engine.step())
        if self.ending is not None:
            for place, (ticket, result) in enumerate(results):
                if isinstance(result, Generated):
                    ids = (*result.token_ids[:-1], self.ending)
                    ended = replace(result, token_ids=ids, finish=Finish.STOP)
                    results[place] = ticket, ended
        return results

    def abort(self, tickets: Iterable[int]) -> None:
        """Forget requests."""
        self.engine.abort(tickets)


@dataclass(frozen=True, slots=True)
class LoadedSystem:
    """A loaded model, for ours and for the loop."""

    fresh: Callable[[], Serving]  # an engine that knows no earlier prompt
    complete: Complete
    replay: Callable[[Sequence[Generate]], int]  # serves requests at once
    logprobs: int  # most that it gives of a token


def on_vllm(path: str, kv_gib: float | None, dtype: str) -> LoadedSystem:
    """Load a checkpoint into vLLM."""
    most = max(form.logprobs for form in FORMS.values())
    options = {"max_logprobs": most}
    config = VLLMConfig(path, dtype=dtype, kv_cache_gib=kv_gib, engine_args=options)
    engine = VLLMEngine.load(config)
    vllm = engine._engine

    def fresh() -> VLLMEngine:
        vllm.reset_prefix_cache()
        return engine

    complete = partial(complete_on_vllm, vllm)
    return LoadedSystem(fresh, complete, partial(replay_on_vllm, vllm), most)


def on_transformers(path: str, device: str) -> LoadedSystem:
    """Load a checkpoint into transformers; batches and kept prompts are as the memory of a large card allows."""
    config = TransformersConfig(path, device=device)
    if device.startswith("cuda"):
        config = replace(config, max_batch=96, max_prefill_tokens=16384)
        config = replace(config, prefix_cache_mib=4096)
    model = load(config)

    def replay(requests: Sequence[Generate]) -> int:
        return replay_on(TransformersEngine(model, config), requests)

    return LoadedSystem(
        partial(TransformersEngine, model, config),
        partial(complete_on_transformers, model),
        replay,
        model.vocab_size,
    )


@dataclass(frozen=True, slots=True)
class DecodingBenchmark:
    """A loaded model, and the ways to answer with it."""

    system: LoadedSystem
    beside: Mapping[str, Serving]  # other engines with the same model
    prompting: Prompting
    report: Report
    repeats: int  # rounds
    ending: int | None  # of every candidate, for random weights

    def time_ours(
        self, form: str, policy: Decoding, items: Sequence[Item], live: int
    ) -> None:
        """Time ours with so many questions in flight, and the floor of its requests."""
        recording = Recording(self.system.fresh(), self.ending)

        def ours() -> Run:
            recording.engine = self.system.fresh()
            recording.requests.clear()
            return answer_all(items, self.prompting, policy, recording, max_live=live)

        def floor() -> Run:
            requests = recording.requests
            start = perf_counter()
            generated = self.system.replay(requests)
            prompts = sum(len(request.prompt_ids) for request in requests)
            usage = Usage(len(requests), prompts, generated_tokens=generated)
            return Run(perf_counter() - start, len(items), usage)

        ways: dict[str, Callable[[], Run]] = {f"ours, {live} live": ours}
        ways["floor"] = floor
        for name, engine in self.beside.items():
            ways[f"ours, {live} live, {name}"] = partial(
                answer_all, items, self.prompting, policy, engine, max_live=live
            )
        self._race(form, ways, "floor")

    def time_loops(self, form: str, policy: Decoding, items: Sequence[Item]) -> None:
        """Time the published loop against ours on the same questions."""

        def ours() -> Run:
            engine = Recording(self.system.fresh(), self.ending)
            return answer_all(items, self.prompting, policy, engine)

        ways: dict[str, Callable[[], Run]] = {"ours": ours}
        for logprobs in (FEW, min(FORMS[form].logprobs, self.system.logprobs)):
            loop = PublishedLoop(
                self.system.complete, self.prompting, policy, logprobs, self.ending
            )
            name = f"published loop, {logprobs:,} log-probabilities"
            ways[name] = partial(loop.answer_all, items)
        self._race(form, ways, "ours")

    def _race(
        self, form: str, ways: Mapping[str, Callable[[], Run]], reference: str
    ) -> None:
        """Time ways in turn, and report each against the reference."""
        series = {way.name: way for way in race(ways, self.repeats, self._forget)}
        for name, way in series.items():
            against = f"{ratio(way, series[reference])} {reference}"
            self.report.add(form=form, way=name, **speed_of(way), time=against)

    def _forget(self) -> None:
        self.system.fresh()
        gc.collect()


@command
def main(
    *,
    model: str = "demo",
    engine: Literal["vllm", "transformers"] = "vllm",
    device: str = "auto",
    data: Path | None = None,
    out: Path | None = None,
    kv_gib: float | None = None,
    dtype: str = "auto",
    form: list[str] = list(FORMS),  # noqa: B006 - of the command line alone
    live: list[int] = [256],  # noqa: B006
    questions: int = 64,
    passages: int = 5,
    rivals: int = 4,
    repeats: int = 3,
    fixed_tokens: int | None = None,
    beside: list[str] = [],  # noqa: B006
) -> None:
    """Print the table, and write it where it is asked for.

    Args:
        model: checkpoint directory, hub name or `demo`.
        engine: vllm or transformers.
        device: torch device of the transformers engine.
        data: rows with instruction and passages; else made from the demo corpus.
        out: JSON file with everything measured.
        kv_gib: memory for keys and values of vLLM.
        dtype: number format of vLLM.
        form: short or long; repeatable, both by default.
        live: questions in flight; repeatable. Four times as many are asked at most.
        questions: of ours and the floor.
        passages: of each question.
        rivals: questions of the rivals.
        repeats: rounds.
        fixed_tokens: new tokens of every candidate, for a model with random weights.
        beside: number format and engine that answers the questions in turn, such as int8:onnx; repeatable.
    """
    for name in form:
        check_choice("--form", name, FORMS)
    report = Report(out)
    items = items_of(data, questions, passages)
    path = resolve_model(model)
    report.say("loading")
    # before vLLM, which pins the threads that are there
    others = {}
    for name in beside:
        numbers, _, second = name.rpartition(":")
        others[name] = load_engine(second, path, dtype=numbers or "float32")
    system = (
        on_vllm(str(path), kv_gib, dtype)
        if engine == "vllm"
        else on_transformers(str(path), device)
    )
    prompting = Prompting.from_tokenizer(load_tokenizer(path))
    ending = None if fixed_tokens is None else prompting.vocabulary.retrieve[0]
    benchmark = DecodingBenchmark(system, others, prompting, report, repeats, ending)
    for name in form:
        policy = replace(FORMS[name].policy, passages=passages)
        if fixed_tokens is not None:
            policy = replace(policy, segment_tokens=fixed_tokens)
        # the first steps of an engine are slow
        answer_all(items[:2], prompting, policy, system.fresh())
        for most in live:
            benchmark.time_ours(name, policy, items[: 4 * most], most)
        benchmark.time_loops(name, policy, items[:rivals])
    report.print()


if __name__ == "__main__":
    main()
