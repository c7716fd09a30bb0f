"""Any base family: losses and gradients are the plain model's and PEFT's, rows move, the export is what was trained."""

import pytest
import torch
from families import FAMILIES, MIXING, save_base
from json_files import read_json
from refusals import refused
from torch.nn.functional import cross_entropy
from trained import EVERY_TOKEN, ROWS, config, train, write

from selfrag.reflection.labels import TOKENS
from selfrag.training.expansion import expand
from selfrag.training.export import merge, save_adapter
from selfrag.training.lora import fuse
from selfrag.training.model import load_trainee, with_adapter
from selfrag.training.packing import PACKED, pack, packed_attention, register_attention
from selfrag.training.run import layout_for
from selfrag.training.settings import Lora, Weighting


def packed(tokenizer, rows):
    layout = layout_for(tokenizer, config())
    return pack([layout.example(one) for one in rows], Weighting())


def plain(base, **options):
    """Expanded by the same code, with nothing of ours in its layers."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32, **options)
    tokenizer = AutoTokenizer.from_pretrained(base)
    return model, tokenizer, expand(model, tokenizer)


def assert_as_plain(base, method, *, rowwise):
    trainee = load_trainee(
        base, config(method=method, lora=Lora(4, 8), precision="fp32", seed=0)
    )
    assert trainee.rowwise is rowwise
    losses, hits = trainee.losses(packed(trainee.tokenizer, ROWS))
    model, tokenizer, _ = plain(base, attn_implementation="eager")
    loads = [packed(tokenizer, [row]) for row in ROWS]
    logits = torch.cat(
        [model(input_ids=load.ids).logits[0, load.predictors] for load in loads]
    )
    targets = torch.cat([load.targets for load in loads])
    torch.testing.assert_close(
        losses, cross_entropy(logits, targets, reduction="none"), rtol=1e-4, atol=1e-4
    )
    assert torch.equal(hits, logits.argmax(-1) == targets)


@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_losses_are_those_of_the_plain_model_row_by_row(
    tmp_path, family, method
):
    """Windows of 24 tokens are shorter than the rows, so a row that saw another, or too much of itself, would show."""
    assert_as_plain(save_base(tmp_path / "base", family), method, rowwise=False)


@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize("family", MIXING)
def test_a_model_that_would_mix_packed_rows_gets_them_one_by_one(
    tmp_path, family, method
):
    """And the manifest says so."""
    base = save_base(tmp_path / "base", family)
    assert_as_plain(base, method, rowwise=True)
    train(
        write(tmp_path / "rows.jsonl"),
        base,
        tmp_path / "run",
        config(max_steps=1, method=method),
    )
    assert read_json(tmp_path / "run/manifest.json")["facts"]["packed"] is False


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_fused_layers_give_the_numbers_and_gradients_of_peft(tmp_path, family):
    base = save_base(tmp_path / "base", family)

    def adapted():
        torch.manual_seed(1)
        model, tokenizer, expansion = plain(
            base, attn_implementation=register_attention()
        )
        result = with_adapter(model, expansion, Lora(4, 8))
        for name, parameter in result.named_parameters():
            # zero at the start, which would hide half of the gradient
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.05)
        return result, tokenizer

    def outcome(model, load):
        causal = model.get_base_model()
        hidden = causal.base_model(
            input_ids=load.ids,
            position_ids=load.positions,
            row_lengths=load.row_lengths,
            use_cache=False,
        )[0][0]
        logits = causal.get_output_embeddings()(hidden[load.predictors])
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        gradients = torch.autograd.grad(
            cross_entropy(logits, load.targets), list(trained.values())
        )
        return logits.detach(), dict(zip(trained, gradients, strict=True))

    peft, tokenizer = adapted()
    load = packed(tokenizer, ROWS)
    expected_logits, expected = outcome(peft, load)
    quick, _ = adapted()
    fuse(quick)
    logits, gradients = outcome(quick, load)

    torch.testing.assert_close(logits, expected_logits, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(gradients, expected, rtol=1e-3, atol=5e-5)


@pytest.mark.parametrize("family", ["llama tied", "gpt2 untied", "gemma3"])
def test_defect_25_a_lora_run_moves_all_rows_and_its_merge_is_the_trained_model(
    tmp_path, family
):
    from transformers import AutoModelForCausalLM

    base = save_base(tmp_path / "base", family)
    trainee = train(
        write(tmp_path / "rows.jsonl"),
        base,
        tmp_path / "run",
        config(max_steps=2, learning_rate=5e-3),
    )
    start = load_trainee(base, config(lora=Lora(4, 8), seed=3))
    assert len(trainee.rows) == (1 if trainee.expansion.tied else 2)
    for name, rows in trainee.rows.items():
        assert rows.shape[0] == len(TOKENS)
        assert (rows.detach() != start.rows[name].detach()).any(dim=1).all(), name

    merged = merge(
        base, save_adapter(trainee, tmp_path / "adapter"), tmp_path / "merged"
    )
    model = AutoModelForCausalLM.from_pretrained(merged, attn_implementation=PACKED)
    load = packed(trainee.tokenizer, [EVERY_TOKEN])
    logits = model(
        input_ids=load.ids,
        position_ids=load.positions,
        row_lengths=load.row_lengths,
        use_cache=False,
    ).logits[0, load.predictors]
    found = cross_entropy(logits.float(), load.targets, reduction="none")
    torch.testing.assert_close(
        found, trainee.losses(load)[0].detach(), rtol=0.03, atol=0.1
    )


def test_models_that_cannot_be_trained_are_one_line(tmp_path):
    with refused(r"MambaForCausalLM .*'full'"):
        load_trainee(save_base(tmp_path / "base", "mamba"), config())
    with refused("holds no causal language model"):
        load_trainee(tmp_path, config())
    states = torch.zeros(1, 1, 3, 4)
    with refused("s_aux"):
        packed_attention(
            torch.nn.Identity(),
            states,
            states,
            states,
            None,
            row_lengths=[3],
            s_aux=states,
        )
