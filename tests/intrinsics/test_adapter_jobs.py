"""Whole jobs on a tiny chat model: adapters that engines serve, cards, resumption, activated LoRA, own answers."""

from dataclasses import replace

import pytest
import torch
from intrinsic_rows import MAKERS
from json_files import read_json, table
from refusals import refused

from selfrag.cli.main import main
from selfrag.engines.adapters import read_adapter, unsupported
from selfrag.intrinsics.catalog import AdapterCard
from selfrag.judges.rendering import Renderer
from selfrag.loading import load_training_tokenizer
from selfrag.training.intrinsics.certainty import (
    option_examples,
    own_answers,
    read_questions,
)
from selfrag.training.intrinsics.job import (
    ADAPTERS,
    AdapterJob,
    RowSelection,
    invocation_of,
    run,
    teachable,
)
from selfrag.training.journal import fingerprint
from selfrag.training.recipes import read_recipe
from selfrag.training.rows import MASKED
from selfrag.training.settings import Lora, Reach

SMALL = {
    "lora": Lora(4, 8),
    "reach": Reach(token_rows=False),
    "max_steps": 3,
    "max_length": 2000,
    "validate_steps": 2,
}


def job(name, data, base, out, **changes):
    config = replace(read_recipe("demo", ADAPTERS, name).config, **SMALL)
    return AdapterJob(
        name,
        data,
        base,
        out,
        config,
        RowSelection(held_out=0.2),
        recipe="demo",
        **changes,
    )


@pytest.mark.parametrize("name", MAKERS)
def test_each_intrinsic_trains_and_vllm_could_serve_it(
    name, data, chat_llama, tmp_path
):
    adapter_job = job(name, data, chat_llama, tmp_path / name)
    adapter = run(adapter_job)
    assert read_adapter(name, adapter).rank == 4
    card = AdapterCard.read(adapter)
    assert (card.intrinsic, card.dialect, card.rank, card.invocation) == (
        name,
        "chat",
        4,
        (),
    )
    card.check(teachable(name))
    manifest = read_json(adapter / "training.json")
    assert manifest["facts"]["held_out"] > 0
    assert "tiny-chat" in (adapter / "README.md").read_text()
    if name == "uncertainty":
        assert set(manifest["facts"]["own_accuracy"]) == {"x", "y"}
    before = (adapter / "adapter_model.safetensors").read_bytes()
    assert run(adapter_job) == adapter  # finished: nothing is trained again
    assert (adapter / "adapter_model.safetensors").read_bytes() == before


def test_a_job_may_begin_with_an_adapter_and_an_activated_one_says_what_switches_it_on(
    data, chat_llama, tmp_path
):
    first = run(job("answerability", data, chat_llama, tmp_path / "a", activated=True))
    renderer = Renderer.of(load_training_tokenizer(chat_llama))
    invocation = invocation_of(renderer)
    assert renderer.tokenizer.decode(list(invocation)) == "<|im_start|>assistant\n"
    config = read_json(first / "adapter_config.json")
    assert config["alora_invocation_tokens"] == list(invocation)
    assert AdapterCard.read(first).invocation == invocation
    assert "aLoRA" in (unsupported(config) or "")
    assert "activated LoRA" in (first / "README.md").read_text()
    assert "Begun with" not in (first / "README.md").read_text()
    second_job = job(
        "answerability", data, chat_llama, tmp_path / "b", start=first, activated=True
    )
    second, start = run(second_job), fingerprint(first / "adapter_model.safetensors")
    assert read_json(second / "training.json")["inputs"]["start"] == start
    assert (
        f"Begun with** an adapter, SHA-256 `{start}`"
        in (second / "README.md").read_text()
    )
    with refused("another"):
        run(replace(second_job, start=None))


def test_own_answers_are_the_base_models_and_are_kept(
    data, chat_llama, tmp_path, monkeypatch
):
    questions = read_questions(data / "uncertainty_train.jsonl")[:6]
    kept = tmp_path / "answers.jsonl"
    answers = own_answers(questions, chat_llama, kept)
    # Against transformers' own forward on each option alone.
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(chat_llama, dtype=torch.bfloat16)
    renderer = Renderer.of(load_training_tokenizer(chat_llama))
    for example, value in zip(
        option_examples(answers[0].question, renderer), answers[0].logprobs, strict=True
    ):
        with torch.no_grad():
            logprobs = (
                model(input_ids=torch.tensor([example.ids]))
                .logits[0]
                .float()
                .log_softmax(-1)
            )
        where = [at for at, label in enumerate(example.labels) if label != MASKED]
        expected = sum(float(logprobs[at - 1, example.ids[at]]) for at in where) / len(
            where
        )
        assert value == pytest.approx(expected, abs=0.05)  # bf16
    # the second time no model is loaded
    monkeypatch.setattr("selfrag.training.model.load_trainee", None)
    assert own_answers(questions, chat_llama, kept) == answers


def test_recipes_have_rows_of_each_intrinsic_and_a_file_goes_before_them(tmp_path):
    for name in MAKERS:
        reach = read_recipe("demo", ADAPTERS, name).config.reach
        assert (reach.token_rows, reach.last_layers) == (False, 16)
        paper = read_recipe("paper", ADAPTERS, name)
        assert paper.table("rows") == RowSelection()
    file = tmp_path / "mine.toml"
    rows = "[intrinsics.answerability.rows]\nmost_rows = 5\n"
    file.write_text(f'extends = "demo"\n[training]\nmax_length = 300\n{rows}')
    mine = read_recipe(file, ADAPTERS, "answerability")
    assert (mine.config.max_length, mine.table("rows").most_rows) == (300, 5)
    assert mine.name == "mine (extends intrinsics/demo)"
    assert read_recipe(file, ADAPTERS, "query_rewrite").table("rows").standalone == 0.5
    file.write_text("intrinsics = 3\n")
    with refused("'intrinsics' must be an object"):
        read_recipe(file, ADAPTERS, "answerability")


def test_the_command_says_what_it_would_take(data, chat_llama, tmp_path, capsys):
    command = f"train adapter answerability --base {chat_llama} --data {data}".split()
    assert main([*command, *f"--out {tmp_path}/a --dry-run".split()]) == 0
    assert "held out" in capsys.readouterr().out
    assert not (tmp_path / "a").exists()


REFUSED = """
answerabilty | unknown intrinsic
requirement_check --data x | no training rows are known for 'requirement_check'
answerability | give the rows
answerability --data x --processes 2 | --processes is for rows with reflection tokens
answerability --data x --recipe best | no recipe best: give a file or one of demo, paper
answerability --data x --set scale.micro_tokens=9 | tables: training, rows
rows.jsonl --seen x | --seen is for an intrinsic
"""


@pytest.mark.parametrize("arguments, said", table(REFUSED))
def test_what_does_not_go_together_is_one_line(
    arguments, said, chat_llama, tmp_path, refusal
):
    models = f"--base {chat_llama} --out {tmp_path}/o"
    assert said in refusal(f"selfrag train adapter {arguments} {models}")
