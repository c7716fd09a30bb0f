"""Fixtures of the engine tests: one `vllm serve` and one vLLM engine for a whole session."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny
from lora_on_the_spot import save_adapter
from served_vllm import ServedVLLM

CONTEXT = 1024
SERVED_CONTEXT = 8192
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)


@pytest.fixture(scope="session")
def lora_adapter(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of a LoRA adapter for `tiny_llama`."""
    return save_adapter(tiny_llama, tmp_path_factory.mktemp("lora") / "adapter")


@pytest.fixture
def counting(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes a transformers engine of `tiny_llama`, and a list of the adapter and the new tokens of each pass."""
    from selfrag.engines.transformers import TransformersConfig, TransformersEngine
    from selfrag.engines.transformers_model import LoadedModel

    passes: list[tuple[str | None, int]] = []
    inner = LoadedModel.last_logits

    def counted(self: Any, ids: Any, mask: Any, positions: Any, cache: Any, adapter: Any) -> Any:
        passes.append((adapter, int(mask[:, -ids.shape[1] :].sum())))
        return inner(self, ids, mask, positions, cache, adapter)

    monkeypatch.setattr(LoadedModel, "last_logits", counted)
    return lambda **options: (TransformersEngine.load(TransformersConfig(str(tiny_llama), **options)), passes)


@pytest.fixture(scope="session")
def _served(lora_adapter: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedVLLM]:
    pytest.importorskip("vllm", reason="vllm is not installed")
    model = tiny.save_llama(tmp_path_factory.mktemp("served-llama"), context=SERVED_CONTEXT)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    (model / "tokenizer_config.json").write_text(json.dumps(settings | {"chat_template": TEMPLATE}))
    served = ServedVLLM(
        model,
        tmp_path_factory.mktemp("served") / "log.txt",
        *("--max-model-len", str(SERVED_CONTEXT), "--enable-lora", "--max-lora-rank", "8"),
        *("--max-loras", "2"),  # one more than there are: see engine_arguments in selfrag/engines/vllm.py
        *("--lora-modules", f"extra={lora_adapter}"),
    )
    yield served
    served.kill()


@pytest.fixture
def vllm_server(_served: ServedVLLM) -> ServedVLLM:
    """A running `vllm serve` of `tiny_llama` with the adapter `extra`; started again if a test killed it."""
    _served.ensure()
    return _served


@pytest.fixture(scope="session")
def _vllm(tiny_llama: Path, lora_adapter: Path) -> Iterator[Any]:
    pytest.importorskip("vllm", reason="vllm is not installed")
    from selfrag.engines.vllm import VLLMConfig, VLLMEngine

    adapters = {"extra": str(lora_adapter)}
    config = VLLMConfig(
        str(tiny_llama), max_model_len=CONTEXT, dtype="float32", kv_cache_gib=0.1, max_num_seqs=8, adapters=adapters
    )
    engine = VLLMEngine.load(config)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def vllm_engine(_vllm: Any) -> Any:
    """A `VLLMEngine` of `tiny_llama` with the adapter `extra`, and nothing in its prefix cache."""
    _vllm._engine.reset_prefix_cache()
    return _vllm
