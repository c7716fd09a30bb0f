"""Measure number formats: `bench_dtype.py [--cpu here avx512 avx2] [--what vllm transformers training encoder]`.

Each format in a process of its own, on this CPU as it is and as one without bfloat16 instructions (`avx512`) or without
AVX-512 (`avx2`): torch and oneDNN are held back by their variables, vLLM takes its kernels for such a machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

CPUS = {
    "here": {},
    "avx512": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"},
    "avx2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
}
FORMATS = ("bfloat16", "float32", "auto")


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--cpu", nargs="+", choices=CPUS, default=list(CPUS))
    parser.add_argument("--what", nargs="+", choices=MEASURED, default=list(MEASURED))
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS))
    parser.add_argument("--questions", type=int, default=6, help="of five passages each")
    parser.add_argument("--repeats", type=int, default=1, help="processes for each format, in turn; the best counts")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        what, cpu, dtype = given.one
        hold_back_vllm(cpu)
        print(json.dumps(MEASURED[what](dtype, given.questions)))
        return 0
    print("| what | CPU | bfloat16 | float32 | auto | auto is | auto / better |")
    print("|---|---|---:|---:|---:|---|---:|")
    for what in given.what:
        for cpu in given.cpu:
            rates: dict[str, float] = {}
            chosen = ""
            for dtype in given.formats * given.repeats:
                rate, found = child(what, cpu, dtype, given.questions)
                rates[dtype] = max(rate, rates.get(dtype, 0.0))
                chosen = found if dtype == "auto" else chosen
            fixed = max((rate for dtype, rate in rates.items() if dtype != "auto"), default=float("nan"))
            cells = [f"{rates[dtype]:.3g}" if dtype in rates else "" for dtype in FORMATS]
            share = f"{rates['auto'] / fixed:.2f}" if "auto" in rates else ""
            print("|", " | ".join([what, cpu, *cells, chosen, share]), "|", flush=True)
    return 0


def child(what: str, cpu: str, dtype: str, questions: int) -> tuple[float, str]:
    """Rate and format of one measurement in a process of its own."""
    command = [sys.executable, __file__, "--questions", str(questions), "--one", what, cpu, dtype]
    environment = {**os.environ, **CPUS[cpu]}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        sys.exit(f"{what} in {dtype} on {cpu}: {done.stderr[-2000:]}")
    rate, chosen = json.loads(done.stdout.splitlines()[-1])
    return rate, chosen


def hold_back_vllm(cpu: str) -> None:
    """Let vLLM take the kernels of another CPU: it goes by these two functions, not by variables."""
    if cpu != "here":
        import torch

        torch.cpu._is_avx512_bf16_supported = lambda: False
        if cpu == "avx2":
            torch.cpu._is_avx512_supported = lambda: False


def questions_a_second(engine: str) -> Callable[[str, int], tuple[float, str]]:
    """Short answers of the demo model under an engine."""

    def measure(dtype: str, questions: int) -> tuple[float, str]:
        from selfrag import SelfRAG
        from selfrag.common.pretrained import number_format
        from selfrag.loading import resolve_model
        from speed.workload import SHORT, demo_items

        items = demo_items(questions + 1, 5)
        with SelfRAG.from_pretrained("demo", engine=engine, dtype=dtype, max_model_len=2048) as rag:
            rag.generate(items[-1].question, evidence=items[-1].passages[:1], decoding=SHORT.policy)
            start = time.perf_counter()
            asked, evidence = [item.question for item in items[:-1]], [item.passages for item in items[:-1]]
            rag.generate(asked, evidence=evidence, decoding=SHORT.policy)
            seconds = time.perf_counter() - start
        return questions / seconds, number_format(dtype, resolve_model("demo"), "cpu").name

    return measure


def training_steps_a_second(dtype: str, questions: int) -> tuple[float, str]:
    """LoRA steps of 1,200 tokens on the demo's base model, the first left out."""
    from selfrag.demo import base_path
    from selfrag.training.rows import Example, Group
    from selfrag.training.run import Prepared, fit
    from selfrag.training.settings import TrainingConfig

    draw = np.random.default_rng(0)
    rows = [tuple(int(one) for one in draw.integers(100, 40_000, 300)) for _ in range(12)]
    examples = [Example(row, row, (int(Group.TEXT),) * len(row)) for row in rows]
    precision = {"bfloat16": "bf16", "float32": "fp32"}.get(dtype, dtype)
    config = TrainingConfig(max_steps=3, step_tokens=1200, precision=precision)  # type: ignore[arg-type]
    with tempfile.TemporaryDirectory() as folder:
        fit(lambda tokenizer: Prepared(examples, ["row"] * len(rows), {}), base_path(), Path(folder), config)
        records = [json.loads(line) for line in (Path(folder) / "log.jsonl").read_text().splitlines()]
        chosen = json.loads((Path(folder) / "manifest.json").read_text())["config"]["precision"]
    return 1 / min(record["seconds"] for record in records[1:]), chosen


def texts_a_second(dtype: str, questions: int) -> tuple[float, str]:
    """Passages that the demo's encoder encodes; `auto` is what it does, float32 on every machine."""
    import torch

    from retrieval.encoders import TransformerEncoder
    from selfrag.demo import encoder_path
    from speed.workload import demo_items

    texts = [passage.text for item in demo_items(questions * 8, 5) for passage in item.passages]
    encoder = TransformerEncoder(encoder_path())
    if dtype == "bfloat16":
        encoder._model.to(torch.bfloat16)
    encoder.encode(texts[:8])
    start = time.perf_counter()
    encoder.encode(texts)
    return len(texts) / (time.perf_counter() - start), "float32"


MEASURED: dict[str, Callable[[str, int], tuple[float, str]]] = {
    "vllm": questions_a_second("vllm"),
    "transformers": questions_a_second("transformers"),
    "training": training_steps_a_second,
    "encoder": texts_a_second,
}
"""Questions, steps or texts a second, by what is measured."""


if __name__ == "__main__":
    sys.exit(main())
