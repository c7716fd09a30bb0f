"""The fast forwards give PEFT's numbers and gradients; packed rows do not see each other; new rows train."""

import pytest
import tiny
import torch
from lettered import row
from torch.nn.functional import cross_entropy
from trained import EVERY_TOKEN, ROWS

from selfrag.errors import UserError
from selfrag.training.expansion import expand
from selfrag.training.lora import fuse
from selfrag.training.model import load_trainee, with_adapter
from selfrag.training.packing import pack, register_attention
from selfrag.training.run import layout_for
from selfrag.training.settings import Lora, TrainingConfig, Weighting

KINDS = ["llama", "llama tied", "llama sentencepiece", "gpt2", "gpt2 untied"]


@pytest.fixture(params=KINDS)
def base_dir(request, tmp_path):
    match request.param.split():
        case ["gpt2", *untied]:
            return tiny.save_gpt2(tmp_path / "base", reflection=False, tie=not untied)
        case ["llama", "sentencepiece"]:
            return tiny.save_llama(tmp_path / "base", family="sentencepiece", reflection=False)
        case ["llama", *tied]:
            return tiny.save_llama(tmp_path / "base", reflection=False, tie=bool(tied))


def packed(trainee_tokenizer, rows):
    layout = layout_for(trainee_tokenizer, TrainingConfig())
    return pack([layout.example(one) for one in rows], Weighting())


def test_fused_layers_give_the_numbers_and_gradients_of_peft(base_dir):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    def adapted():
        torch.manual_seed(1)
        model = AutoModelForCausalLM.from_pretrained(base_dir, attn_implementation=register_attention())
        tokenizer = AutoTokenizer.from_pretrained(base_dir)
        expansion = expand(model, tokenizer)
        result = with_adapter(model, expansion, Lora(4, 8))
        for name, parameter in result.named_parameters():
            if "lora_B" in name:  # zero at the start, which would hide half of the gradient
                torch.nn.init.normal_(parameter, std=0.05)
        return result, tokenizer

    def outcome(model, load):
        causal = model.get_base_model()
        hidden = causal.base_model(
            input_ids=load.ids, position_ids=load.positions, row_lengths=load.row_lengths, use_cache=False
        )[0][0]
        logits = causal.get_output_embeddings()(hidden[load.predictors])
        trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
        gradients = torch.autograd.grad(cross_entropy(logits, load.targets), list(trained.values()))
        return logits.detach(), dict(zip(trained, gradients, strict=True))

    plain, tokenizer = adapted()
    load = packed(tokenizer, ROWS)
    expected_logits, expected = outcome(plain, load)
    quick, _ = adapted()
    fuse(quick)
    logits, gradients = outcome(quick, load)

    torch.testing.assert_close(logits, expected_logits, rtol=1e-4, atol=1e-4)
    assert gradients.keys() == expected.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(
            gradient, expected[name], rtol=1e-3, atol=5e-5, msg=lambda text, n=name: f"{n}: {text}"
        )


def test_packed_rows_do_not_see_each_other(base_dir):
    trainee = load_trainee(base_dir, lora=Lora(4, 8), dtype=torch.float32)
    together, _ = trainee.losses(packed(trainee.tokenizer, ROWS))
    apart = torch.cat([trainee.losses(packed(trainee.tokenizer, [one]))[0] for one in ROWS])
    torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", ["lora", "full"])
def test_losses_are_those_of_the_plain_model(base_dir, method):
    """Before the first step: with transformers' own attention and logits at every position."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    trainee = load_trainee(base_dir, method=method, dtype=torch.float32)
    load = packed(trainee.tokenizer, [EVERY_TOKEN])
    losses, hits = trainee.losses(load)

    model = AutoModelForCausalLM.from_pretrained(base_dir, dtype=torch.float32)
    expand(model, AutoTokenizer.from_pretrained(base_dir))
    logits = model(input_ids=load.ids).logits[0, load.predictors]
    torch.testing.assert_close(losses, cross_entropy(logits, load.targets, reduction="none"), rtol=1e-4, atol=1e-4)
    assert torch.equal(hits, logits.argmax(-1) == load.targets)


def test_defect_25_one_lora_step_moves_all_input_and_output_rows(base_dir):
    trainee = load_trainee(base_dir, lora=Lora(4, 8))
    before = {name: rows.detach().clone() for name, rows in trainee.rows.items()}
    losses, _ = trainee.losses(packed(trainee.tokenizer, [EVERY_TOKEN]))
    losses.mean().backward()
    torch.optim.AdamW(trainee.rows.values(), lr=1e-3).step()

    assert len(before) == (1 if trainee.expansion.tied else 2)
    for name, rows in trainee.rows.items():
        assert rows.shape[0] == 15
        assert (rows.detach() != before[name]).any(dim=1).all(), name


def test_a_row_without_reflection_tokens_leaves_the_frozen_rows_alone(tmp_path):
    trainee = load_trainee(tiny.save_llama(tmp_path / "base", reflection=False), lora=Lora(4, 8))
    frozen = trainee.fused.tokens[0].weight.clone()
    losses, _ = trainee.losses(packed(trainee.tokenizer, [row("Hello!")]))
    losses.mean().backward()
    torch.optim.AdamW(trainee.parameters.values(), lr=1e-2).step()
    trainee.refresh()
    assert torch.equal(trainee.fused.tokens[0].weight, frozen)


def test_a_directory_without_model_is_refused(tmp_path):
    with pytest.raises(UserError, match="holds no causal language model"):
        load_trainee(tmp_path)
