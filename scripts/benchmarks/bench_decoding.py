"""Measure decoding speed: `bench_decoding.py [--model DIR] [--data FILE.jsonl.gz] [--out REPORT.json]`.

Ours answers all questions. The floor gets the same requests in one call of the engine. On a few of the questions ours
meets the published loop, with 20 and with all of its log-probabilities.
At last the answers are ranked again under random weights, without the model. The table goes to the standard output,
progress to the error stream.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
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
    demo_items,
    read_items,
)
from scripts.command import command, progress
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
    times = ratio(series, reference)
    requests = max(1, series.work.requests)
    return {
        "form": form.name,
        "way": series.name,
        "questions": series.questions,
        "questions/s": series.speed,
        "seconds": median(series.seconds),
        "compared with": reference.name,
        "times its time": f"{times.median:.2f} ({times.low:.2f}-{times.high:.2f})",
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
def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--model", default="demo", help="checkpoint directory, hub name or `demo`"
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="rows with instruction and passages; else made from the demo corpus",
    )
    parser.add_argument("--out", type=Path, help="write everything measured as JSON")
    parser.add_argument(
        "--kv-gib",
        type=float,
        help="memory for keys and values of each of the two engines",
    )
    parser.add_argument(
        "--forms",
        nargs="+",
        choices=[form.name for form in FORMS],
        default=["short", "long"],
    )
    parser.add_argument(
        "--questions",
        type=int,
        default=64,
        help="of ours and the floor; default %(default)s",
    )
    parser.add_argument(
        "--passages", type=int, default=5, help="of each question; default %(default)s"
    )
    parser.add_argument(
        "--rivals",
        type=int,
        default=4,
        help="questions of the rivals; default %(default)s",
    )
    parser.add_argument(
        "--repeats", type=int, default=3, help="rounds; default %(default)s"
    )
    arguments = parser.parse_args()
    say = progress()
    if arguments.data is None:
        items = demo_items(arguments.questions, arguments.passages)
    else:
        items = read_items(arguments.data, arguments.questions, arguments.passages)
    model = str(resolve_model(arguments.model))
    options = {"max_logprobs": LONG.rival_logprobs}
    config = VLLMConfig(model, kv_cache_gib=arguments.kv_gib, engine_args=options)
    say("loading with and without prefix caching")
    cached = serve(config)
    uncached = serve(replace(config, enable_prefix_caching=False))
    bench = Bench(cached, uncached, prompting_of(model), arguments.repeats)
    lines: list[dict[str, Any]] = []
    for form in FORMS:
        if form.name in arguments.forms:
            for line in bench.measure(
                form.with_passages(arguments.passages), items, arguments.rivals
            ):
                say(
                    f"{line['form']}: {line['way']}, {line['questions/s']:.3g} questions/s"
                )
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
    print(
        f"Rescoring: {report['rescoring']}\n\nMachine: {report['machine']}\n\nEngine: {report['engine']}"
    )
    if arguments.out:
        arguments.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
