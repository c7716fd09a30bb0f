"""Adapters and merged checkpoints: small, complete or absent, exactly what was trained, and where a stage begins."""

import copy
import shutil

import pytest
import tiny
import torch
from families import save_base
from json_files import read_json, write_json
from refusals import refused
from safetensors.torch import load_file, save_file
from trained import config, train, write

from selfrag.common import tensor_writing
from selfrag.common.pretrained import saved_format
from selfrag.reflection.labels import TOKENS, Role
from selfrag.reflection.vocabulary import STORED, Scaling, Vocabulary, as_record
from selfrag.training import export
from selfrag.training import lora as fused
from selfrag.training.export import WEIGHTS, merge, save_adapter, save_checkpoint
from selfrag.training.journal import fingerprint, load_parameters
from selfrag.training.model import load_trainee
from selfrag.training.settings import Lora


@pytest.fixture(scope="module", params=["llama tied", "gpt2 untied"])
def exported(request, tmp_path_factory):
    """(base directory, trained model, adapter directory, merged directory)."""
    home = tmp_path_factory.mktemp("export")
    base = save_base(home / "base", request.param)
    trainee = train(
        write(home / "rows.jsonl"), base, home / "run", config(learning_rate=5e-3)
    )
    adapter = save_adapter(trainee, home / "adapter")
    return (
        base,
        trainee,
        adapter,
        merge(base, adapter, home / "merged", dtype="bfloat16"),
    )


@pytest.fixture
def copied(exported, tmp_path):
    """A copy of the adapter, to be changed."""
    return shutil.copytree(exported[2], tmp_path / "copied")


def weights(path):
    return load_file(path / "model.safetensors")


def test_merging_an_adapter_and_saving_the_trainee_are_one(exported, tmp_path):
    base, trainee, adapter, merged = exported
    direct = weights(save_checkpoint(copy.deepcopy(trainee), tmp_path / "direct"))
    through_adapter = weights(merged)
    assert direct.keys() == through_adapter.keys()
    assert all(torch.equal(direct[name], through_adapter[name]) for name in direct)
    assert {value.dtype for value in direct.values()} == {torch.bfloat16}
    assert read_json(merged / "config.json").get("use_cache", True) is True

    tensors = load_file(adapter / WEIGHTS)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert sum(tensor.numel() for tensor in tensors.values()) == sum(
        p.numel() for p in trainee.parameters.values()
    )
    assert str(base) not in (adapter / "adapter_config.json").read_text()
    assert list(read_json(adapter / "reflection.json")["token_ids"]) == list(TOKENS)


