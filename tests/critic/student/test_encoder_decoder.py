"""A critic from an encoder-decoder: a tiny T5 of random weights learns labels as words, by the commands."""

import math
from functools import wraps

import pytest
import tiny
from json_files import write_records
from student_cases import asking, labelled

from critic.cli.main import main
from critic.student.judge import load_critic


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """Return the folder of a T5 of two layers, with the tokenizer of the tiny Llama."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    folder = tmp_path_factory.mktemp("t5")
    tokenizer = tiny.byte_level_tokenizer(reflection=False)
    tokenizer.pad_token = tokenizer.eos_token
    shape = {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
    config = T5Config(
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
        dropout_rate=0.0,
        **shape,
    )
    torch.manual_seed(0)
    T5ForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.engine
def test_an_encoder_decoder_learns_the_labels_and_gives_their_probabilities(
    base, tmp_path, capsys
):
    learned = [asking(f"{row.label}?", row) for row in labelled(each=1)]
    write_records(tmp_path / "rows.jsonl", learned)
    settings = {
        "training.max_steps": 110,
        "training.step_rows": 14,
        "training.learning_rate": 0.005,
        "critic.limits.evidence": 24,
    }
    words = ["train", tmp_path / "rows.jsonl", "--base", base, "-o", tmp_path / "run"]
    words += [f"--set={name}={value}" for name, value in settings.items()]
    for _ in range(2):  # the second one finds the checkpoint
        assert main([str(word) for word in words]) == 0
        assert "model: trained" in capsys.readouterr().out
    with load_critic(tmp_path / "run/model") as critic:
        judgments = critic.judge(learned)
        alone = critic.judge([learned[5]])[0]
        assert critic.shortened([learned[0]]) == 1  # its passage
    assert [judgment.label for judgment in judgments] == [row.label for row in learned]
    assert all(
        math.fsum(judgment.distribution) == pytest.approx(1) for judgment in judgments
    )
    # Padding beside longer prompts changes nothing.
    assert alone.distribution == pytest.approx(judgments[5].distribution, abs=1e-4)


@pytest.mark.engine
def test_a_step_has_exactly_its_rows(base, tmp_path, monkeypatch):
    """13 rows in steps of 10, two epochs: a pass is a step of 10 and one of 3."""
    from transformers import T5ForConditionalGeneration, TrainerCallback

    rows, steps, forward = 0, [], T5ForConditionalGeneration.forward

    @wraps(forward)
    def counted(model, *args, **inputs):
        nonlocal rows
        rows += len(inputs["labels"])
        return forward(model, *args, **inputs)

    def step(self, *args, **inputs):
        steps.append(rows)

    monkeypatch.setattr(T5ForConditionalGeneration, "forward", counted)
    monkeypatch.setattr(TrainerCallback, "on_step_end", step)
    write_records(tmp_path / "rows.jsonl", labelled(each=1))
    words = f"train {tmp_path}/rows.jsonl --base {base} -o {tmp_path}/run"
    words += " --set=training.epochs=2 --set=training.step_rows=10"
    assert main(words.split()) == 0
    assert list(dict.fromkeys(steps)) == [10, 13, 23, 26]


@pytest.mark.engine
def test_what_encoder_decoders_cannot_do_is_refused_in_a_line(base, tmp_path, refusal):
    write_records(tmp_path / "rows.jsonl", labelled(each=1))
    train = f"critic train {tmp_path}/rows.jsonl --base {base} -o {tmp_path}/run"
    assert "causal models" in refusal(f"{train} --dry-run")
    assert "held_out" in refusal(f"{train} --set=training.held_out=0.2")
