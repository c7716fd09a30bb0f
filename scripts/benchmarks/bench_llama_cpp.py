"""llama.cpp beside the engine onnx, prompt by prompt on one thread: `bench_llama_cpp.py FILE.gguf`.

It needs the package cyllama, which gives llama.cpp's batches and logits to Python. The prompts are those of answers to
questions about the demo corpus. Differences are of the probabilities of reflection tokens behind each prompt, to those
of onnx in float32.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scripts.benchmarks.measure import Report
from scripts.benchmarks.workload import demo_items
from scripts.command import command
from selfrag.engines import load_engine
from selfrag.engines.base import Engine
from selfrag.loading import load_tokenizer, resolve_model
from selfrag.prompting import Prompting
from selfrag.reflection.requests import Failed, Generate

Ids = Sequence[int]
Array = NDArray[np.float64]


@command
def main(file: Path, *, prompts: int = 32, out: Path | None = None) -> None:
    """Print a line for each engine.

    Args:
        file: GGUF file of a model with reflection tokens.
        prompts: how many.
        out: JSON file with everything measured.
    """
    report = Report(out)
    path = resolve_model(file)
    tokenizer = load_tokenizer(path)
    prompting = Prompting.from_tokenizer(tokenizer)
    texts = []
    for item in demo_items(prompts, 1):
        start = prompting.prompt(item.instruction)
        texts.append([*start, *prompting.evidence(item.passages[0], 300).ids])
    watched = prompting.vocabulary.watch
    options: dict[str, Any] = {"threads": 1, "prefix_cache_mib": 0}
    runs = []
    size = len(tokenizer)
    for dtype in ("float32", "int8"):
        with closing(load_engine("onnx", path, dtype=dtype, **options)) as engine:
            run = timed(partial(probabilities, engine, watched), texts)
        runs.append((f"onnx, {dtype}", *run))
    runs.append(
        (f"llama.cpp, {file.name}", *timed(LlamaCpp(file, size, watched), texts))
    )
    _, _, expected = runs[0]
    tokens = sum(map(len, texts))
    for name, seconds, values in runs:
        report.add(
            engine=name,
            prompts=len(texts),
            tokens=tokens,
            processor=seconds,
            per_second=tokens / seconds,
            largest=float(np.abs(values - expected).max()),
        )
    report.print()


def timed(run: Callable[[Ids], Array], texts: Sequence[Ids]) -> tuple[float, Array]:
    """Return the processor time of all prompts, and the probabilities [prompts, watched]."""
    run(texts[0])  # the first is slow
    start = time.process_time()
    values = np.stack([run(ids) for ids in texts])
    return time.process_time() - start, values


def probabilities(engine: Engine, watched: Ids, ids: Ids) -> Array:
    """Return probabilities of the next id by an engine of ours."""
    engine.submit(Generate(tuple(ids), 1, watch_ids=tuple(watched)))
    while not (results := engine.step()):
        pass
    _, result = results[0]
    if isinstance(result, Failed):
        raise RuntimeError(result)
    values: Array = np.exp(np.array(result.watched[0], float))
    return values


class LlamaCpp:
    """A GGUF file under llama.cpp."""

    def __init__(self, file: Path, vocabulary: int, watched: Ids) -> None:
        from cyllama.llama import llama_cpp

        self._library: Any = llama_cpp
        settings = llama_cpp.LlamaContextParams()
        settings.n_ctx = settings.n_batch = settings.n_ubatch = 2048
        settings.n_threads = settings.n_threads_batch = 1
        # version 0.2.18 reads an attribute that its class does not have
        kind = type("Model", (llama_cpp.LlamaModel,), {"n_vocab": vocabulary})
        self._model = kind(str(file), verbose=False)
        self._context = llama_cpp.LlamaContext(self._model, settings, verbose=False)
        self._watched = list(watched)

    def __call__(self, ids: Ids) -> Array:
        """Return probabilities of the next id."""
        self._context.kv_cache_clear()
        batch = self._library.LlamaBatch(n_tokens=len(ids), embd=0, n_seq_max=1)
        for place, token_id in enumerate(ids):
            batch.add(token_id, place, [0], place == len(ids) - 1)
        self._context.decode(batch)
        logits = np.array(self._context.get_logits_ith(-1), float)
        logits -= logits.max()
        values: Array = np.exp(logits) / np.exp(logits).sum()
        return values[self._watched]


if __name__ == "__main__":
    main()
