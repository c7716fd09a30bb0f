"""The GPU benchmark: a model in parts, steps that survive each other, rivals that do the same work."""

import hashlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from json_files import read_json
from refusals import refused

from retrieval.passage import Passage
from scripts.benchmarks import gpu, models
from scripts.benchmarks.models import fill_cache
from scripts.benchmarks.questions import FixedLength
from scripts.benchmarks.report import StepResult, as_markdown
from scripts.benchmarks.speed.generate import TransformersLLM
from scripts.benchmarks.speed.training import rows_from
from scripts.benchmarks.speed.workload import Item
from selfrag.common.jsonl import write_jsonl
from selfrag.demo import BASE_MODEL, asset_path
from selfrag.engines.scripted import ScriptedEngine, ScriptedReply
from selfrag.engines.transformers import TransformersConfig, TransformersEngine
from selfrag.loading import load_tokenizer
from selfrag.reflection.requests import Finish, Generate, ask
from selfrag.runtime import finish
from selfrag.training.rows import write_rows

PROGRAM = Path(gpu.__file__)


@pytest.fixture
def items(tmp_path):
    """Questions with five passages each."""
    words = [
        "rivers",
        "carry",
        "sand",
        "to",
        "the",
        "sea",
        "and",
        "leave",
        "it",
        "where",
        "water",
        "slows",
    ]
    rows = []
    for number in range(10):
        text = " ".join(words[number % 5 :] + words[: number % 7])
        passages = [
            {
                "id": f"p{number}-{k}",
                "title": f"T{k}",
                "text": f"{text} {k}. More of it.",
            }
            for k in range(5)
        ]
        rows.append(
            {
                "instruction": f"What is known about {words[number]}?",
                "passages": passages,
            }
        )
    write_jsonl(tmp_path / "items.jsonl", rows)
    return tmp_path / "items.jsonl"


