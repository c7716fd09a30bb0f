"""How cost grows with questions and passages: each cell of the table in a process of its own, for its peak memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context

from selfrag.engines.vllm_config import VLLMConfig
from selfrag.errors import EngineError
from selfrag.evaluation.machine import memory_gib
from selfrag.experiments.speed.run import answer_all
from selfrag.experiments.speed.served import prompting_of, serve
from selfrag.experiments.speed.workload import Form, Item


@dataclass(frozen=True, slots=True)
class Cell:
    """Cost of one size.

    Attributes:
        questions: answered in one run.
        passages: of each question.
        seconds: wall time, loading left out.
        questions_a_second: of this run.
        tokens: prompt and new tokens, cached ones included.
        loaded_gib: resident memory once the model is loaded and has answered one question.
        peak_gib: most resident memory.
    """

    questions: int
    passages: int
    seconds: float
    questions_a_second: float
    tokens: int
    loaded_gib: float
    peak_gib: float


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
