"""Expansion on every family at hand: tied and untied, byte-level BPE and sentencepiece, padded matrices."""

import pytest
import tiny
import torch

from selfrag.errors import UserError
from selfrag.reflection.labels import TOKENS
from selfrag.reflection.vocabulary import Vocabulary
from selfrag.tokenization import HFTextCodec
from selfrag.training.expansion import DESCRIPTIONS, FREQUENT, expand


def neox(tokenizer):
    """A GPT-NeoX with more rows than its tokenizer has tokens, as Pythia has it."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    config = GPTNeoXConfig(
        vocab_size=len(tokenizer) + 40,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=False,
    )
    return GPTNeoXForCausalLM(config)


def load(path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)


@pytest.fixture(params=["llama", "llama tied", "llama sentencepiece", "gpt2", "gpt2 untied", "neox padded"])
def base(request, tmp_path):
    """A model without reflection tokens, and its tokenizer."""
    match request.param.split():
        case ["neox", _]:
            tokenizer = tiny.byte_level_tokenizer(reflection=False)
            return neox(tokenizer), tokenizer
        case ["gpt2", *untied]:
            return load(tiny.save_gpt2(tmp_path / "m", reflection=False, tie=not untied))
        case ["llama", "sentencepiece"]:
            return load(tiny.save_llama(tmp_path / "m", family="sentencepiece", reflection=False))
        case ["llama", *tied]:
            return load(tiny.save_llama(tmp_path / "m", reflection=False, tie=bool(tied)))


def matrices(model):
    return model.get_input_embeddings().weight, model.get_output_embeddings().weight


def test_defect_26_any_tokenizer_family_gets_fifteen_single_ids(base):
    model, tokenizer = base
    before, old = len(tokenizer), [matrix.detach().clone() for matrix in matrices(model)]
    expansion = expand(model, tokenizer)

    assert expansion.token_ids == tuple(range(before, before + 15))
    assert expansion.added == TOKENS
    assert [tokenizer.encode(t, add_special_tokens=False) for t in TOKENS] == [[i] for i in expansion.token_ids]
    Vocabulary.from_tokenizer(tokenizer)
    assert set(expansion.token_ids) <= HFTextCodec(tokenizer).control_ids
    assert expansion.tied == (matrices(model)[0] is matrices(model)[1])
    for matrix, original in zip(matrices(model), old, strict=True):
        assert matrix.shape[0] == max(len(original), before + 15)
        assert torch.equal(matrix[:before], original[:before])
        rows = matrix[list(expansion.token_ids)]
        assert torch.isfinite(rows).all()
        assert len(torch.unique(rows, dim=0)) == 15


def test_a_row_is_its_description_moved_to_the_frequent_tokens(base):
    model, tokenizer = base
    expansion = expand(model, tokenizer)

    def mean(matrix, text):
        return matrix[sorted(set(tokenizer(text, add_special_tokens=False)["input_ids"]))].mean(0)

    for matrix in matrices(model):
        others = [i for i in range(len(matrix)) if i not in expansion.token_ids]
        row = expansion.token_ids[TOKENS.index("[Relevant]")]
        expected = mean(matrix, DESCRIPTIONS["[Relevant]"]) - matrix[others].mean(0) + mean(matrix, FREQUENT)
        torch.testing.assert_close(matrix[row], expected)


def test_an_expanded_model_is_left_as_it_is(base):
    model, tokenizer = base
    first = expand(model, tokenizer)
    weights = [matrix.detach().clone() for matrix in matrices(model)]
    second = expand(model, tokenizer)

    assert second.added == ()
    assert second.token_ids == first.token_ids
    assert all(torch.equal(a, b) for a, b in zip(matrices(model), weights, strict=True))


def test_only_missing_tokens_are_added(tmp_path):
    from transformers import AddedToken

    model, tokenizer = load(tiny.save_llama(tmp_path / "m", reflection=False))
    tokenizer.add_tokens([AddedToken("[Relevant]", special=True, normalized=False)], special_tokens=True)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    known = tokenizer.convert_tokens_to_ids("[Relevant]")
    row = matrices(model)[0][known].detach().clone()
    expansion = expand(model, tokenizer)

    assert expansion.token_ids[TOKENS.index("[Relevant]")] == known
    assert expansion.added == tuple(token for token in TOKENS if token != "[Relevant]")
    assert torch.equal(matrices(model)[0][known], row)


def test_a_model_without_output_layer_is_refused(tmp_path):
    model, tokenizer = load(tiny.save_llama(tmp_path / "m", reflection=False))
    with pytest.raises(UserError, match="LlamaModel has no output layer"):
        expand(model.model, tokenizer)


def test_a_tokenizer_of_another_model_is_refused(tmp_path):
    model, _ = load(tiny.save_llama(tmp_path / "m", reflection=False))
    larger = tiny.sentencepiece_tokenizer(reflection=False, vocab_size=600)
    model.resize_token_embeddings(300)
    with pytest.raises(UserError, match="do not belong together"):
        expand(model, larger)
