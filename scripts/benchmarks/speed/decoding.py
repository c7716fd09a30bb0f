"""The benchmark of decoding: growth, each form, rescoring; and its report as Markdown."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from scripts.benchmarks.speed.official import Published
from scripts.benchmarks.speed.rivals import CutAfterwards, Dictionaries, OfficialLoop, Recording, replay
from scripts.benchmarks.speed.timing import (
    Ratio,
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
from scripts.benchmarks.speed.workload import FORMS, LONG, SHORT, Form, FormSizes, Item, Sizes
from selfrag.common.errors import EngineError
from selfrag.common.provenance import machine
from selfrag.decoding.answer import Answer
from selfrag.decoding.sweep import sweep
from selfrag.engines.vllm import VLLMConfig
from selfrag.evaluation.tables import aligned
from selfrag.prompting import Prompting


def memory_gib(*, peak: bool) -> float:
    """Resident memory of this process now, or the most since it started.

    `getrusage` is not asked: on Linux its peak is carried over from the process that started this one.
    """
    field = "VmHWM" if peak else "VmRSS"
    status = Path("/proc/self/status")
    if not status.exists():
        return float("nan")
    kib = next(line for line in status.read_text().splitlines() if line.startswith(field)).split()[1]
    return int(kib) / 2**20


@dataclass(frozen=True, slots=True)
class Cell:
    """Cost of one size."""

    questions: int  # answered in one run
    passages: int  # of each question
    seconds: float  # wall time, loading left out
    questions_a_second: float  # of this run
    tokens: int  # prompt and new tokens, cached ones included
    loaded_gib: float  # resident memory once the model is loaded and has answered one question
    peak_gib: float  # most resident memory


def grow(config: VLLMConfig, form: Form, items: Sequence[Item], sizes: Sequence[tuple[int, int]]) -> Iterator[Cell]:
    """Measure every (questions, passages) of `sizes`, one after the other.

    Raises:
        EngineError: a process died, most likely for want of memory; names the size.
    """
    for questions, passages in sizes:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            job = pool.submit(_measure, config, form.with_passages(passages), tuple(items[:questions]))
            try:
                yield job.result()
            except BrokenProcessPool as error:
                raise EngineError(
                    f"the run of {questions} questions x {passages} passages died; is memory full?"
                ) from error


def _measure(config: VLLMConfig, form: Form, items: tuple[Item, ...]) -> Cell:
    served, prompting = serve(config), prompting_of(config.model)
    answer_all(items[:1], prompting, form.policy, served.engine)
    loaded = memory_gib(peak=False)
    served.forget()
    run = answer_all(items, prompting, form.policy, served.engine)
    peak = memory_gib(peak=True)
    served.engine.close()
    return Cell(
        questions=len(items),
        passages=form.policy.passages,
        seconds=run.seconds,
        questions_a_second=run.speed,
        tokens=run.work.prompt_tokens + run.work.generated_tokens,
        loaded_gib=loaded,
        peak_gib=peak,
    )


@dataclass(frozen=True, slots=True)
class FormReport:
    """Everything measured in one form."""

    form: str  # `short`, `long` or `overview`
    segments: float  # of an answer, on average
    ours: Series  # on all questions
    floor: Series  # the same requests in one call
    over_floor: Ratio  # time of ours over that of the floor
    least_tokens: int  # fewest prompt tokens that ours could compute
    rivals: tuple[Series, ...]  # ours, the faithful and the kind rival on the same few questions
    # name of a rival to its time over ours, on the same few questions and per question against all of ours
    faster: dict[str, tuple[Ratio, float]]
    ablations: tuple[Series, ...]  # ours and ours without one choice, on the same questions
    slower: dict[str, Ratio]  # name of an ablation to its time over ours
    same_text: dict[str, float]  # name of an ablation to the share of its answers that equal ours


@dataclass(frozen=True, slots=True)
class Rescoring:
    """Time to re-rank recorded answers."""

    answers: int  # how many
    recorded: int  # distinct ones among them; the others repeat these
    nodes: int  # candidates in all their traces
    settings: int  # weight settings
    seconds: float  # for all answers under all settings


@dataclass(frozen=True, slots=True)
class Report:
    """The benchmark's result; `dataclasses.asdict` makes it JSON."""

    machine: dict[str, Any]
    engine: dict[str, Any]
    sizes: Sizes
    forms: tuple[FormReport, ...]
    rescoring: Rescoring
    growth: tuple[Cell, ...]


KIND = 20
"""Log-probabilities of the kind rival: what vLLM gives without being asked to raise its limit."""
ABLATED = 5_000
"""Log-probabilities in the ablation that reads dictionaries; 32,000 would not fit in memory for a whole batch."""


