"""Any base family: packed losses are the plain model's, reflection rows move, the export is what was trained."""

import json

import pytest
import torch
from families import FAMILIES, MIXING, save_base
from torch.nn.functional import cross_entropy
from trained import EVERY_TOKEN, ROWS, config, write

from selfrag.errors import UserError
from selfrag.reflection.labels import TOKENS
from selfrag.training.expansion import expand
from selfrag.training.export import merge, save_adapter
from selfrag.training.model import load_trainee
from selfrag.training.packing import PACKED, pack, packed_attention
from selfrag.training.run import layout_for, train
from selfrag.training.settings import Lora, Weighting


@pytest.fixture(params=FAMILIES)
def base(request, tmp_path):
    return save_base(tmp_path / "base", request.param)


def packed(tokenizer, rows):
    layout = layout_for(tokenizer, config())
    return pack([layout.example(one) for one in rows], Weighting())


@pytest.mark.parametrize("method", ["lora", "full"])
def test_packed_losses_are_those_of_the_plain_model_row_by_row(base, method):
    """Windows of 24 tokens are shorter than the rows, so a row that saw another, or too much of itself, would show."""
    assert_as_plain(base, method, rowwise=False)


@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize("family", MIXING)
def test_a_model_that_would_mix_packed_rows_gets_them_one_by_one(tmp_path, family, method):
    assert_as_plain(save_base(tmp_path / "base", family), method, rowwise=True)


def test_a_model_that_mixes_rows_is_trained_and_the_manifest_says_how(tmp_path):
    base = save_base(tmp_path / "base", "bloom")
    train(write(tmp_path / "rows.jsonl"), base, tmp_path / "run", config(max_steps=1))
    assert json.loads((tmp_path / "run" / "manifest.json").read_text())["facts"]["packed"] is False


def test_a_model_that_peft_does_not_know_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"PEFT has no LoRA for MambaForCausalLM .* train with method 'full'"):
        load_trainee(save_base(tmp_path / "base", "mamba"))


def assert_as_plain(base, method, *, rowwise):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    trainee = load_trainee(base, method=method, lora=Lora(4, 8), dtype=torch.float32)
    assert trainee.rowwise is rowwise
    losses, _ = trainee.losses(packed(trainee.tokenizer, ROWS))

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, attn_implementation="eager")
    tokenizer = AutoTokenizer.from_pretrained(base)
    expand(model, tokenizer)
    expected = []
    for row in ROWS:
        load = packed(tokenizer, [row])
        logits = model(input_ids=load.ids).logits[0, load.predictors]
        expected.append(cross_entropy(logits, load.targets, reduction="none"))
    torch.testing.assert_close(losses, torch.cat(expected), rtol=1e-4, atol=1e-4)


def test_a_lora_run_moves_all_rows_and_its_merge_is_the_trained_model(base, tmp_path):
    from transformers import AutoModelForCausalLM

    trainee = train(write(tmp_path / "rows.jsonl"), base, tmp_path / "run", config(max_steps=2, learning_rate=5e-3))
    start = load_trainee(base, lora=Lora(4, 8), seed=3)
    for name, rows in trainee.rows.items():
        assert rows.shape[0] == len(TOKENS)
        assert (rows.detach() != start.rows[name].detach()).any(dim=1).all(), name

    merged = merge(base, save_adapter(trainee, tmp_path / "adapter"), tmp_path / "merged")
    model = AutoModelForCausalLM.from_pretrained(merged, attn_implementation=PACKED)
    load = packed(trainee.tokenizer, [EVERY_TOKEN])
    logits = model(
        input_ids=load.ids, position_ids=load.positions, row_lengths=load.row_lengths, use_cache=False
    ).logits[0, load.predictors]
    found = cross_entropy(logits.float(), load.targets, reduction="none")
    torch.testing.assert_close(found, trainee.losses(load)[0].detach(), rtol=0.03, atol=0.1)


def test_sinks_and_biases_are_refused_rather_than_left_out():
    states = torch.zeros(1, 1, 3, 4)
    with pytest.raises(UserError, match="needs s_aux, which packed attention has not"):
        packed_attention(torch.nn.Identity(), states, states, states, None, row_lengths=[3], s_aux=states)


@pytest.mark.parametrize("kind", ["byte_level", "sentencepiece"])
def test_a_tokenizer_that_splits_a_reflection_token_is_refused(tmp_path, kind):
    """The token is in the vocabulary, but its own text does not lead to it."""
    import tiny
    from transformers import AutoModelForCausalLM, AutoTokenizer

    base = tiny.save_llama(tmp_path / "base", family=kind, reflection=False)
    settings = json.loads((base / "tokenizer.json").read_text())
    vocabulary = settings["model"]["vocab"]
    vocabulary["[Relevant]"] = max(vocabulary.values()) + 1  # no merge makes it
    (base / "tokenizer.json").write_text(json.dumps(settings))
    tokenizer = AutoTokenizer.from_pretrained(base)
    model = AutoModelForCausalLM.from_pretrained(base)
    model.resize_token_embeddings(len(tokenizer))
    with pytest.raises(UserError, match=r"splits '\[Relevant\]' into \["):
        expand(model, tokenizer)
