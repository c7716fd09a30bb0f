"""Measure decoding speed: `bench_decoding.py [--model DIR] [--data FILE.jsonl.gz] [--out REPORT.json]`.

Ours answers all questions. The floor gets the same requests in one call of the engine. On a few of the questions ours
meets the published loop, with 20 and with all of its log-probabilities.
At last the answers are ranked again under random weights, without the model. The table goes to the standard output,
progress to the error stream.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from scripts.benchmarks.report import results_table
from scripts.benchmarks.speed.rivals import KIND, OfficialLoop, Recording, replay
from scripts.benchmarks.speed.timing import (
    Run,
    Series,
    Served,
    Work,
    answer_all,
    least_tokens,
    prompting_of,
    race,
    ratio,
    serve,
)
from scripts.benchmarks.speed.workload import (
    FORMS,
    LONG,
    Form,
    Item,
    chosen_forms,
    demo_items,
    read_items,
)
from scripts.command import command, progress
from selfrag.common.atomic import write_json
from selfrag.common.provenance import machine
from selfrag.decoding.answer import Answer
from selfrag.decoding.sweep import sweep
from selfrag.engines.vllm import VLLMConfig
from selfrag.loading import resolve_model
from selfrag.prompting import Prompting

RESCORED, SETTINGS = 500, 1000
"""Recorded answers, repeated up to this number, and weight settings under which each is ranked."""


@dataclass(slots=True)
class Bench:
    """Two loaded models that answer the same questions."""

    cached: Served
    uncached: Served  # without prefix caching
    prompting: Prompting
    repeats: int  # rounds
    answers: list[Answer] = field(default_factory=list)  # of the last form

    def measure(
        self, form: Form, items: Sequence[Item], rivals: int
    ) -> Iterator[dict[str, Any]]:
        """Yield a line for each way of answering in one form; rivals answer the first of the questions."""
        # the first steps of an engine are slow
        for served in (
            self.cached,
            self.uncached,
        ):
            answer_all(items[:2], self.prompting, form.policy, served.engine)
        recording = Recording(self.cached.engine)

        def ours() -> Run:
            recording.requests.clear()
            run = answer_all(items, self.prompting, form.policy, recording)
            self.answers = list(run.answers)
            return run

        def floor() -> Run:
            seconds, generated = replay(self.cached.llm, recording.requests)
            prompts = sum(len(request.prompt_ids) for request in recording.requests)
            return Run(
                seconds,
                ("",) * len(items),
                Work(len(generated), prompts, 0, sum(generated)),
            )

        series = race({"ours": ours, "floor": floor}, self.repeats, self._prepare)
        least = least_tokens(request.prompt_ids for request in recording.requests)
        computed = series["ours"].work.prompt_tokens - series["ours"].work.cached_tokens
        yield {
            **_line(form, series["ours"], series["floor"]),
            "computed / fewest": computed / least,
        }
        yield _line(form, series["floor"], series["floor"])
        few = items[:rivals]
        ways: dict[str, Callable[[], Run]] = {}
        ways["ours"] = partial(
            answer_all, few, self.prompting, form.policy, self.cached.engine
        )
        for logprobs in (KIND, form.rival_logprobs):
            most = min(logprobs, self.uncached.engine.limits.vocab_size)
            loop = OfficialLoop(self.uncached.llm, self.prompting, form, most)
            ways[f"published loop, {logprobs:,} log-probabilities"] = partial(
                loop.answer_all, few
            )
        series = race(ways, self.repeats, self._prepare)
        for rival in series.values():
            yield _line(form, rival, series["ours"])

    def _prepare(self) -> None:
        self.cached.forget()
        gc.collect()


def _line(form: Form, series: Series, reference: Series) -> dict[str, Any]:
    """Return a line of the table; the time of a question is compared with that of the reference."""
    requests = max(1, series.work.requests)
    return {
        "form": form.name,
        "way": series.name,
        "questions": series.questions,
        "questions/s": series.speed,
        "seconds": median(series.seconds),
        "compared with": reference.name,
        "times its time": ratio(series, reference),
        "requests": series.work.requests,
        "prompt tokens": series.work.prompt_tokens / requests,
        "of these cached": series.work.cached_tokens / requests,
        "new tokens": series.work.generated_tokens / requests,
    }


def rescore(answers: Sequence[Answer]) -> dict[str, Any]:
    """Rank recorded answers under random weights in [0, 2], whose seed is fixed."""
    many = (list(answers) * RESCORED)[:RESCORED]
    weights = np.random.default_rng(0).uniform(0.0, 2.0, (SETTINGS, 3))
    start = time.perf_counter()
    sweep(many, weights)
    seconds = time.perf_counter() - start
    nodes = sum(len(answer.trace.nodes) for answer in many)
    return {
        "answers": RESCORED,
        "distinct": len(answers),
        "nodes": nodes,
        "settings": SETTINGS,
        "seconds": seconds,
    }


@command
def main(
    *,
    model: str = "demo",
    data: Path | None = None,
    out: Path | None = None,
    kv_gib: float | None = None,
    forms: list[str] = list(FORMS),  # noqa: B006 - of the command line alone
    questions: int = 64,
    passages: int = 5,
    rivals: int = 4,
    repeats: int = 3,
) -> None:
    """Print the table, and write it where it is asked for.

    Args:
        model: checkpoint directory, hub name or `demo`.
        data: rows with instruction and passages; else made from the demo corpus.
        out: JSON file with everything measured.
        kv_gib: memory for keys and values of each of the two engines.
        forms: short or long; repeatable, both by default.
        questions: of ours and the floor.
        passages: of each question.
        rivals: questions of the rivals.
        repeats: rounds.
    """
    say = progress()
    read = demo_items if data is None else partial(read_items, data)
    items = read(questions, passages)
    path = str(resolve_model(model))
    options = {"max_logprobs": LONG.rival_logprobs}
    config = VLLMConfig(path, kv_cache_gib=kv_gib, engine_args=options)
    say("loading with and without prefix caching")
    cached = serve(config)
    uncached = serve(replace(config, enable_prefix_caching=False))
    bench = Bench(cached, uncached, prompting_of(path), repeats)
    lines: list[dict[str, Any]] = []
    for form in chosen_forms(forms):
        for line in bench.measure(form.with_passages(passages), items, rivals):
            speed = f"{line['questions/s']:.3g} questions/s"
            say(f"{line['form']}: {line['way']}, {speed}")
            lines.append(line)
    report = {
        "machine": machine(),
        "engine": cached.settings(),
        "lines": lines,
        "rescoring": rescore(bench.answers),
    }
    cached.engine.close()
    uncached.engine.close()
    print(results_table(lines))
    for name in ("rescoring", "machine", "engine"):
        print(f"{name}: {report[name]}\n")
    if out:
        write_json(out, report)


if __name__ == "__main__":
    main()
