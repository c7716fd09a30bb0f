"""Adapters and merged checkpoints: small, complete or absent, and exactly the model that was trained."""

import json
import shutil

import pytest
import tiny
import torch
from trained import ROWS, config, write

from selfrag.errors import UserError
from selfrag.reflection.calibration import STORED, Scaling, as_record
from selfrag.reflection.labels import TOKENS, Role
from selfrag.reflection.vocabulary import Vocabulary
from selfrag.training import export
from selfrag.training import lora as fused
from selfrag.training.export import merge, save_adapter, save_checkpoint
from selfrag.training.packing import pack
from selfrag.training.run import layout_for, train
from selfrag.training.settings import Weighting


@pytest.fixture(scope="module", params=["llama tied", "llama sentencepiece", "gpt2", "gpt2 untied"])
def exported(request, tmp_path_factory):
    """(base directory, trained model, adapter directory, merged directory, losses before the merge)."""
    home = tmp_path_factory.mktemp("export")
    match request.param.split():
        case ["gpt2", *untied]:
            base = tiny.save_gpt2(home / "base", reflection=False, tie=not untied)
        case ["llama", "sentencepiece"]:
            base = tiny.save_llama(home / "base", family="sentencepiece", reflection=False)
        case _:
            base = tiny.save_llama(home / "base", reflection=False, tie=True)
    settings = config(learning_rate=5e-3)
    trainee = train(write(home / "rows.jsonl"), base, home / "run", settings)
    adapter = save_adapter(trainee, home / "adapter")
    merged = merge(base, adapter, home / "merged")
    layout = layout_for(trainee.tokenizer, settings)
    load = pack([layout.example(one) for one in ROWS], Weighting())
    with torch.no_grad():
        losses = trainee.losses(load)[0]
    return base, trainee, adapter, merged, load, losses


def weights(path):
    from safetensors.torch import load_file

    return load_file(path / "model.safetensors")


def test_the_merged_checkpoint_is_the_trained_model(exported):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    _, _, _, merged, load, losses = exported
    model = AutoModelForCausalLM.from_pretrained(merged)
    assert model.dtype == torch.bfloat16
    starts = [0]
    for length in load.row_lengths[:-1]:
        starts.append(starts[-1] + length)
    logits = torch.cat(
        [
            model(input_ids=load.ids[:, start : start + length]).logits[0]
            for start, length in zip(starts, load.row_lengths, strict=True)
        ]
    )
    found = torch.nn.functional.cross_entropy(logits[load.predictors].float(), load.targets, reduction="none")
    torch.testing.assert_close(found, losses, rtol=0.03, atol=0.1)
    Vocabulary.from_tokenizer(AutoTokenizer.from_pretrained(merged))


def test_merging_an_adapter_and_saving_the_trainee_are_one(exported, tmp_path):
    _, trainee, _, merged, _, _ = exported
    import copy

    direct = weights(save_checkpoint(copy.deepcopy(trainee), tmp_path / "direct"))
    through_adapter = weights(merged)
    assert direct.keys() == through_adapter.keys()
    assert all(torch.equal(direct[name], through_adapter[name]) for name in direct)


