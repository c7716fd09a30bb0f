"""Libraries that run a model on a CPU without torch, beside the engine onnx: `bench_candidates.py FOLDER`.

FOLDER holds the demo's model in the formats of the libraries: `ct2-float32` and `ct2-int8` by the converter of
ctranslate2, `genai-fp32` by the builder of onnxruntime-genai. OpenVINO reads the graph of the engine onnx. All run on
one thread. Differences are of the probabilities of reflection tokens behind each prompt, to onnx in float32.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from scripts.benchmarks.measure import Report
from scripts.benchmarks.workload import demo_items
from scripts.command import command
from selfrag.engines import load_engine
from selfrag.extensions.onnx.checkpoint import read_facts
from selfrag.extensions.onnx.engine import GRAPH, converted
from selfrag.loading import load_tokenizer, resolve_model
from selfrag.prompting import Prompting
from selfrag.reflection.requests import Generate

Ids = Sequence[int]
NEW = 64
"""Tokens that are written after a prompt."""


@command
def main(folder: Path, *, prompts: int = 16, out: Path | None = None) -> None:
    """Print a line for each library and number format.

    Args:
        folder: the model in other formats.
        prompts: how many.
        out: JSON file with everything measured.
    """
    report = Report(out)
    path = resolve_model("demo")
    tokenizer = load_tokenizer(path)
    prompting = Prompting.from_tokenizer(tokenizer)
    texts = []
    for item in demo_items(prompts, 1):
        start = prompting.prompt(item.instruction)
        texts.append([*start, *prompting.evidence(item.passages[0], 300).ids])
    watched = list(prompting.vocabulary.watch)
    loads: dict[str, Callable[[], Any]] = {
        "onnx, float32": partial(Onnx, path, "float32"),
        "onnx, int8": partial(Onnx, path, "int8"),
        "ctranslate2, float32": partial(CTranslate2, folder / "ct2-float32", tokenizer),
        "ctranslate2, int8": partial(CTranslate2, folder / "ct2-int8", tokenizer),
        "onnxruntime-genai, float32": partial(GenAI, folder / "genai-fp32"),
        "openvino, float32": partial(OpenVino, path),
    }
    tokens = sum(map(len, texts))
    expected = None
    for name, load in loads.items():
        with closing(load()) as model:
            model.probabilities(texts[0], watched)  # the first is slow
            start_s = time.process_time()
            values = np.stack([model.probabilities(ids, watched) for ids in texts])
            prompt_s = time.process_time() - start_s
            start_s = time.process_time()
            written = sum(model.write(ids) for ids in texts[:4])
            write_s = time.process_time() - start_s
        expected = values if expected is None else expected
        write_s -= prompt_s * sum(map(len, texts[:4])) / tokens
        report.add(
            engine=name,
            prompts=len(texts),
            tokens=tokens,
            prompt_tokens_per_second=tokens / prompt_s,
            new=written,
            new_tokens_per_second=written / write_s,
            largest=float(np.abs(values - expected).max()),
        )
    report.print()


def softmax(logits: Any) -> Any:
    """Return probabilities."""
    values = np.asarray(logits, float).ravel()
    values = np.exp(values - values.max())
    return values / values.sum()


class Onnx:
    """The engine of this package."""

    def __init__(self, path: Path, dtype: str) -> None:
        options: dict[str, Any] = {"threads": 1, "prefix_cache_mib": 0}
        self._engine = load_engine("onnx", path, dtype=dtype, **options)

    def _answer(self, request: Generate) -> Any:
        self._engine.submit(request)
        while not (results := self._engine.step()):
            pass
        return results[0][1]

    def probabilities(self, ids: Ids, watched: Ids) -> Any:
        """Return those of the next id."""
        result = self._answer(Generate(tuple(ids), 1, watch_ids=tuple(watched)))
        return np.exp(np.array(result.watched[0], float))

    def write(self, ids: Ids) -> int:
        """Write on, and return how many tokens."""
        return len(self._answer(Generate(tuple(ids), NEW)).token_ids)

    def close(self) -> None:
        """Free it."""
        self._engine.close()


class CTranslate2:
    """A converted model."""

    def __init__(self, folder: Path, tokenizer: Any) -> None:
        import ctranslate2

        self._tokenizer = tokenizer
        self._model = ctranslate2.Generator(
            str(folder), inter_threads=1, intra_threads=1
        )

    def _run(self, ids: Ids, count: int, **options: Any) -> Any:
        texts = [self._tokenizer.convert_ids_to_tokens(i) for i in ids]
        settings = {"include_prompt_in_result": False, "sampling_topk": 1, **options}
        (result,) = self._model.generate_batch([texts], max_length=count, **settings)
        return result

    def probabilities(self, ids: Ids, watched: Ids) -> Any:
        """Return those of the next id."""
        result = self._run(ids, 1, return_logits_vocab=True)
        return softmax(np.array(result.logits[0][0]))[list(watched)]

    def write(self, ids: Ids) -> int:
        """Write on, and return how many tokens."""
        return len(self._run(ids, NEW, min_length=NEW).sequences_ids[0])

    def close(self) -> None:
        """Free it."""
        self._model.unload_model()


class GenAI:
    """A folder of onnxruntime-genai, on one thread."""

    def __init__(self, folder: Path) -> None:
        import onnxruntime_genai

        file = folder / "genai_config.json"
        config = json.loads(file.read_text())
        config["model"]["decoder"]["session_options"]["intra_op_num_threads"] = 1
        file.write_text(json.dumps(config))
        self._library = onnxruntime_genai
        self._model: Any = onnxruntime_genai.Model(str(folder))

    def _begun(self, ids: Ids) -> Any:
        settings = self._library.GeneratorParams(self._model)
        settings.set_search_options(max_length=2048, do_sample=False)
        generator = self._library.Generator(self._model, settings)
        generator.append_tokens(np.array(ids, np.int32))
        return generator

    def probabilities(self, ids: Ids, watched: Ids) -> Any:
        """Return those of the next id."""
        return softmax(self._begun(ids).get_logits())[list(watched)]

    def write(self, ids: Ids) -> int:
        """Write on, and return how many tokens."""
        generator, count = self._begun(ids), 0
        while count < NEW and not generator.is_done():
            generator.generate_next_token()
            count += 1
        return count

    def close(self) -> None:
        """Free it."""
        self._model = None


class OpenVino:
    """The graph of the engine onnx."""

    def __init__(self, path: Path) -> None:
        import openvino

        facts = read_facts(path)
        graph = converted(path, facts, "float32") / GRAPH
        core = openvino.Core()
        options = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
        self._model: Any = core.compile_model(str(graph), "CPU", options)
        self._room = 512

    def _step(self, ids: Ids, before: int, arrays: dict[str, Any]) -> Any:
        total = before + len(ids)
        feeds = {
            "ids": np.array([ids], np.int64),
            "last": np.array([total - 1], np.int32),
            "total": np.array(total, np.int32),
            "pick": np.array([len(ids) - 1], np.int64),
            **arrays,
        }
        return self._model(feeds)

    def _arrays(self) -> dict[str, Any]:
        arrays = {}
        for port in self._model.inputs:
            name = port.any_name
            if name.startswith(("key_", "value_")):
                shape = port.partial_shape
                heads, size = shape[1].get_length(), shape[3].get_length()
                arrays[name] = np.zeros((1, heads, self._room, size), np.float32)
        return arrays

    def probabilities(self, ids: Ids, watched: Ids) -> Any:
        """Return those of the next id."""
        return np.exp(self._step(ids, 0, self._arrays())["logprobs"][0])[list(watched)]

    def write(self, ids: Ids) -> int:
        """Write on, and return how many tokens."""
        arrays, before, part = self._arrays(), 0, list(ids)
        for _ in range(NEW):
            results = self._step(part, before, arrays)
            before += len(part)
            part = [int(results["logprobs"][0].argmax())]
            arrays = {name: results[f"new_{name}"] for name in arrays}
        return NEW

    def close(self) -> None:
        """Free it."""
        self._model = None


if __name__ == "__main__":
    main()
