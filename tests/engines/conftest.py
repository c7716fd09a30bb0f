"""Fixtures of the engine tests: one `vllm serve` for a whole session, and a LoRA adapter that it serves."""

import json

import pytest
import tiny
from lora_on_the_spot import save_adapter
from pump import TEMPLATE
from vllm_process import ServedVLLM

SERVED_CONTEXT = 8192


@pytest.fixture(scope="session")
def lora_adapter(tiny_llama, tmp_path_factory):
    """Directory of a LoRA adapter for `tiny_llama`."""
    return save_adapter(tiny_llama, tmp_path_factory.mktemp("lora") / "adapter")


@pytest.fixture
def counting(tiny_llama, monkeypatch):
    """Makes a transformers engine of `tiny_llama`, and a list of the adapter and the new tokens of each pass."""
    from selfrag.engines.transformers import TransformersConfig, TransformersEngine
    from selfrag.engines.transformers_model import LoadedModel

    passes = []
    inner = LoadedModel.last_logits

    def counted(self, ids, mask, positions, cache, *rest):
        passes.append((rest[0], int(mask[:, -ids.shape[1] :].sum())))
        return inner(self, ids, mask, positions, cache, *rest)

    monkeypatch.setattr(LoadedModel, "last_logits", counted)
    return lambda **options: (
        TransformersEngine.load(TransformersConfig(str(tiny_llama), **options)),
        passes,
    )


@pytest.fixture(scope="session")
def served_llama(lora_adapter, tmp_path_factory):
    """A running `vllm serve` of `tiny_llama` with the adapter `extra`."""
    pytest.importorskip("vllm", reason="vllm is not installed")
    folder = tmp_path_factory.mktemp("served")
    model = tiny.save_llama(folder / "llama", context=SERVED_CONTEXT)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(
        json.dumps(settings | {"chat_template": TEMPLATE})
    )
    # of adapters one more than there are: see engine_arguments in selfrag/engines/vllm.py
    line = f"""--max-model-len {SERVED_CONTEXT} --dtype float32 --enforce-eager --max-num-seqs 8 --block-size 32
    --kv-cache-memory-bytes {50 << 20} --enable-prompt-tokens-details --enable-scale-out --enable-lora
    --max-lora-rank 8 --max-loras 2 --lora-modules extra={lora_adapter}"""
    served = ServedVLLM(model, folder / "log.txt", *line.split())
    yield served
    served.kill()


@pytest.fixture
def vllm_server(served_llama):
    """The server of this session, started again if a test has killed it."""
    served_llama.start_again_if_killed()
    return served_llama
