"""What goes wrong around the transformers engine: one line each, and nothing worse than necessary is lost."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from selfrag.decoding.requests import Failed, Generate, Generated
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


def finish(engine, count: int) -> dict:
    results = {}
    for _ in range(100):
        results.update(engine.step())
        if len(results) == count:
            return results
    raise AssertionError(results)


class TestSettings:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"dtype": "int8"}, "dtype='int8': choose one of auto, float32, bfloat16, float16"),
            ({"max_batch": 0}, "max_batch=0: give a whole number of at least 1"),
            ({"max_model_len": 1}, "max_model_len=1: give a whole number of at least 2"),
            ({"prefix_cache_mib": -1}, "prefix_cache_mib=-1: give a whole number of at least 0"),
        ],
    )
    def test_nonsense_is_named(self, options, message):
        with pytest.raises(UserError) as caught:
            TransformersConfig("anything", **options)
        assert str(caught.value) == message

    def test_a_context_beyond_the_model_is_refused(self, tiny_gpt2):
        with pytest.raises(EngineError, match=r"max_model_len=9999, but model .* takes at most 512 tokens here"):
            load(tiny_gpt2, max_model_len=9999)

    def test_16_bit_weights_run(self, tiny_llama):
        engine = load(tiny_llama, dtype="bfloat16")
        engine.submit(Generate((5, 6, 7), 3, watch_ids=(3,)))
        (result,) = finish(engine, 1).values()
        assert result.watched.dtype == "float32"


class TestLoading:
    def test_weights_that_are_not_there_are_not_made_up(self, tmp_path, tiny_llama):
        copy(tiny_llama, tmp_path, num_hidden_layers=3)
        with pytest.raises(EngineError, match=r"lacks 9 of its weights, such as model\.layers\.2\."):
            load(tmp_path)

    def test_a_truncated_file(self, tmp_path, tiny_llama):
        for file in tiny_llama.iterdir():
            content = file.read_bytes()
            (tmp_path / file.name).write_bytes(content[:1000] if file.suffix == ".safetensors" else content)
        with pytest.raises(EngineError, match="cannot be loaded") as caught:
            load(tmp_path)
        assert "\n" not in str(caught.value)

    def test_a_model_that_is_not_only_attention(self, tmp_path, tiny_llama):
        copy(tiny_llama, tmp_path, layer_types=["full_attention", "linear_attention"], model_type="qwen2")
        with pytest.raises(EngineError, match="layers of kind linear_attention; use the vllm engine"):
            load(tmp_path)


class TestDeath:
    def test_a_failing_model_is_one_line_and_the_engine_stays_dead(self, tiny_llama, monkeypatch):
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

    def test_a_closed_engine_says_so(self, tiny_llama):
        engine = load(tiny_llama)
        engine.submit(Generate((5, 6), 5))
        engine.step()
        engine.close()
        engine.close()
        with pytest.raises(EngineError, match="the engine is closed"):
            engine.step()

    @pytest.mark.parametrize("running", [False, True])
    def test_after_ctrl_c_the_engine_goes_on(self, tiny_llama, monkeypatch, running):
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
        results = finish(engine, 3)
        assert [results[ticket] for ticket in lost] == [Failed("interrupted")] * 2
        assert isinstance(results[kept], Generated)
        fresh = load(tiny_llama)
        fresh.submit(request)
        (want,) = finish(fresh, 1).values()
        assert results[kept].token_ids == want.token_ids

    def test_no_finite_probability_fails_that_request_only(self, tiny_llama, monkeypatch):
        engine = load(tiny_llama)
        embedding = engine._model.module.get_input_embeddings()
        with torch.no_grad():
            embedding.weight[77] = torch.nan
        bad = engine.submit(Generate((5, 6, 77), 4))
        good = engine.submit(Generate((5, 6, 7), 4))
        results = finish(engine, 2)
        assert isinstance(results[bad], Failed)
        assert "dtype float32" in results[bad].reason
        clean = load(tiny_llama)
        clean.submit(Generate((5, 6, 7), 4))
        (want,) = finish(clean, 1).values()
        assert results[good].token_ids == want.token_ids
        assert results[good].token_logprobs == pytest.approx(want.token_logprobs, abs=1e-4)


@pytest.fixture(scope="module")
def adapters(tiny_llama, tmp_path_factory) -> dict[str, Path]:
    """Two plain LoRAs that change the model, and one that also trains token rows."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    paths = {}
    for seed, name in enumerate(["first", "second", "rows"]):
        extra = {"trainable_token_indices": [3, 4]} if name == "rows" else {}
        config = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False, **extra)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_llama), config)
        paths[name] = tmp_path_factory.mktemp("adapters") / name
        model.save_pretrained(paths[name])
    return paths


class TestAdapters:
    def test_one_batch_mixes_adapters_and_none(self, tiny_llama, adapters):
        from peft import PeftModel
        from transformers import AutoModelForCausalLM

        chosen = {name: adapters[name] for name in ("first", "second")}
        engine = load(tiny_llama, adapters=chosen)
        assert engine.limits.adapters == {"first", "second"}
        prompt = tuple(range(5, 45))
        names = [None, "first", "second", None, "second", "first"]
        tickets = [engine.submit(Generate(prompt, 5, watch_ids=(3, 4, 9), adapter=name)) for name in names]
        results = finish(engine, len(names))
        for name, ticket in zip(names, tickets, strict=True):
            model = AutoModelForCausalLM.from_pretrained(tiny_llama)
            if name is not None:
                model = PeftModel.from_pretrained(model, adapters[name])
            ids = list(prompt)
            with torch.inference_mode():
                for new, watched in zip(results[ticket].token_ids, results[ticket].watched, strict=True):
                    row = torch.log_softmax(model.eval()(torch.tensor([ids])).logits[0, -1], dim=-1)
                    assert int(row.argmax()) == new
                    assert watched == pytest.approx(row[[3, 4, 9]].numpy(), abs=1e-4)
                    ids.append(new)
        assert len({results[ticket].token_logprobs for ticket in tickets}) >= 3

    def test_an_adapter_shares_no_prefix_with_the_base(self, tiny_llama, adapters):
        engine = load(tiny_llama, adapters={"first": adapters["first"]})
        prompt = tuple(range(5, 45))
        cached = []
        for name in (None, "first", None, "first"):
            engine.submit(Generate(prompt, 1, adapter=name))
            (result,) = finish(engine, 1).values()
            cached.append(result.cached_tokens)
        assert cached == [0, 0, 39, 39]

    def test_what_is_no_plain_lora_is_refused_with_the_way_out(self, tiny_llama, adapters):
        with pytest.raises(EngineError, match=r"adapter 'rows' .*: it uses trainable_token_indices; merge it"):
            load(tiny_llama, adapters={"rows": adapters["rows"]})
