"""How much faster are many questions together than one at a time? `bench_methods.py --data hotpot_dev.jsonl`.

Methods of adaptive retrieval on one engine; each search gets the passages of its question. Each way has a new engine,
so that no prompt is cached from the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from operator import eq
from pathlib import Path

from scripts.benchmarks.measure import Report
from scripts.benchmarks.workload import Item, items_of
from scripts.command import command
from selfrag.common.checks import parse_settings
from selfrag.common.errors import UserError
from selfrag.demo import base_path
from selfrag.engines import load_engine
from selfrag.engines.base import Engine
from selfrag.extensions.adaptive.reader import QuestionWork
from selfrag.extensions.adaptive.system import METHODS, AdaptiveSystem
from selfrag.judges.chat_model import model_of
from selfrag.loading import load_tokenizer, resolve_model
from selfrag.reflection.requests import Usage
from selfrag.runtime import QuestionAnswered, QuestionFailed, drive


def answer_all(
    system: AdaptiveSystem, items: Sequence[Item], load: Callable[[], Engine], live: int
) -> tuple[list[str], dict[str, float]]:
    """Return the answers, and what they took.

    Raises:
        UserError: a question failed; a benchmark must not go faster by failing.
    """
    loaded = load()
    works = [
        QuestionWork(item.instruction, system.reader, evidence=item.passages)
        for item in items
    ]
    start, processor = time.perf_counter(), time.process_time()
    texts = [""] * len(items)
    usage = Usage()
    decoders = map(system.method.decoder, works)
    for event in drive(decoders, loaded, None, max_live=live):
        if isinstance(event, QuestionFailed):
            raise UserError(f"{items[event.index].instruction!r}: {event.error}")
        if isinstance(event, QuestionAnswered):
            texts[event.index] = event.answer.text
            usage += event.answer.usage
    spent = {
        "seconds": time.perf_counter() - start,
        "CPU": time.process_time() - processor,
        "computed prompt tokens": usage.prompt_tokens - usage.cached_tokens,
        "new tokens": usage.generated_tokens,
    }
    loaded.close()
    return texts, spent


@command
def main(
    *,
    method: list[str] = ["flare", "ircot"],  # noqa: B006 - of the command line alone
    engine: str = "onnx",
    engine_set: list[str] = [],  # noqa: B006 - of the command line alone
    model: str | None = None,
    data: Path | None = None,
    questions: int = 64,
    passages: int = 5,
    out: Path | None = None,
) -> None:
    """Print a line for each method and way, and what one at a time takes in proportion.

    Args:
        method: name of a method; repeatable.
        engine: name of an engine.
        engine_set: its settings, KEY=VALUE; by default dtype=float32; repeatable.
        model: checkpoint directory, hub name or `demo`; by default the demo's base model.
        data: rows with instruction and passages; else made from the demo corpus.
        questions: to answer.
        passages: of each question.
        out: JSON file with everything measured.
    """
    report = Report(out)
    path = base_path() if model is None else resolve_model(model)
    reader = model_of(load_tokenizer(path), path)
    items = items_of(data, questions, passages)
    settings = {"dtype": "float32"} | parse_settings(engine_set, "--engine-set")
    load = partial(load_engine, engine, path, **settings)
    entries = {entry.name: entry for entry in METHODS}
    for name in method:
        system = entries[name].system(reader, {"passages": passages})
        ways = []
        for live in (questions, 1):
            work = partial(answer_all, system, items, load, live)
            # in a thread of its own: vLLM pins the main thread to one core of a CPU
            with ThreadPoolExecutor(1) as thread:
                ways.append(thread.submit(work).result())
            report.add(method=name, live=live, **ways[-1][1])
        (together, fast), (alone, slow) = ways
        ratios = {what: slow[what] / fast[what] for what in fast}
        equal = sum(map(eq, together, alone))
        report.add(method=name, live="ratio", **ratios, equal=equal)
    report.print()


if __name__ == "__main__":
    main()
