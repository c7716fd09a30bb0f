"""What goes wrong around the transformers engine: one line each, and nothing worse than necessary is lost."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from lora_on_the_spot import save_adapter
from pump import generated, serve

from selfrag.decoding.requests import Failed, Generate
from selfrag.engines.transformers import TransformersConfig, TransformersEngine
from selfrag.engines.transformers_model import LoadedModel
from selfrag.errors import EngineError, UserError

pytestmark = pytest.mark.engine


def load(path, **options) -> TransformersEngine:
    return TransformersEngine.load(TransformersConfig(str(path), **options))


def copy(source: Path, target: Path, **settings) -> None:
    """A checkpoint with other settings and the same weights."""
    for file in source.iterdir():
        shutil.copy(file, target)
    config = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | settings))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int8"}, "dtype='int8': choose one of auto, float32, bfloat16, float16"),
        ({"max_batch": 0}, "max_batch=0: give a whole number of at least 1"),
        ({"max_model_len": 1}, "max_model_len=1: give a whole number of at least 2"),
        ({"prefix_cache_mib": -1}, "prefix_cache_mib=-1: give a whole number of at least 0"),
    ],
)
def test_nonsense_is_named(options, message):
    with pytest.raises(UserError) as caught:
        TransformersConfig("anything", **options)
    assert str(caught.value) == message


def test_a_context_beyond_the_model_is_refused(tiny_gpt2):
    with pytest.raises(EngineError, match=r"max_model_len=9999, but model .* takes at most 512 tokens here"):
        load(tiny_gpt2, max_model_len=9999)


def test_16_bit_weights_run(tiny_llama):
    engine = load(tiny_llama, dtype="bfloat16")
    assert generated(engine, Generate((5, 6, 7), 3, watch_ids=(3,))).watched.dtype == "float32"


def test_weights_that_are_not_there_are_not_made_up(tmp_path, tiny_llama):
    copy(tiny_llama, tmp_path, num_hidden_layers=3)
    with pytest.raises(EngineError, match=r"lacks 9 of its weights, such as model\.layers\.2\."):
        load(tmp_path)


def test_a_truncated_file(tmp_path, tiny_llama):
    for file in tiny_llama.iterdir():
        content = file.read_bytes()
        (tmp_path / file.name).write_bytes(content[:1000] if file.suffix == ".safetensors" else content)
    with pytest.raises(EngineError, match="cannot be loaded") as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_model_that_is_not_only_attention(tmp_path, tiny_llama):
    copy(tiny_llama, tmp_path, layer_types=["full_attention", "linear_attention"], model_type="qwen2")
    with pytest.raises(EngineError, match="layers of kind linear_attention; use the vllm engine"):
        load(tmp_path)


def test_a_failing_model_is_one_line_and_the_engine_stays_dead(tiny_llama, monkeypatch):
    engine = load(tiny_llama)

    def fail(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 2.00 GiB")

    monkeypatch.setattr(engine._model.module, "forward", fail)
    engine.submit(Generate((5, 6, 7), 3))
    with pytest.raises(EngineError) as caught:
        engine.step()
    message = str(caught.value)
    assert "\n" not in message
    assert "out of memory" in message
    assert "max_batch" in message
    for call in (engine.step, lambda: engine.submit(Generate((5,), 1))):
        with pytest.raises(EngineError, match="out of memory"):
            call()
    engine.abort([0])
    engine.close()


def test_a_closed_engine_says_so(tiny_llama):
    engine = load(tiny_llama)
    engine.submit(Generate((5, 6), 5))
    engine.step()
    engine.close()
    engine.close()
    with pytest.raises(EngineError, match="the engine is closed"):
        engine.step()


@pytest.mark.parametrize("running", [False, True])
def test_after_ctrl_c_the_engine_goes_on(tiny_llama, monkeypatch, running):
    engine = load(tiny_llama)
    request = Generate((5, 6, 7), 6, allowed_ids=(8, 9, 10))
    lost = [engine.submit(request) for _ in range(2)]
    if running:
        engine.step()
    with monkeypatch.context() as patch:

        def interrupt(*_, **__):
            raise KeyboardInterrupt

        patch.setattr(LoadedModel, "last_logits", interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    kept = engine.submit(request)
    results: dict = {}
    while kept not in results:
        results.update(engine.step())
    assert [results[ticket] for ticket in lost] == [Failed("interrupted")] * 2
    assert results[kept].token_ids == generated(load(tiny_llama), request).token_ids


def test_no_finite_probability_fails_that_request_only(tiny_llama, monkeypatch):
    engine = load(tiny_llama)
    embedding = engine._model.module.get_input_embeddings()
    with torch.no_grad():
        embedding.weight[77] = torch.nan
    bad, good = serve(engine, [Generate((5, 6, 77), 4), Generate((5, 6, 7), 4)])
    assert isinstance(bad, Failed)
    assert "dtype float32" in bad.reason
    want = generated(load(tiny_llama), Generate((5, 6, 7), 4))
    assert good.token_ids == want.token_ids
    assert good.token_logprobs == pytest.approx(want.token_logprobs, abs=1e-4)


@pytest.fixture(scope="module")
def adapters(tiny_llama, tmp_path_factory) -> dict[str, Path]:
    """Two plain LoRAs that change the model, and one that also trains token rows."""
    folder = tmp_path_factory.mktemp("adapters")
    made = {name: save_adapter(tiny_llama, folder / name, seed=at) for at, name in enumerate(("first", "second"))}
    return made | {"rows": save_adapter(tiny_llama, folder / "rows", trainable_token_indices=[3, 4])}


def test_one_batch_mixes_adapters_and_none_which_share_no_prefix(tiny_llama, adapters):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    engine = load(tiny_llama, adapters={name: adapters[name] for name in ("first", "second")})
    assert engine.limits.adapters == {"first", "second"}
    names = [None, "first", "second", None, "second", "first"]
    wave = [Generate(tuple(range(5, 45)), 5, watch_ids=(3, 4, 9), adapter=name) for name in names]
    results = serve(engine, wave)
    for name, result in zip(names[:3], results[:3], strict=True):
        model = AutoModelForCausalLM.from_pretrained(tiny_llama)
        if name is not None:
            model = PeftModel.from_pretrained(model, adapters[name])
        with torch.inference_mode():
            ids = torch.tensor([[*wave[0].prompt_ids, *result.token_ids]])
            rows = torch.log_softmax(model.eval()(ids).logits[0, 39:-1], dim=-1)
        assert tuple(rows.argmax(dim=1).tolist()) == result.token_ids
        assert result.watched == pytest.approx(rows[:, [3, 4, 9]].numpy(), abs=1e-4)
    assert [results[at].token_ids for at in (3, 5, 4)] == [one.token_ids for one in results[:3]]
    assert len({result.token_logprobs for result in results}) >= 3
    fresh = load(tiny_llama, adapters={"first": adapters["first"]})
    cached = [generated(fresh, replace(wave[0], adapter=name)).cached_tokens for name in (None, "first", None, "first")]
    assert cached == [0, 0, 39, 39]


def test_what_is_no_plain_lora_is_refused_with_the_way_out(tiny_llama, adapters):
    with pytest.raises(EngineError, match=r"adapter 'rows' .*: it uses trainable_token_indices; merge it"):
        load(tiny_llama, adapters={"rows": adapters["rows"]})
