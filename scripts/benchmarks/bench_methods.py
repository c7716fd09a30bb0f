"""How much faster are many questions together than one at a time? `bench_methods.py --data hotpot_dev.jsonl`.

Methods of adaptive retrieval on one engine; each search gets the passages of its question. Each way has a new engine,
so that no prompt is cached from the other.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from scripts.benchmarks.measure import Report
from scripts.benchmarks.workload import Item, items_of
from scripts.command import command
from selfrag.common.errors import UserError
from selfrag.demo import base_path
from selfrag.engines import load_engine
from selfrag.extensions.adaptive.reader import QuestionWork
from selfrag.extensions.adaptive.system import METHODS, AdaptiveSystem
from selfrag.judges.chat_model import model_of
from selfrag.loading import load_tokenizer, resolve_model
from selfrag.runtime import QuestionAnswered, QuestionFailed, drive


def answer_all(
    system: AdaptiveSystem, items: Sequence[Item], engine: str, path: Path, live: int
) -> tuple[list[str], float, float]:
    """Return the answers, and the seconds and processor seconds that they took.

    Raises:
        UserError: a question failed; a benchmark must not go faster by failing.
    """
    loaded = load_engine(engine, path, dtype="float32")
    works = [
        QuestionWork(item.instruction, system.reader, evidence=item.passages)
        for item in items
    ]
    start, processor = time.perf_counter(), time.process_time()
    texts = [""] * len(items)
    decoders = map(system.method.decoder, works)
    for event in drive(decoders, loaded, None, max_live=live):
        if isinstance(event, QuestionFailed):
            raise UserError(f"{items[event.index].instruction!r}: {event.error}")
        if isinstance(event, QuestionAnswered):
            texts[event.index] = event.answer.text
    seconds = time.perf_counter() - start
    processor = time.process_time() - processor
    loaded.close()
    return texts, seconds, processor


@command
def main(
    *,
    method: list[str] = ["flare", "ircot"],  # noqa: B006 - of the command line alone
    engine: str = "onnx",
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
    entries = {entry.name: entry for entry in METHODS}
    for name in method:
        system = entries[name].system(reader, {"passages": passages})
        times: dict[int, tuple[float, float]] = {}
        answers: dict[int, list[str]] = {}
        for live in (questions, 1):
            work = partial(answer_all, system, items, engine, path, live)
            # in a thread of its own: vLLM pins the main thread to one core of a CPU
            with ThreadPoolExecutor(1) as thread:
                answers[live], *spent = thread.submit(work).result()
            times[live] = (spent[0], spent[1])
            report.add(method=name, together=live, seconds=spent[0], CPU=spent[1])
        pairs = zip(answers[1], answers[questions], strict=True)
        report.add(
            method=name,
            together="ratio",
            seconds=times[1][0] / times[questions][0],
            CPU=times[1][1] / times[questions][1],
            equal=sum(alone == together for alone, together in pairs),
        )
    report.print()


if __name__ == "__main__":
    main()