def test_what_does_not_belong_together_is_refused(exported, copied, tmp_path):
    base, _, adapter, _ = exported
    is_llama = read_json(base / "config.json")["model_type"] == "llama"
    other = (tiny.save_gpt2 if is_llama else tiny.save_llama)(
        tmp_path / "other", reflection=False
    )
    with refused("another base model"):
        merge(other, adapter, tmp_path / "merged")
    with refused(r"reflection\.json is missing or bad"):
        merge(base, tmp_path, tmp_path / "merged")
    with refused("exists already"):
        merge(base, adapter, adapter)
    tensors = load_file(copied / WEIGHTS)
    save_file(
        {
            name: torch.zeros_like(t) if t.shape[0] == 15 else t
            for name, t in tensors.items()
        },
        copied / WEIGHTS,
    )
    with refused("not finite and distinct"):
        merge(base, copied, tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_a_merge_that_cannot_fit_leaves_nothing(exported, tmp_path, monkeypatch):
    base, _, adapter, _ = exported
    usage = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr("selfrag.common.atomic.shutil.disk_usage", lambda folder: usage)
    monkeypatch.setattr(export, "load", None)  # refused before the base is read
    with refused(r"1,000 bytes free"):
        merge(base, adapter, tmp_path / "merged")
    assert list(tmp_path.iterdir()) == []


def test_a_merged_checkpoint_brings_the_scalings_of_its_adapter(
    exported, copied, tmp_path
):
    from transformers import AutoTokenizer

    record = read_json(copied / "reflection.json")
    scalings = {Role.RELEVANCE: Scaling(1.5)}
    write_json(copied / "reflection.json", record | {STORED: as_record(scalings)})
    merged = merge(exported[0], copied, tmp_path / "merged")
    assert (
        Vocabulary.from_tokenizer(AutoTokenizer.from_pretrained(merged)).scalings
        == scalings
    )


@pytest.mark.parametrize("tie", [True, False])
def test_a_full_model_and_weights_gathered_from_shards_make_the_same_checkpoint_or_none(
    tmp_path, tie
):
    base = tiny.save_gpt2(tmp_path / "base", reflection=False, tie=tie)
    trainee = train(
        write(tmp_path / "rows.jsonl"), base, tmp_path / "run", config(method="full")
    )
    with refused("save_checkpoint"):
        save_adapter(trainee, tmp_path / "adapter")
    trainee.fused.write_back()
    state = {name: value.clone() for name, value in trainee.model.state_dict().items()}
    lacking = {
        name: value
        for name, value in state.items()
        if name != "transformer.ln_f.weight"
    }
    with refused(r"transformer\.ln_f\.weight"):
        save_checkpoint(trainee, tmp_path / "hollow", lacking)
    assert not (tmp_path / "hollow").exists()
    if tie:
        del state["lm_head.weight"]  # there once, as DeepSpeed gathers it
    gathered = weights(save_checkpoint(trainee, tmp_path / "gathered", state))
    whole = weights(save_checkpoint(trainee, tmp_path / "whole"))
    assert set(gathered) == set(whole)
    assert all(torch.equal(gathered[name], whole[name]) for name in whole)


@pytest.mark.parametrize(
    "rank, scale, transposed", [(1, 1.0, False), (3, 2.0, True), (16, 0.7, False)]
)
def test_a_pair_is_merged_in_float32_and_rounded_once(
    monkeypatch, rank, scale, transposed
):
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
                expected = (
                    expected
                    + up.float().numpy()[:, k, None] * down.float().numpy()[None, k]
                )
    expected = torch.from_numpy(
        weight.float().numpy() + expected * np.float32(scale)
    ).bfloat16()
    monkeypatch.setattr(tensor_writing, "_BLOCK", 100)
    held = weight.T.contiguous().T if transposed else weight.clone()
    fused.merge_into(held, down, up, scale)
    assert torch.equal(held, expected)


def test_a_stage_begins_with_every_parameter_of_an_adapter_and_says_so(
    exported, tmp_path
):
    base, trainee, adapter, _ = exported
    parameters = load_trainee(base, config(seed=99)).parameters
    assert any(
        not torch.equal(value, trainee.parameters[name])
        for name, value in parameters.items()
    )
    assert load_parameters(adapter, parameters, config().lora) == fingerprint(
        adapter / WEIGHTS
    )
    for name, value in parameters.items():
        assert value.dtype == torch.float32
        assert torch.equal(
            value, trainee.parameters[name].to(torch.bfloat16).float()
        ), name

    train(
        write(tmp_path / "rows.jsonl"),
        base,
        tmp_path / "2",
        config(max_steps=1),
        start=adapter,
    )
    manifest = read_json(tmp_path / "2/manifest.json")
    assert manifest["inputs"]["start"] == fingerprint(adapter / WEIGHTS)


def test_an_adapter_of_another_size_or_a_broken_one_is_refused(exported, copied):
    adapter, lora = exported[2], config().lora
    parameters = load_trainee(exported[0], config(lora=lora)).parameters
    with refused("another model"):
        load_parameters(adapter, dict(list(parameters.items())[1:]), lora)
    with refused("lora_alpha"):
        load_parameters(adapter, parameters, Lora(lora.rank, 1.0))
    for broken in (WEIGHTS, "adapter_config.json"):
        (copied / broken).write_bytes(b"\xff not this")
        with refused("no adapter"):
            load_parameters(copied, parameters, lora)


@pytest.mark.parametrize(
    "dtype, expected",
    [("auto", torch.float32), ("bfloat16", torch.bfloat16), ("float16", torch.float16)],
)
def test_a_merged_checkpoint_keeps_the_number_format_of_its_base(
    exported, tmp_path, dtype, expected
):
    """Field audit T2: the result was always bfloat16."""
    base, _, adapter, _ = exported
    assert saved_format(base) == "float32"
    merge(base, adapter, tmp_path / "merged", dtype=dtype)
    assert {
        tensor.dtype
        for tensor in load_file(tmp_path / "merged/model.safetensors").values()
    } == {expected}