def run(*arguments):
    command = [sys.executable, str(PROGRAM), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_cache_takes_only_the_pinned_model(tmp_path, monkeypatch):
    monkeypatch.setenv("SELFRAG_CACHE", str(tmp_path / "cache"))
    parts = tmp_path / "parts"
    parts.mkdir()
    for name, content in (("xab", b" other"), ("xaa", b"GGUF")):
        (parts / name).write_bytes(content)
    with refused("split the right file"):
        fill_cache(parts)
    assert not list((tmp_path / "cache").rglob("*.gguf"))
    [name] = BASE_MODEL.files
    joined = replace(
        BASE_MODEL, files={name: hashlib.sha256(b"GGUF other").hexdigest()}
    )
    monkeypatch.setattr(models, "BASE_MODEL", joined)
    fill_cache(parts)
    assert (asset_path(joined) / name).read_bytes() == b"GGUF other"


@pytest.mark.parametrize(
    "names, limits, said",
    [
        ("parity,weight", [], "unknown 'weight'; known: environment, weights"),
        ("", ["parity"], "write STEP=SECONDS"),
        ("", ["parity=-1"], "write STEP=SECONDS"),
        ("", ["parity=nan"], "write STEP=SECONDS"),
        ("", ["nothing=1"], "'nothing=1': write STEP=SECONDS"),
    ],
)
def test_wrong_steps_and_limits_are_refused(names, limits, said):
    with refused(said):
        gpu.chosen_steps(names, limits)


def test_a_report_has_a_table_a_step_and_survives_any_text():
    result = StepResult(
        "a",
        "A | b",
        ("note",),
        "failed",
        "x | y\n<b>",
        5.0,
        2.0,
        [{"n": 1.23456, "s": "|"}, {"t": 2}],
    )
    text = as_markdown([result, StepResult("b", "B", ())])
    assert "| a | failed | 2 | 5 | x \\| y &lt;b> |" in text
    assert "| n | s | t |\n| --- | --- | --- |\n| 1.235 | \\| |  |\n|  |  | 2 |" in text
    assert "## B" not in text


@pytest.mark.engine
def test_each_step_survives_the_others(items, tmp_path):
    """One has no time at all, one is stopped, one fails; what comes after them runs."""
    empty = tmp_path / "rows"
    empty.mkdir()
    steps = "environment,weights,parity,retraining,vllm-demo"
    limits = ["environment=120", "weights=0", "parity=1.5", "vllm-demo=0.1"]
    arguments = ["--steps", steps, *(f"--limit={limit}" for limit in limits)]
    done = run(
        "run",
        "--tiny",
        "--items",
        items,
        "--out",
        tmp_path / "out",
        "--rows",
        empty,
        *arguments,
    )
    assert done.returncode == 1
    ended = {
        step["name"]: step for step in read_json(tmp_path / "out" / "gpu.json")["steps"]
    }
    assert {name: step["status"] for name, step in ended.items()} == {
        "environment": "done",
        "weights": "skipped",
        "parity": "stopped",
        "vllm-demo": "skipped",
        "retraining": "failed",
    }
    assert "no rows.jsonl and no rows.jsonl.gz" in ended["retraining"]["reason"]
    assert "retrain_demo" in " ".join(ended["retraining"]["log"])
    assert ended["environment"]["log"] == []
    assert (tmp_path / "out" / "gpu.md").read_text() in done.stdout


def test_a_bad_items_file_is_one_line(tmp_path):
    write_jsonl(tmp_path / "few.jsonl", [{"instruction": "q", "passages": []}] * 3)
    for name, said in (
        ("few", "holds 3 questions; at least 8 are needed"),
        ("none", "none.jsonl"),
    ):
        done = run(
            "run", "--items", tmp_path / f"{name}.jsonl", "--out", tmp_path / "out"
        )
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert said in done.stderr


@pytest.mark.slow
@pytest.mark.engine
def test_all_steps_run_on_a_cpu_with_tiny_models(items, tmp_path):
    rows = tmp_path / "rows"
    rows.mkdir()
    questions = [
        Item(f"What {number}?", (Passage("p", "Sand. To the sea.", "Rivers"),))
        for number in range(300)
    ]
    made = list(rows_from(questions))
    write_rows(rows / "rows.jsonl", made[:-20])
    write_rows(rows / "heldout.jsonl", made[-20:])
    limits = [f"--limit={step.name}=300" for step in gpu.STEPS]
    done = run(
        "run",
        "--tiny",
        "--items",
        items,
        "--out",
        tmp_path / "out",
        "--rows",
        rows,
        "--seconds",
        900,
        *limits,
    )
    ended = {
        step["name"]: step for step in read_json(tmp_path / "out" / "gpu.json")["steps"]
    }
    statuses = {
        name: (step["status"], step["reason"])
        for name, step in ended.items()
        if step["status"] != "done"
    }
    assert set(statuses) <= {"vllm-demo", "vllm-7b"}, statuses
    assert all(status == "skipped" for status, _ in statuses.values()), statuses
    assert done.returncode == 0
    long = [step for step in ended["questions-7b"]["results"] if step["form"] == "long"]
    # 5, and twice 5 for each of the two kept
    assert {step["requests/question"] for step in long} == {25.0}
    assert {step["new tokens/question"] for step in long} == {150.0}
    assert [step["step"] for step in ended["retraining"]["results"]] == [2, 4]


@pytest.mark.engine
def test_the_rival_on_transformers_writes_what_the_engine_writes(tiny_llama):
    tokenizer = load_tokenizer(tiny_llama)
    prompts = [
        tokenizer(text)["input_ids"]
        for text in ("Who?", "The capital of France is Paris, and")
    ]
    watch = (5, 300)
    engine = TransformersEngine.load(
        TransformersConfig(str(tiny_llama), dtype="float32", device="cpu")
    )
    module = engine._live_model.module
    expected = finish(
        ask([Generate(tuple(ids), 8, watch_ids=watch) for ids in prompts]), engine
    )
    llm = TransformersLLM(module, tokenizer, (tokenizer.eos_token_id,))
    params = SimpleNamespace(max_tokens=8, logprobs=10_000, skip_special_tokens=False)
    outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts], params)
    for ids, output, result in zip(prompts, outputs, expected, strict=True):
        (completion,) = output.outputs
        assert output.prompt_token_ids == ids
        assert completion.token_ids == list(result.token_ids)
        assert completion.cumulative_logprob == pytest.approx(
            sum(result.token_logprobs), abs=1e-4
        )
        row = [float(completion.logprobs[-1][token]) for token in watch]
        assert row == pytest.approx(result.watched[-1].tolist(), abs=1e-4)
        assert completion.logprobs[0][watch[0]].exp() == pytest.approx(
            torch.tensor(row[0]).exp().item(), abs=1
        )
    llm.ending = 399
    assert [
        output.outputs[0].token_ids[-1] for output in llm.generate(["Who?"], params)
    ] == [399]


def test_a_fixed_length_ends_nowhere_but_at_its_budget():
    engine = FixedLength(
        ScriptedEngine(lambda request: ScriptedReply((7, 9, 8, 7, 6)), 2), ending=99
    )
    ticket = engine.submit(Generate((1, 2), 3, stop_ids=(9,)))
    [(done, result)] = engine.step()
    assert (done, result.token_ids, result.finish) == (ticket, (7, 9, 99), Finish.STOP)