def test_an_adapter_holds_lora_and_rows_in_bf16_and_no_path(exported):
    from safetensors.torch import load_file

    base, trainee, adapter, _, _, _ = exported
    tensors = load_file(adapter / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert sum(tensor.numel() for tensor in tensors.values()) == sum(p.numel() for p in trainee.parameters.values())
    assert str(base) not in (adapter / "adapter_config.json").read_text()
    assert list(json.loads((adapter / "reflection.json").read_text())["token_ids"]) == list(TOKENS)


def test_a_merged_checkpoint_has_no_trace_of_training_settings(exported):
    _, _, _, merged, _, _ = exported
    settings = json.loads((merged / "config.json").read_text())
    assert "quantization_config" not in settings
    assert settings.get("use_cache", True) is True
    assert not list(merged.glob("adapter*"))


def test_another_base_model_is_refused(exported, tmp_path):
    base, _, adapter, _, _, _ = exported
    is_llama = json.loads((base / "config.json").read_text())["model_type"] == "llama"
    other = (tiny.save_gpt2 if is_llama else tiny.save_llama)(tmp_path / "other", reflection=False)
    with pytest.raises(UserError, match="was trained on another base model"):
        merge(other, adapter, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_a_directory_that_is_no_adapter_is_refused(exported, tmp_path):
    base = exported[0]
    with pytest.raises(UserError, match=r"reflection\.json is missing or bad"):
        merge(base, tmp_path, tmp_path / "merged")


def test_a_merge_that_cannot_fit_is_refused_before_the_base_is_read(exported, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr("retrieval.atomic.shutil.disk_usage", lambda folder: usage)
    monkeypatch.setattr(export, "load", None)
    with pytest.raises(UserError, match=r"no space left for .*1,000 bytes free, at least"):
        merge(exported[0], exported[2], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_a_merge_killed_before_its_end_leaves_nothing(exported, tmp_path, monkeypatch):
    base, _, adapter, _, _, _ = exported

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(export, "_verify", killed)
    with pytest.raises(KeyboardInterrupt):
        merge(base, adapter, tmp_path / "merged")
    assert list(tmp_path.iterdir()) == []


def test_rows_that_collapsed_are_not_published(exported, tmp_path, monkeypatch):
    base, _, adapter, _, _, _ = exported
    from safetensors.torch import load_file, save_file

    broken = tmp_path / "broken"
    broken.mkdir()
    for file in adapter.iterdir():
        (broken / file.name).write_bytes(file.read_bytes())
    tensors = load_file(adapter / "adapter_model.safetensors")
    same = {name: torch.zeros_like(t) if t.shape[0] == 15 else t for name, t in tensors.items()}
    save_file(same, broken / "adapter_model.safetensors")
    with pytest.raises(UserError, match="not finite and distinct"):
        merge(base, broken, tmp_path / "merged")


def test_a_fully_trained_model_has_no_adapter_but_a_checkpoint(tmp_path):
    from transformers import AutoModelForCausalLM

    base = tiny.save_llama(tmp_path / "base", reflection=False)
    trainee = train(write(tmp_path / "rows.jsonl"), base, tmp_path / "run", config(method="full", max_steps=1))
    with pytest.raises(UserError, match="no adapter; save it with save_checkpoint"):
        save_adapter(trainee, tmp_path / "adapter")
    model = AutoModelForCausalLM.from_pretrained(save_checkpoint(trainee, tmp_path / "merged"))
    assert model.dtype == torch.bfloat16


@pytest.mark.parametrize("tie", [True, False])
def test_weights_gathered_from_shards_make_the_same_checkpoint_or_none(tmp_path, tie):
    base = tiny.save_gpt2(tmp_path / "base", reflection=False, tie=tie)
    trainee = train(write(tmp_path / "rows.jsonl"), base, tmp_path / "run", config(method="full"))
    trainee.fused.write_back()
    state = {name: value.clone() for name, value in trainee.model.state_dict().items()}
    lacking = {name: value for name, value in state.items() if name != "transformer.ln_f.weight"}
    with pytest.raises(UserError, match=r"transformer\.ln_f\.weight and 0 other weights did not come back"):
        save_checkpoint(trainee, tmp_path / "hollow", lacking)
    assert not (tmp_path / "hollow").exists()
    if tie:
        del state["lm_head.weight"]  # there once, as DeepSpeed gathers it
    gathered = weights(save_checkpoint(trainee, tmp_path / "gathered", state))
    whole = weights(save_checkpoint(trainee, tmp_path / "whole"))
    assert set(gathered) == set(whole)
    assert all(torch.equal(gathered[name], whole[name]) for name in whole)


@pytest.mark.parametrize(("rank", "scale"), [(1, 1.0), (3, 2.0), (16, 0.7)])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_pair_is_merged_in_float32_and_rounded_once(monkeypatch, rank, scale, transposed):
    """Against a sum in numpy, which knows neither blocks nor threads, in the documented order."""
    import numpy as np

    rng = np.random.default_rng(rank)
    weight, down, up = (
        torch.from_numpy(rng.standard_normal(size, dtype=np.float32)).bfloat16()
        for size in ((37, 29), (rank, 29), (37, rank))
    )
    expected = np.zeros((37, 29), np.float32)
    for pair in range(0, rank, 2):
        for k in (pair + 1, pair):
            if k < rank:
                expected = expected + up.float().numpy()[:, k, None] * down.float().numpy()[None, k]
    expected = torch.from_numpy(weight.float().numpy() + expected * np.float32(scale)).bfloat16()
    monkeypatch.setattr(fused, "_BLOCK", 100)
    held = weight.T.contiguous().T if transposed else weight.clone()
    fused.merge_pair(held, down, up, scale)
    assert torch.equal(held, expected)
    exact = weight.double() + scale * (up.double() @ down.double())
    assert (held.double() - exact).abs().max() <= (exact.abs() * 2**-8).max()


def test_a_merged_checkpoint_brings_the_scalings_of_its_adapter(exported, tmp_path):
    from transformers import AutoTokenizer

    base, _, adapter, *_ = exported
    copy = shutil.copytree(adapter, tmp_path / "adapter")
    record = json.loads((copy / "reflection.json").read_text())
    scalings = {Role.RELEVANCE: Scaling(1.5)}
    (copy / "reflection.json").write_text(json.dumps(record | {STORED: as_record(scalings)}))
    merged = merge(base, copy, tmp_path / "merged")
    assert Vocabulary.from_tokenizer(AutoTokenizer.from_pretrained(merged)).scalings == scalings
