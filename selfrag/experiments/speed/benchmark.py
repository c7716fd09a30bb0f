"""The whole benchmark in its order: growth, then each form, then rescoring. Prints nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle, islice

import numpy as np

from selfrag.decoding.answer import Answer
from selfrag.decoding.rescore import sweep
from selfrag.engines.vllm_config import VLLMConfig
from selfrag.evaluation.machine import machine
from selfrag.experiments.speed.forms import Bench
from selfrag.experiments.speed.growth import grow
from selfrag.experiments.speed.results import FormReport, Report, Rescoring
from selfrag.experiments.speed.served import prompting_of, serve
from selfrag.experiments.speed.sizes import Sizes
from selfrag.experiments.speed.workload import FORMS, LONG, SHORT, Item


def benchmark(config: VLLMConfig, items: Sequence[Item], sizes: Sizes, say: Callable[[str], None]) -> Report:
    """Measure everything.

    Args:
        config: the model; `config.model` must be a checkpoint directory.
        items: at least `sizes.items` questions and passages of each.
        sizes: how much of everything.
        say: told what is measured next.

    Raises:
        UserError: the model cannot be loaded, or a question fails.
    """
    cells = []
    for size in sizes.growth:
        say(f"growth: {size[0]} questions x {size[1]} passages")
        cells += list(grow(config, SHORT, items, [size]))
    prompting = prompting_of(config.model)
    say("loading with and without prefix caching")
    roomy = replace(config, engine_args={**config.engine_args, "max_logprobs": LONG.rival_logprobs})
    cached, plain = serve(roomy), serve(replace(roomy, enable_prefix_caching=False))
    bench = Bench(cached, plain, prompting, items, say)
    forms: list[FormReport] = []
    answers: list[Answer] = []
    for form in FORMS:
        if form.name in sizes.forms:
            report, answers = bench.measure(form.with_passages(sizes.passages), sizes.forms[form.name])
            forms.append(report)
    say("rescoring the answers of the last form")
    rescoring = _rescore(answers, sizes)
    settings = cached.settings()
    cached.engine.close()
    plain.engine.close()
    return Report(machine(), settings, sizes, tuple(forms), rescoring, tuple(cells))


def _rescore(answers: Sequence[Answer], sizes: Sizes) -> Rescoring:
    """Random weights in [0, 2], the seed fixed."""
    many = list(islice(cycle(answers), sizes.rescored))
    weights = np.random.default_rng(0).uniform(0.0, 2.0, (sizes.settings, 3))
    start = time.perf_counter()
    sweep(many, weights)
    seconds = time.perf_counter() - start
    nodes = sum(len(answer.trace.nodes) for answer in many)
    return Rescoring(len(many), min(len(answers), len(many)), nodes, sizes.settings, seconds)