@dataclass(slots=True)
class Bench:
    """Two loaded models and the questions."""

    model: str  # directory of the checkpoint
    cached: Served
    plain: Served
    prompting: Prompting
    items: Sequence[Item]
    say: Callable[[str], None]
    official: Path | None = None  # clone of the published code

    def measure(self, form: Form, sizes: FormSizes) -> tuple[FormReport, list[Answer]]:
        """One form: floor, rivals, ablations; and our recorded answers."""
        items = form.ask(self.items)
        for served in (self.cached, self.plain):  # the first steps of an engine are slow
            answer_all(items[:2], self.prompting, form.policy, served.engine)
        self.say(f"{form.name}: ours against the floor, {sizes.questions} questions, {sizes.repeats} rounds")
        pair, least, answers = self._floor(form, items[: sizes.questions], sizes.repeats)
        self.say(f"{form.name}: rivals, {sizes.rivals} questions, {sizes.rounds} rounds")
        rivals = self._rivals(form, items[: sizes.rivals], sizes.rounds)
        self.say(f"{form.name}: ablations, {sizes.ablated} questions, {sizes.rounds} rounds")
        ablations = self._ablations(form, items[: sizes.ablated], sizes.rounds)
        ours, floor = pair["ours"], pair["floor"]
        report = FormReport(
            form=form.name,
            ours=ours,
            floor=floor,
            over_floor=ratio(ours, floor),
            least_tokens=least,
            rivals=tuple(rivals.values()),
            faster={
                name: (ratio(series, rivals["ours"]), ours.speed / series.speed)
                for name, series in rivals.items()
                if name != "ours"
            },
            ablations=tuple(ablations.values()),
            slower={n: ratio(series, ablations["ours"]) for n, series in ablations.items() if n != "ours"},
            segments=sum(len(answer.segments) for answer in answers) / len(answers),
            same_text={n: _same_text(series, ablations["ours"]) for n, series in ablations.items() if n != "ours"},
        )
        return report, answers

    def _ours(self, form: Form, items: Sequence[Item]) -> Run:
        return answer_all(items, self.prompting, form.policy, self.cached.engine)

    def _floor(self, form: Form, items: Sequence[Item], repeats: int) -> tuple[dict[str, Series], int, list[Answer]]:
        recording = Recording(self.cached.engine)
        answers: list[Answer] = []

        def ours() -> Run:
            recording.requests.clear()
            run = answer_all(items, self.prompting, form.policy, recording)
            answers[:] = run.answers
            return run

        def floor() -> Run:
            seconds, generated = replay(self.cached.llm, recording.requests)
            prompts = sum(len(request.prompt_ids) for request in recording.requests)
            work = Work(len(generated), prompts, 0, sum(generated))
            return Run(seconds, ("",) * len(items), work)

        pair = race({"ours": ours, "floor": floor}, repeats, self._prepare)
        return pair, least_tokens(request.prompt_ids for request in recording.requests), answers

    def _rivals(self, form: Form, items: Sequence[Item], rounds: int) -> dict[str, Series]:
        vocabulary = self.plain.engine.limits.vocab_size
        loops = {
            "faithful rival": OfficialLoop(self.plain.llm, self.prompting, form, min(form.rival_logprobs, vocabulary)),
            "kind rival": OfficialLoop(self.plain.llm, self.prompting, form, min(KIND, vocabulary)),
        }
        ways: dict[str, Callable[[], Run]] = {"ours": partial(self._ours, form, items)}
        if self.official is not None:
            published = Published(self.official, self.model, self.plain.llm, form)
            ways["published functions"] = partial(published.answer_all, items)
        ways |= {name: partial(loop.answer_all, items) for name, loop in loops.items()}
        return race(ways, rounds, self._prepare)

    def _ablations(self, form: Form, items: Sequence[Item], rounds: int) -> dict[str, Series]:
        core, vocabulary = self.cached.llm.llm_engine, self.cached.engine.limits.vocab_size
        run = partial(answer_all, items, self.prompting, form.policy)
        ways: dict[str, Callable[[], Run]] = {
            "ours": partial(run, self.cached.engine),
            "one question at a time": partial(run, self.cached.engine, max_live=1),
            "watched ids as dictionaries": partial(run, Dictionaries(core, None)),
            f"{KIND} most probable ids as dictionaries": partial(run, Dictionaries(core, min(KIND, vocabulary))),
            f"{ABLATED:,} most probable ids as dictionaries": partial(
                run, Dictionaries(core, min(ABLATED, vocabulary))
            ),
            "cut at the segment afterwards": partial(run, CutAfterwards(self.cached.engine)),
            "no prefix caching": partial(run, self.plain.engine),
        }
        return race(ways, rounds, self._prepare)

    def _prepare(self) -> None:
        self.cached.forget()
        gc.collect()


