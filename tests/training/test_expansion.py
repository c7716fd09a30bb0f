"""Expansion on every family at hand: tied and untied, byte-level BPE and sentencepiece, padded matrices."""

import pytest
import torch
from families import save_base
from json_files import read_json, write_json
from refusals import refused

from selfrag.reflection.labels import TOKENS
from selfrag.reflection.vocabulary import Vocabulary
from selfrag.tokenization import HFTextCodec
from selfrag.training.expansion import DESCRIPTIONS, FREQUENT, expand


def load(path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(
        path
    )


@pytest.fixture(params="llama tied|llama sentencepiece|gpt2 untied|neox".split("|"))
def base(request, tmp_path):
    """A model without reflection tokens, and its tokenizer."""
    return load(save_base(tmp_path / "m", request.param))


def matrices(model):
    return model.get_input_embeddings().weight, model.get_output_embeddings().weight


def test_defect_26_any_tokenizer_family_gets_fifteen_single_ids(base):
    """A row is its description moved to the frequent tokens; expanded again, a model is left as it is."""
    model, tokenizer = base
    before = len(tokenizer)
    old = [matrix.detach().clone() for matrix in matrices(model)]
    expansion = expand(model, tokenizer)

    def mean(matrix, text):
        return matrix[
            sorted(set(tokenizer(text, add_special_tokens=False)["input_ids"]))
        ].mean(0)

    assert expansion.token_ids == tuple(range(before, before + 15))
    assert expansion.added == TOKENS
    assert [tokenizer.encode(t, add_special_tokens=False) for t in TOKENS] == [
        [i] for i in expansion.token_ids
    ]
    assert set(expansion.token_ids) <= HFTextCodec(tokenizer).control_ids
    assert expansion.tied == (matrices(model)[0] is matrices(model)[1])
    for matrix, original in zip(matrices(model), old, strict=True):
        assert matrix.shape[0] == max(len(original), before + 15)
        assert torch.equal(matrix[:before], original[:before])
        assert len(torch.unique(matrix[list(expansion.token_ids)], dim=0)) == 15
        others = [i for i in range(len(matrix)) if i not in expansion.token_ids]
        for token, row in zip(TOKENS, expansion.token_ids, strict=True):
            expected = (
                mean(matrix, DESCRIPTIONS[token])
                - matrix[others].mean(0)
                + mean(matrix, FREQUENT)
            )
            torch.testing.assert_close(matrix[row], expected)

    weights = [matrix.detach().clone() for matrix in matrices(model)]
    second = expand(model, tokenizer)
    assert second.added == ()
    assert second.token_ids == expansion.token_ids
    assert all(torch.equal(a, b) for a, b in zip(matrices(model), weights, strict=True))


def test_only_missing_tokens_are_added(tmp_path):
    from transformers import AddedToken

    model, tokenizer = load(save_base(tmp_path / "m", "llama"))
    tokenizer.add_tokens(
        [AddedToken("[Relevant]", special=True, normalized=False)], special_tokens=True
    )
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    known = tokenizer.convert_tokens_to_ids("[Relevant]")
    row = matrices(model)[0][known].detach().clone()
    expansion = expand(model, tokenizer)

    assert expansion.token_ids[TOKENS.index("[Relevant]")] == known
    assert expansion.added == tuple(token for token in TOKENS if token != "[Relevant]")
    assert torch.equal(matrices(model)[0][known], row)
    Vocabulary.from_tokenizer(tokenizer)


@pytest.mark.parametrize("family", ["llama", "llama sentencepiece"])
def test_what_does_not_belong_together_is_refused(tmp_path, family):
    """Also a tokenizer that splits a token: it is in the vocabulary, but its own text does not lead to it."""
    base = save_base(tmp_path / "base", family)
    model, tokenizer = load(base)
    with refused("LlamaModel has no output layer"):
        expand(model.model, tokenizer)
    model.resize_token_embeddings(100)
    with refused("belong together"):
        expand(model, tokenizer)
    settings = read_json(base / "tokenizer.json")
    vocabulary = settings["model"]["vocab"]
    vocabulary["[Relevant]"] = max(vocabulary.values()) + 1  # no merge makes it
    write_json(base / "tokenizer.json", settings)
    model, tokenizer = load(base)
    model.resize_token_embeddings(len(tokenizer))
    with refused(r"'\[Relevant\]'"):
        expand(model, tokenizer)