def _same_text(one: Series, other: Series) -> float:
    return sum(a == b for a, b in zip(one.texts, other.texts, strict=True)) / len(one.texts)


def benchmark(
    config: VLLMConfig, items: Sequence[Item], sizes: Sizes, say: Callable[[str], None], official: Path | None = None
) -> Report:
    """Measure everything.

    Args:
        config: the model; `config.model` must be a checkpoint directory.
        items: at least `sizes.items` questions and passages of each.
        sizes: how much of everything.
        say: told what is measured next.
        official: clone of the published code, whose functions are one more rival.

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
    bench = Bench(config.model, cached, plain, prompting, items, say, official)
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


def markdown(report: Report) -> str:
    """The whole report."""
    parts = [_setting(report), *(_form(form) for form in report.forms), _rescoring(report), _growth(report.growth)]
    return "\n\n".join(part for part in parts if part)


def _setting(report: Report) -> str:
    where, engine = report.machine, report.engine
    packages = ", ".join(f"{name} {version}" for name, version in where["packages"].items())
    return "\n".join(
        (
            f"Machine: {where['processor']}, {where['cores']} cores, {where['memory_gib']} GiB, {where['system']},"
            f" GPU {where['gpu'] or 'none'}; {where['threads']} torch threads",
            f"Versions: Python {where['python']}, {packages}",
            "Engine: " + ", ".join(f"{name} {value}" for name, value in engine.items()),
            f"Work: {report.sizes.passages} passages a question; greedy; mode always; tokens are per request;"
            " prefix cache emptied before each run; times are medians",
        )
    )


def _form(form: FormReport) -> str:
    over = form.over_floor
    rows = [
        _row(form.ours, _ratio(over) + " x floor"),
        _row(form.floor, ""),
        *(_row(series, _rival(form, series.name)) for series in form.rivals),
        *(_row(series, _ablation(form, series.name)) for series in form.ablations),
    ]
    head = ("run", "questions", "questions/s", "seconds", "requests", "prompt", "cached", "new tokens", "comparison")
    computed = form.ours.work.prompt_tokens - form.ours.work.cached_tokens
    return (
        f"### {form.form} form, {form.segments:.1f} segments an answer\n\n{aligned(head, rows)}\n\n{computed:,} prompt"
        f" tokens computed by ours, {computed / form.least_tokens:.2f} times the least ({form.least_tokens:,})"
    )


def _rival(form: FormReport, name: str) -> str:
    if name not in form.faster:
        return "same questions as the rivals"
    same, all_of_ours = form.faster[name]
    return f"ours is {_ratio(same)} times as fast; {all_of_ours:.1f} times with all questions"


def _ablation(form: FormReport, name: str) -> str:
    if name not in form.slower:
        return "same questions as the ablations"
    return f"takes {_ratio(form.slower[name])} times as long; same text {form.same_text[name]:.0%}"


def _row(series: Series, comparison: str) -> tuple[str, ...]:
    work, count = series.work, max(1, series.work.requests)
    return (
        series.name,
        str(series.questions),
        f"{series.speed:.3g}",
        f"{median(series.seconds):.2f} ({min(series.seconds):.2f}-{max(series.seconds):.2f})",
        str(work.requests),
        f"{work.prompt_tokens / count:.0f}",
        f"{work.cached_tokens / count:.0f}",
        f"{work.generated_tokens / count:.1f}",
        comparison,
    )


def _ratio(ratio: Ratio) -> str:
    return f"{ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})"


def _rescoring(report: Report) -> str:
    found = report.rescoring
    return (
        f"### Rescoring\n\n{found.answers} recorded answers ({found.recorded} distinct, {found.nodes} candidates) under"
        f" {found.settings} weight settings, without the model: {found.seconds:.2f} s"
    )


def _growth(cells: Sequence[Cell]) -> str:
    if not cells:
        return ""
    rows = [
        (
            str(cell.questions),
            str(cell.passages),
            f"{cell.seconds:.1f}",
            f"{cell.questions_a_second:.2f}",
            f"{cell.questions_a_second * cell.passages:.1f}",
            f"{cell.tokens / cell.seconds:,.0f}",
            f"{cell.loaded_gib:.2f}",
            f"{cell.peak_gib:.2f}",
        )
        for cell in cells
    ]
    head = ("questions", "passages", "seconds", "questions/s", "passages/s", "tokens/s", "GiB loaded", "GiB peak")
    return "### Growth (short form, one process each)\n\n" + aligned(head, rows)
